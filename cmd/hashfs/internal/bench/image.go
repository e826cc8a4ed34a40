package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// readRows are the rows of reading image while a checksum runs.
func readRows(how, why, limits string) []*row {
	return []*row{{
		work: "4 KiB random reads of image" + how + " while a checksum runs: 99.9th percentile", peer: "while none runs",
		target: atMost(10), unit: seconds, why: why, limits: limits,
	}, {
		work: "the same, reads a second", peer: "while none runs",
		target: atLeast(0.5), unit: perSec,
		why:    "The runs of the row above.",
		limits: "One client that waits for each read.",
	}}
}

func readsExperiment() *experiment {
	return &experiment{"reads", readRows("",
		"The kernel reads a read-only image past the daemon, and the workers that hash have the lowest priority.",
		"With more cores than workers there would be nothing to yield; data that is not in the page cache would wait for the storage as well."),
		func(ctx context.Context, l *lab, rows []*row) error {
			f, err := l.data.get(ctx, smallPieces)
			if err != nil {
				return err
			}
			return l.readWhileHashing(ctx, f, rows)
		}}
}

func writableReadsExperiment() *experiment {
	return &experiment{"reads-writable", readRows(" mounted writable",
		"Each read goes through the daemon, which hashes in threads of the lowest priority, and has goroutines enough beside them to answer.",
		"With more cores than workers there would be nothing to yield."),
		func(ctx context.Context, l *lab, rows []*row) error {
			f, err := l.data.get(ctx, largePieces)
			if err != nil {
				return err
			}
			return l.readWhileHashing(ctx, f, rows, "--writable")
		}}
}

func (l *lab) readWhileHashing(ctx context.Context, path string, rows []*row, flags ...string) (err error) {
	m, err := l.mount(ctx, path, flags...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.end()) }()
	var last fioResult // of one run, which gives a sample to each row
	fio := func(ctx context.Context) (float64, error) {
		last, err = l.fio(ctx, m.in("image"), l.randomJob("randread", 1)...)
		return last.tail(), err
	}
	keep := func(samples *[]float64, run measurement) measurement {
		first := true // does not count
		return func(ctx context.Context) (float64, error) {
			v, err := run(ctx)
			if err == nil && !first {
				*samples = append(*samples, last.IOPS)
			}
			first = false
			return v, err
		}
	}
	busy := func(ctx context.Context) (float64, error) {
		stop := keepHashing(ctx, path, m.in("checksum"))
		v, err := fio(ctx)
		return v, errors.Join(err, stop())
	}
	if err := l.take(ctx, rows[0], warmed(path, keep(&rows[1].ours, busy)), warmed(path, keep(&rows[1].theirs, fio))); err != nil {
		return err
	}
	return errors.Join(l.explain(ctx, rows[0], warmed(path, busy)), l.explain(ctx, rows[1], warmed(path, busy)))
}

// keepHashing reads a checksum over and over, until the function that it
// returns is called. A new time of change of the file makes hashfs forget all
// it knows each time.
func keepHashing(ctx context.Context, path, checksum string) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		for {
			now := time.Now()
			err := os.Chtimes(path, now, now)
			if err == nil {
				_, err = timedRead(checksum)
			}
			if err != nil {
				err = fmt.Errorf("hash in the background: %w", err)
			}
			if err != nil || ctx.Err() != nil {
				done <- err
				return
			}
		}
	}()
	return func() error {
		cancel()
		return <-done
	}
}

// writesExperiment writes with a number of clients at once. With known, the
// digests of all blocks were computed before.
func writesExperiment(jobs int, known bool) *experiment {
	r := &row{
		work: "4 KiB random writes to image, nothing else open, one client", peer: "go-fuse's loopback example, the same flags",
		target: atLeast(0.95), unit: perSec,
		why:    "Beside writing, hashfs looks whether somebody else changed the file, before and after, and marks the blocks unknown.",
		limits: "The bytes go to the page cache of the file below; with writes to a disk, its time would hide any difference.",
	}
	name := fmt.Sprintf("writes-%d", jobs)
	if known {
		name += "-known"
		r.work = "the same, after a checksum, so that all digests are known"
		r.why = "What is known costs no more to forget than what is not."
		r.limits = "As above."
	}
	if jobs > 1 {
		r.work = fmt.Sprintf("the same, %d clients", jobs)
		r.why = "Writes to different places do not wait for each other's I/O."
	}
	return &experiment{name, []*row{r}, func(ctx context.Context, l *lab, rows []*row) error {
		f, err := l.data.get(ctx, largePieces)
		if err != nil {
			return err
		}
		mount := func(ctx context.Context) (*mountPoint, error) { return l.mountForWrites(ctx, f, known) }
		err = l.take(ctx, rows[0],
			l.writes(f, jobs, "image/image", mount),
			l.writes(f, jobs, filepath.Base(f), func(ctx context.Context) (*mountPoint, error) {
				return l.mountLoopback(ctx, filepath.Dir(f))
			}))
		if err != nil {
			return err
		}
		return rows[0].explain(func() ([]string, error) { return l.profileWrites(ctx, jobs, mount) })
	}}
}

// profileWrites shows where the time goes in the writes alone, without what they
// need before.
func (l *lab) profileWrites(ctx context.Context, jobs int, mount func(context.Context) (*mountPoint, error)) (profile []string, err error) {
	m, err := mount(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.end()) }()
	return l.profile(ctx, func(ctx context.Context) (float64, error) {
		r, err := l.fio(ctx, m.in("image"), l.randomJob("randwrite", jobs)...)
		return r.IOPS, err
	})
}

func (l *lab) mountForWrites(ctx context.Context, path string, known bool) (*mountPoint, error) {
	m, err := l.mount(ctx, path, "--writable")
	if err != nil || !known {
		return m, err
	}
	if _, err := timedRead(m.in("checksum")); err != nil {
		return nil, errors.Join(err, m.end())
	}
	return m, nil
}

// writes returns the measurement of how many random writes a second there are
// to a file of a new mount of what path holds.
func (l *lab) writes(path string, jobs int, file string, mount func(context.Context) (*mountPoint, error)) measurement {
	return func(ctx context.Context) (iops float64, err error) {
		if err := errors.Join(warm(path), flush(path)); err != nil {
			return 0, err
		}
		m, err := mount(ctx)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, m.end()) }()
		r, err := l.fio(ctx, filepath.Join(m.dir, file), l.randomJob("randwrite", jobs)...)
		return r.IOPS, err
	}
}

// flush writes back what earlier runs have left, so that the kernel does not do
// so during the next.
func flush(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
