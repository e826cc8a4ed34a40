// Command bench measures hashfs against what a user could pick instead: the
// same work, on the same data, in turns with hashfs and its peer, so that both
// see the same machine. It prints a table of the ratios of medians, each with
// what it has to reach, and writes docs/performance.md.
//
//	bench -hashfs FILE -loopback FILE -nbdsrc FILE [-dir DIR] [-o FILE] [-quick] [-only REGEXP]
//
// It makes its data, some 17 GiB, in a new directory, by default where temporary
// files go, and removes it at the end; it wants memory enough to hold that in
// the page cache. A peer that is not installed leaves its rows without a result.
// $NBDCOPY names an nbdcopy that has --blkhash (1.24 and later), which may be a
// script; by default it is the one on the path.
//
// Times are those of a whole process, from its start to its end, unless a row
// says otherwise. Each side is run once without counting, to warm up.
//
// The exit status is 0 however the comparison goes, and 1 if something could
// not be measured for another reason than a missing tool.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
)

type options struct {
	dir      string // for the data, "" is the default for temporary files
	out      string // the document, "" writes none
	hashfs   string
	loopback string
	nbdsrc   string // the test binary of that package
	quick    bool
	runs     int            // of each side, at least
	mostRuns int            // see lab.turns
	only     *regexp.Regexp // names of experiments; nil is all
}

const (
	fullRuns     = 7
	mostFullRuns = 21
	quickRuns    = 3
)

func parse(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.hashfs, "hashfs", "build/hashfs", "the program to measure")
	f.StringVar(&o.loopback, "loopback", "build/bench/loopback", "the bare file system to measure writes against")
	f.StringVar(&o.nbdsrc, "nbdsrc", "build/bench/nbdsrc.test", "the test binary of package nbdsrc, for its benchmarks")
	f.StringVar(&o.dir, "dir", "", "where to make the data (default: where temporary files go)")
	f.StringVar(&o.out, "o", "", "write the document to this file (default: only print the table)")
	f.IntVar(&o.runs, "runs", 0, fmt.Sprintf("how often each side is run (default %d to %d, %d with -quick)", fullRuns, mostFullRuns, quickRuns))
	f.BoolVar(&o.quick, "quick", false, "little data and short runs, to try the harness itself: the numbers mean nothing")
	only := f.String("only", "", "regular expression: the experiments to do")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.runs < 0:
		return nil, fmt.Errorf("-runs %d: cannot be negative", o.runs)
	case o.out != "" && (o.quick || *only != ""):
		return nil, errors.New("-o together with -quick or -only: the document is for whole and true measurements")
	case o.runs == 0 && o.quick:
		o.runs = quickRuns
	case o.runs == 0:
		o.runs, o.mostRuns = fullRuns, mostFullRuns
	}
	return o, nil
}

func main() {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options) error {
	l, err := newLab(ctx, o)
	if err != nil {
		return err
	}
	defer l.close()
	about := describe(ctx, l)
	rows, failed := l.experiments(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err := printTable(os.Stdout, rows); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d experiments failed", failed)
	}
	if o.out == "" {
		return nil
	}
	return writeDocument(o.out, about, rows)
}
