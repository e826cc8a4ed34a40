package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// A fioResult is what fio says of one direction of its work.
type fioResult struct {
	IOPS    float64 `json:"iops"`
	Bytes   float64 `json:"io_bytes"`
	PerSec  float64 `json:"bw_bytes"` // bytes
	Latency struct {
		Percentile map[string]float64 `json:"percentile"` // ns
	} `json:"clat_ns"`
}

// tail returns the 99.9th percentile of the latency, in seconds.
func (r fioResult) tail() float64 { return r.Latency.Percentile["99.900000"] / 1e9 }

// seconds returns how long the work took, without fio's own start.
func (r fioResult) seconds() float64 { return r.Bytes / r.PerSec }

// fio runs one job, which reads or writes, and no both.
func (l *lab) fio(ctx context.Context, path string, args ...string) (fioResult, error) {
	if err := need("fio", l.tools.fio); err != nil {
		return fioResult{}, err
	}
	argv := append([]string{
		l.tools.fio, "--output-format=json", "--name=bench", "--filename=" + path, "--group_reporting",
		"--allow_file_create=0",
		"--invalidate=0",   // the page cache is as we made it
		"--randrepeat=0",   // other places each time
		"--norandommap=1",  // no memory of what was done already
		"--fallocate=none", // the file is there
	}, args...)
	out, err := command(ctx, argv...)
	if err != nil {
		return fioResult{}, err
	}
	return parseFio(out)
}

// randomJob are the arguments for 4 KiB at a time in random places.
func (l *lab) randomJob(rw string, jobs int) []string {
	return []string{
		"--rw=" + rw, "--bs=4k", "--ioengine=psync", fmt.Sprintf("--numjobs=%d", jobs),
		"--time_based", fmt.Sprintf("--runtime=%dms", l.fioTime().Milliseconds()),
	}
}

// fioTime is how long one run of random requests lasts: for the 99.9th
// percentile, thousands of them.
func (l *lab) fioTime() time.Duration {
	if l.quick {
		return time.Second
	}
	return 4 * time.Second
}

func parseFio(out []byte) (fioResult, error) {
	// Warnings may come first.
	if i := bytes.IndexByte(out, '{'); i >= 0 {
		out = out[i:]
	}
	var report struct {
		Jobs []struct{ Read, Write fioResult }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return fioResult{}, fmt.Errorf("output of fio: %w", err)
	}
	if len(report.Jobs) != 1 {
		return fioResult{}, fmt.Errorf("output of fio: %d jobs, not one", len(report.Jobs))
	}
	r := report.Jobs[0].Read
	if r.Bytes == 0 {
		r = report.Jobs[0].Write
	}
	if r.Bytes == 0 || r.PerSec == 0 {
		return r, fmt.Errorf("output of fio: nothing was read or written")
	}
	return r, nil
}
