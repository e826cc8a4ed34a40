package hasher

import (
	"bytes"
	"fmt"
	"testing"
)

// benchAlgorithms are those whose outer hash is worth knowing: the default, and
// one that cannot be resumed.
var benchAlgorithms = []string{"sha256", "blake3"}

// The outer hash of 65536 blocks, 4 GiB of them at 64 KiB: as digests that come
// in the pieces of a checksum, and as one run of zeros.
func BenchmarkOuterHash(b *testing.B) {
	const blocks = 65536
	for _, name := range benchAlgorithms {
		a := mustSpec(b, name).Algorithm
		size := int64(a.Size())
		digests := make([]byte, checkpointBlocks*size)
		batch := bytes.Repeat(a.New().Sum(nil), zeroBatchBlocks)
		newOuter := func() *outerHash {
			return &outerHash{Hash: a.New(), zeroBatch: func() []byte { return batch }, digest: size}
		}
		b.Run(name+"/digests", func(b *testing.B) {
			b.SetBytes(blocks * size)
			b.ReportAllocs()
			for b.Loop() {
				o := newOuter()
				for range blocks / checkpointBlocks {
					o.Write(digests)
				}
				o.finish(blocks << 16)
			}
		})
		b.Run(name+"/zeros", func(b *testing.B) {
			b.SetBytes(blocks * size)
			b.ReportAllocs()
			for b.Loop() {
				o := newOuter()
				o.addZeros(blocks)
				o.finish(blocks << 16)
			}
		})
	}
}

// What a checkpoint costs to leave and to begin at.
func BenchmarkCheckpoint(b *testing.B) {
	h := mustSpec(b, "sha256").Algorithm.New()
	h.Write(make([]byte, 1<<20))
	state, err := saveState(h)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("save", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := saveState(h); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("restore", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := restoreState(h, state); err != nil {
				b.Fatal(err)
			}
		}
	})
	// As many as an image keeps; a write in its middle drops half of them.
	for _, n := range []int{64, 4096} {
		b.Run(fmt.Sprintf("add-and-drop/%d", n), func(b *testing.B) {
			c := checkpoints{distance: checkpointBlocks}
			add := func(from int) {
				for i := from; i <= n; i++ {
					c.add(checkpoint{int64(i) * checkpointBlocks, state})
				}
			}
			add(1)
			b.ReportAllocs()
			for b.Loop() {
				c.drop(int64(n/2) * checkpointBlocks)
				add(n/2 + 1)
			}
		})
	}
}
