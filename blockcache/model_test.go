package blockcache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// model is a table as one would write it without a thought of memory.
type model struct {
	states  []State
	digests [][]byte
}

// checkModel compares a table with its model. Data may have been evicted,
// when the cache is small, and is then unknown in both from here on.
func checkModel(t *testing.T, tab *Table, m *model) {
	t.Helper()
	var counts [4]int64
	n := int64(len(m.states))
	for b := int64(0); b < n; {
		s, run := tab.Run(b, n-b)
		if run < 1 {
			t.Fatalf("block %d: run of %d blocks", b, run)
		}
		for i := b; i < b+run; i++ {
			if m.states[i] == Data && s == Unknown {
				m.states[i] = Unknown
			}
			if m.states[i] != s {
				t.Fatalf("block %d: state %d, want %d", i, s, m.states[i])
			}
		}
		if b+run < n && m.states[b+run] == s && s != Unknown {
			if next, _ := tab.Run(b+run, 1); next == s {
				t.Fatalf("run of state %d at %d ends at %d, too early", s, b, b+run)
			}
		}
		counts[s] += run
		if s == Data {
			dst := make([]byte, int(run)*tab.digest)
			if got := tab.Digests(dst, b); got != run {
				t.Fatalf("block %d: %d digests of %d", b, got, run)
			}
			for i := range run {
				if got := dst[int(i)*tab.digest:][:tab.digest]; !bytes.Equal(got, m.digests[b+i]) {
					t.Fatalf("block %d: digest %x, want %x", b+i, got, m.digests[b+i])
				}
			}
		}
		b += run
	}
	if got := tab.Counts(); got != counts {
		t.Fatalf("counts %v, want %v", got, counts)
	}
}

// step does one random operation on both.
func step(rng *rand.Rand, tab *Table, m *model) {
	n := int64(len(m.states))
	first := rng.Int64N(n)
	length := 1 + rng.Int64N(n-first)
	if rng.IntN(2) == 0 {
		length = min(length, 1+rng.Int64N(100))
	}
	set := func(s State) {
		for b := first; b < first+length; b++ {
			m.states[b] = s
		}
	}
	switch rng.IntN(5) {
	case 0:
		set(Zero)
		tab.SetZero(first, length)
	case 1:
		set(Failed)
		tab.SetFailed(first, length)
	case 2:
		set(Unknown)
		tab.Invalidate(first, length)
	default:
		set(Data)
		digests := make([]byte, int(length)*tab.digest)
		for i := range digests {
			digests[i] = byte(rng.Uint32())
		}
		for i := range length {
			m.digests[first+i] = digests[int(i)*tab.digest:][:tab.digest]
		}
		tab.SetData(first, digests, rng.IntN(2) == 0)
	}
}

func TestTable_modelOfRandomOperations(t *testing.T) {
	for _, blocks := range []int64{1, 31, 32, 33, 1023, 1024, 1025, 5000} {
		for _, pages := range []int64{0, 1, 3, 100} {
			t.Run(fmt.Sprintf("blocks=%d/pages=%d", blocks, pages), func(t *testing.T) {
				const digest = 4
				rng := rand.New(rand.NewPCG(uint64(blocks), uint64(pages)))
				c := New(pages * RunBlocks * digest)
				// Two tables share the cache, so that each evicts the other's.
				var tabs [2]*Table
				var models [2]*model
				for i := range tabs {
					tabs[i] = c.NewTable(blocks, digest)
					models[i] = &model{make([]State, blocks), make([][]byte, blocks)}
				}
				for range 300 {
					i := rng.IntN(2)
					step(rng, tabs[i], models[i])
					checkModel(t, tabs[0], models[0])
					checkModel(t, tabs[1], models[1])
					if s := c.Stats(); s.Bytes > s.Limit {
						t.Fatalf("%d bytes kept, limit %d", s.Bytes, s.Limit)
					}
				}
				tabs[0].Reset(blocks + 7)
				models[0] = &model{make([]State, blocks+7), make([][]byte, blocks+7)}
				checkModel(t, tabs[0], models[0])
				checkModel(t, tabs[1], models[1])
			})
		}
	}
}
