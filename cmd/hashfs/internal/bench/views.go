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
		why:    "cat asks for 128 KiB at a time, the digests of 256 MiB, and nothing is hashed before it is asked for.",
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
		places := rand.New(rand.NewPCG(5, uint64(l.runs)))
		at := [2]func() int64{
			func() int64 { return 0 },
			func() int64 { return places.Int64N((l.data.size-blockSize)/4096+1) * 4096 },
		}
		err = l.turns(func(i int) error {
			first, again, err := l.rewrite(ctx, f, at)
			if err != nil || i == 0 {
				return err
			}
			for j, r := range rows {
				r.ours = append(r.ours, again[j])
				r.theirs = append(r.theirs, first)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for j, r := range rows {
			err := r.explain(func() ([]string, error) { return l.profileRewrites(ctx, f, at[j]) })
			if err != nil {
				return err
			}
		}
		return nil
	}}
}

// rewrite mounts a file and gives the time of the first checksum, and those of the
// checksums after writes to either place.
func (l *lab) rewrite(ctx context.Context, path string, at [2]func() int64) (first float64, again [2]float64, err error) {
	w, err := l.openRewriter(ctx, path)
	if err != nil {
		return 0, again, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	var times [2][]float64
	for i := range 2 * rewrites {
		took, err := w.again(ctx, at[i%2]())
		if err != nil {
			return 0, again, err
		}
		times[i%2] = append(times[i%2], took)
	}
	return w.first, [2]float64{median(times[0]), median(times[1])}, nil
}

// profileRewrites shows where the time goes in checksums after writes.
func (l *lab) profileRewrites(ctx context.Context, path string, at func() int64) (profile []string, err error) {
	w, err := l.openRewriter(ctx, path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	return l.profile(ctx, func(ctx context.Context) (float64, error) {
		for range 16 * rewrites {
			if _, err := w.again(ctx, at()); err != nil {
				return 0, err
			}
		}
		return 0, nil
	})
}

// A rewriter writes to an image and reads its checksum again.
type rewriter struct {
	mount *mountPoint
	image *os.File
	first float64 // how long the first checksum took, seconds
	fresh io.Reader
	buf   []byte
}

func (l *lab) openRewriter(ctx context.Context, path string) (*rewriter, error) {
	if err := warm(path); err != nil {
		return nil, err
	}
	m, err := l.mount(ctx, path, "--writable")
	if err != nil {
		return nil, err
	}
	w := &rewriter{mount: m, fresh: random(6), buf: make([]byte, blockSize)}
	if w.image, err = os.OpenFile(m.in("image"), os.O_RDWR, 0); err == nil {
		w.first, err = timedRead(m.in("checksum"))
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// again writes a block and returns how long the next checksum took, in seconds.
func (w *rewriter) again(ctx context.Context, off int64) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(w.fresh, w.buf); err != nil {
		return 0, err
	}
	if _, err := w.image.WriteAt(w.buf, off); err != nil {
		return 0, fmt.Errorf("write: %w", err)
	}
	return timedRead(w.mount.in("checksum"))
}

func (w *rewriter) close() error {
	if w.image != nil {
		w.image.Close()
	}
	return w.mount.end()
}
