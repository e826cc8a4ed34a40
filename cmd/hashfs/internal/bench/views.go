package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

func freshChecksumExperiment() *experiment {
	return &experiment{"fresh-checksum", []*row{{
		work: "cat checksum on a fresh mount, 4 GiB of random data", peer: "hashfs sum FILE",
		target: atMost(1.10), unit: seconds,
		why:    "The same work, asked for through the kernel and done by a daemon.",
		limits: "The mount itself is made before the time counts, while that of hashfs sum includes its start.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		f, err := l.data.get(ctx, smallPieces)
		if err != nil {
			return err
		}
		return l.race(ctx, rows[0], warmed(f, l.onFreshMount(f, "checksum", l.tools.cat)), warmed(f, timed(l.sum(f)...)))
	}}
}

func freshDigestsExperiment() *experiment {
	return &experiment{"fresh-digests", []*row{{
		work: "cat digests.bin on a fresh mount, 4 GiB of random data", peer: "cat checksum on a fresh mount",
		target: atMost(1.05), unit: seconds,
		why:    "cat asks for 128 KiB at a time, the digests of 256 MiB, and between two requests nothing is hashed unless it is looked ahead.",
		limits: "A program that asks for less at a time spends more on asking.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		f, err := l.data.get(ctx, smallPieces)
		if err != nil {
			return err
		}
		return l.race(ctx, rows[0],
			warmed(f, l.onFreshMount(f, "digests.bin", l.tools.cat)),
			warmed(f, l.onFreshMount(f, "checksum", l.tools.cat)))
	}}
}

// rewrites is how many times a run writes and reads the checksum again.
const rewrites = 16

func againExperiment() *experiment {
	return &experiment{"again", []*row{{
		work: "checksum after a write of 64 KiB at the start of 4 GiB", peer: "the first one",
		target: atMost(1.0 / 400), unit: seconds,
		why:    "The start is the worst place: the block is hashed, then all digests are, 2 MiB of them, but none of the data.",
		limits: "The time is that of open, read and close in a process that runs already; starting cat takes longer than that.",
	}, {
		work: "the same, after a write in a random place", peer: "the first one",
		target: atMost(1.0 / 400), unit: seconds,
		why:    "Checkpoints of the outer hash let it begin shortly before the block that was written: half of the digests on average.",
		limits: "As above; the writes begin at multiples of 4 KiB, and so touch two blocks nearly always.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		f, err := l.data.get(ctx, largePieces)
		if err != nil {
			return err
		}
		for i := range l.runs + 1 {
			var samples [3]float64
			if err := l.rewrite(ctx, f, &samples); err != nil {
				return err
			}
			if i == 0 {
				continue
			}
			for j, r := range rows {
				r.ours = append(r.ours, samples[j])
				r.theirs = append(r.theirs, samples[2])
			}
		}
		return nil
	}}
}

// rewrite mounts a file, writes to it, and gives the times of the checksum after
// writes at the start, of that after writes in random places, and of the first.
func (l *lab) rewrite(ctx context.Context, path string, samples *[3]float64) (err error) {
	if err := warm(path); err != nil {
		return err
	}
	m, err := l.mount(ctx, path, "--writable")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.end()) }()
	image, err := os.OpenFile(m.in("image"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	if samples[2], err = timedRead(m.in("checksum")); err != nil {
		return err
	}
	buf := make([]byte, blockSize)
	places := rand.New(rand.NewPCG(5, uint64(l.runs)))
	fresh := random(6)
	var times [2][]float64
	for i := range 2 * rewrites {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := io.ReadFull(fresh, buf); err != nil {
			return err
		}
		off := int64(0)
		if i%2 == 1 {
			off = places.Int64N((l.data.size-blockSize)/4096+1) * 4096
		}
		if _, err := image.WriteAt(buf, off); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		took, err := timedRead(m.in("checksum"))
		if err != nil {
			return err
		}
		times[i%2] = append(times[i%2], took)
	}
	samples[0], samples[1] = median(times[0]), median(times[1])
	return nil
}
