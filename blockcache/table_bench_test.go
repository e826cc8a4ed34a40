package blockcache

import (
	"fmt"
	"testing"
)

// benchBlocks is 64 GiB of blocks of 64 KiB, and some runs that are full.
const benchBlocks = 1 << 20

// A layout is what a table holds when it is looked at.
type layout struct {
	name string
	fill func(*Table)
}

var layouts = []layout{
	{"unknown", func(*Table) {}},
	{"zero", func(t *Table) { t.SetZero(0, benchBlocks) }},
	{"data", func(t *Table) { t.SetData(0, make([]byte, benchBlocks*32), true) }},
	// The worst for runs: no two blocks alike.
	{"mixed", func(t *Table) {
		t.SetData(0, make([]byte, benchBlocks*32), true)
		for b := int64(0); b < benchBlocks; b += 2 {
			t.SetZero(b, 1)
		}
	}},
}

func newBenchTable(l layout) *Table {
	t := New(1<<30).NewTable(benchBlocks, 32)
	l.fill(t)
	return t
}

// What asking for the state of a block costs, and of how many it is the same.
func BenchmarkRun(b *testing.B) {
	for _, l := range layouts {
		t := newBenchTable(l)
		for _, n := range []int64{1, 1024, benchBlocks} {
			b.Run(fmt.Sprintf("%s/%d", l.name, n), func(b *testing.B) {
				b.ReportAllocs()
				first := int64(0)
				for b.Loop() {
					t.Run(first, n)
					first = (first + 12345*n) % (benchBlocks - n + 1)
				}
			})
		}
	}
}

// What reading digests that are known costs: a file digests.bin gives 4096 of
// them for a read of 128 KiB.
func BenchmarkDigests(b *testing.B) {
	t := newBenchTable(layouts[2])
	for _, n := range []int64{1, 1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dst := make([]byte, n*32)
			b.SetBytes(n * 32)
			b.ReportAllocs()
			first := int64(0)
			for b.Loop() {
				if got := t.Digests(dst, first); got != n {
					b.Fatalf("%d digests, want %d", got, n)
				}
				first = (first + 12345) % (benchBlocks - n)
			}
		})
	}
}

// What a job of 16 blocks costs to be published, over what was there before.
func BenchmarkSetData(b *testing.B) {
	digests := make([]byte, 16*32)
	for _, l := range layouts {
		t := newBenchTable(l)
		b.Run(l.name, func(b *testing.B) {
			b.ReportAllocs()
			first := int64(0)
			for b.Loop() {
				t.SetData(first, digests, true)
				first = (first + 16) % benchBlocks
			}
		})
	}
}

// What a write costs: 4 KiB touch one block, 1 MiB 16 of them, a discard of
// everything all. Each time the blocks are made known again first, which
// BenchmarkSetData and the pages of other blocks in a run keep cheap. It must
// not allocate.
func BenchmarkInvalidate(b *testing.B) {
	digests := make([]byte, 16*32)
	for _, l := range []struct {
		name  string
		known func(t *Table, first, n int64)
		n     []int64
	}{
		{"zero", (*Table).SetZero, []int64{1, 16, benchBlocks}},
		{"data", func(t *Table, first, n int64) { t.SetData(first, digests[:n*32], false) }, []int64{1, 16}},
	} {
		t := newBenchTable(layouts[2])
		for _, n := range l.n {
			b.Run(fmt.Sprintf("%s/%d", l.name, n), func(b *testing.B) {
				b.ReportAllocs()
				first := int64(0)
				for b.Loop() {
					l.known(t, first, n)
					t.Invalidate(first, n)
					first = (first + 12345*n) % (benchBlocks - n + 1)
				}
			})
		}
	}
}
