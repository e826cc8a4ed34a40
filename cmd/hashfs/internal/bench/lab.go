package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A lab is where experiments are made: the data, the programs, and what was
// mounted and is to go away.
type lab struct {
	*options
	data  *dataSet
	tools tools
	dir   string // for mounts and small files
}

func newLab(ctx context.Context, o *options) (*lab, error) {
	for _, path := range []*string{&o.hashfs, &o.loopback, &o.nbdsrc} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(abs); err != nil {
			return nil, fmt.Errorf("%w: build it first, as make bench does", err)
		}
		*path = abs
	}
	dir, err := os.MkdirTemp("", "hashfs-bench-")
	if err != nil {
		return nil, err
	}
	l := &lab{options: o, dir: dir, tools: findTools(ctx, os.Getenv("NBDCOPY"))}
	if l.data, err = newDataSet(o.dir, o.quick); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return l, nil
}

func (l *lab) close() {
	l.data.remove()
	os.RemoveAll(l.dir)
}

// An experiment gives one row, or several that come from the same runs. When it
// fails the rows say so, without a result.
type experiment struct {
	name string
	rows []*row
	run  func(ctx context.Context, l *lab, rows []*row) error
}

// experiments makes all the experiments, and returns their rows and how many of
// them failed.
func (l *lab) experiments(ctx context.Context) (rows []*row, failed int) {
	for _, e := range allExperiments() {
		if !l.only.MatchString(e.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s\n", e.name)
		err := e.run(ctx, l, e.rows)
		if ctx.Err() != nil {
			return nil, 0
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", e.name, err)
			var missing missingTool
			if !errors.As(err, &missing) {
				failed++
			}
			for _, r := range e.rows {
				r.missing = err.Error()
			}
		}
		rows = append(rows, e.rows...)
	}
	return rows, failed
}

// A measurement runs one side once.
type measurement func(context.Context) (float64, error)

// race runs the two sides in turns and fills the row, which gets a profile of ours
// where the target is missed.
func (l *lab) race(ctx context.Context, r *row, ours, theirs measurement) error {
	if err := l.take(ctx, r, ours, theirs); err != nil {
		return err
	}
	return l.explain(ctx, r, ours)
}

// explain gives the row the profile of a run if it misses its target.
func (l *lab) explain(ctx context.Context, r *row, run measurement) error {
	return r.explain(func() ([]string, error) { return l.profile(ctx, run) })
}

// take runs the two sides in turns, and fills the row. Who comes first changes
// each time, so that neither gains by it. A side that is nil is left out.
func (l *lab) take(ctx context.Context, r *row, ours, theirs measurement) error {
	sides := []struct {
		run     measurement
		samples *[]float64
	}{{ours, &r.ours}, {theirs, &r.theirs}}
	return l.turns(func(i int) error {
		for j := range sides {
			s := sides[(i+j)%2]
			if s.run == nil {
				continue
			}
			v, err := s.run(ctx)
			if err != nil {
				return err
			}
			if i > 0 {
				*s.samples = append(*s.samples, v)
			}
		}
		return nil
	})
}

// enoughTime is how long turns go on that are more than the least.
const enoughTime = 45 * time.Second

// howOften says how many turns there are that count.
func (l *lab) howOften() string {
	if l.mostRuns <= l.runs {
		return fmt.Sprint(l.runs)
	}
	return fmt.Sprintf("%d, and up to %d as long as a row takes less than %v", l.runs, l.mostRuns, enoughTime)
}

// turns calls turn with 0, which is not to count, and then with 1 and so on: runs
// times, and up to mostRuns as long as all of that has taken less than enoughTime. The
// median of more is less of a chance where others share the machine.
func (l *lab) turns(turn func(i int) error) error {
	start := time.Now()
	for i := 0; i <= l.runs || i <= l.mostRuns && time.Since(start) < enoughTime; i++ {
		if err := turn(i); err != nil {
			return err
		}
	}
	return nil
}
