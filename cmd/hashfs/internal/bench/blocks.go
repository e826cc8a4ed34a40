package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"testing"

	"hashfs/hasher"
)

// blocksExperiment hashes n blocks side by side in one goroutine.
func blocksExperiment(n int, t target) *experiment {
	r := &row{
		work:   fmt.Sprintf("sha256 of %d blocks of 64 KiB, one core", n),
		peer:   fmt.Sprintf("%d × Go's crypto/sha256.Sum256", n),
		target: t, unit: seconds,
		why: "One stream of sha256 waits for the latency of the processor's SHA instructions, blocks that have nothing to do with each other fill that time.",
		limits: "All is in the core's own cache, so it says nothing of reading; without SHA or AVX-512 instructions hashfs uses crypto/sha256 itself, " +
			"and a machine whose SHA unit has another latency has another ratio.",
	}
	if n > 2 {
		r.why = "With AVX-512 a vector holds a word of each of 16 blocks, and a pass over an image reads as many at a time; elsewhere they go by twos."
	}
	return &experiment{fmt.Sprintf("blocks-%d", n), []*row{r}, func(ctx context.Context, l *lab, rows []*row) error {
		data := make([]byte, n*blockSize)
		if _, err := io.ReadFull(random(4), data); err != nil {
			return err
		}
		ours, err := hashBlocks(data)
		if err != nil {
			return err
		}
		theirs := func(b *testing.B) {
			for b.Loop() {
				for i := 0; i < len(data); i += blockSize {
					sink = sha256.Sum256(data[i : i+blockSize])
				}
			}
		}
		return l.race(ctx, rows[0], benchmark(ours), benchmark(theirs))
	}}
}

var sink [sha256.Size]byte // keeps the compiler from leaving the work out

func hashBlocks(data []byte) (func(*testing.B), error) {
	a, err := hasher.LookupAlgorithm("sha256")
	if err != nil {
		return nil, err
	}
	h := a.NewBlockHasher(blockSize)
	var sums []byte
	return func(b *testing.B) {
		for b.Loop() {
			sums = h.AppendSums(sums[:0], data)
		}
	}, nil
}

// benchTime is enough for thousands of blocks, and short enough for turns.
const benchTime = "200ms"

var initTesting = sync.OnceValue(func() error {
	testing.Init() // adds to the default flags, which are not those of this program
	return flag.Set("test.benchtime", benchTime)
})

// benchmark returns the measurement of the time of one iteration of f.
func benchmark(f func(*testing.B)) measurement {
	return func(context.Context) (float64, error) {
		if err := initTesting(); err != nil {
			return 0, err
		}
		r := testing.Benchmark(f)
		if r.N == 0 {
			return 0, errors.New("the benchmark failed")
		}
		return r.T.Seconds() / float64(r.N), nil
	}
}
