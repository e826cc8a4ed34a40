package main

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/perf/benchfmt"
)

// callExperiment brackets the price of libnbd's being a C library.
func callExperiment() *experiment {
	return &experiment{"cgo", []*row{{
		work: "a read of 4 KiB from nbdkit's memory through nbdsrc, one after the other", peer: "a call of C that does nothing",
		unit: seconds,
		why: "Each read has a few calls of C, and waits for a server on the same machine, which is what it costs: " +
			"that libnbd is called from Go is a small part of it.",
		limits: "Of a call it is the price where no other goroutine wants the processor.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		if err := l.needServers(); err != nil {
			return missingTool(err.Error())
		}
		return l.race(ctx, rows[0],
			l.goBenchmark("^BenchmarkReadAt$/^connections=1$/^callers=1$/^length=4096$"),
			l.goBenchmark("^BenchmarkNothing$"))
	}}
}

// goBenchmark returns the measurement of the time of one operation of a Go
// benchmark of package nbdsrc.
func (l *lab) goBenchmark(pattern string) measurement {
	return func(ctx context.Context) (float64, error) {
		out, err := command(ctx, l.nbdsrc, "-test.run=^$", "-test.bench="+pattern, "-test.benchtime="+benchTime)
		if err != nil {
			return 0, err
		}
		return parseBenchmark(out, pattern)
	}
}

// parseBenchmark returns the seconds of one operation in what the testing
// package printed of a benchmark.
func parseBenchmark(out []byte, pattern string) (float64, error) {
	r := benchfmt.NewReader(bytes.NewReader(out), pattern)
	for r.Scan() {
		if result, ok := r.Result().(*benchfmt.Result); ok {
			if v, ok := result.Value("sec/op"); ok {
				return v, nil
			}
		}
	}
	return 0, fmt.Errorf("%s: no result in %q", pattern, firstLine(out))
}
