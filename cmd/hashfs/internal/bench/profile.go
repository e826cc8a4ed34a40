package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// profileLines is how much of a profile the document shows.
const profileLines = 10

// profile runs the side of hashfs once more under perf(1), with all that runs
// on the machine meanwhile, and returns where the time went: percentages of
// what was sampled, by program, library and function. Without perf there is
// none.
func (l *lab) profile(ctx context.Context, run measurement) ([]string, error) {
	if l.tools.perf == "" {
		return nil, nil
	}
	samples := filepath.Join(l.dir, "perf.data")
	defer os.Remove(samples)
	cmd := exec.CommandContext(ctx, l.tools.perf, "record", "--quiet", "-a", "-F", "499", "-o", samples)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	time.Sleep(200 * time.Millisecond) // until it records
	_, err := run(ctx)
	if err2 := cmd.Process.Signal(os.Interrupt); err == nil {
		err = err2
	}
	_ = cmd.Wait() // it says that it was interrupted
	if err != nil {
		return nil, err
	}
	report, err := command(ctx, l.tools.perf, "report", "-i", samples, "--stdio", "--quiet", "--sort", "comm,dso,symbol")
	if err != nil {
		return nil, err
	}
	return parseProfile(string(report)), nil
}

// parseProfile returns the first lines of a report of perf, without its
// columns' padding. What the idle task does is called idle.
func parseProfile(report string) []string {
	var lines []string
	idle := 0.0
	for line := range strings.Lines(report) {
		words := strings.Fields(line)
		if len(words) < 4 || !strings.HasSuffix(words[0], "%") {
			continue
		}
		if words[1] == "swapper" {
			var percent float64
			if _, err := fmt.Sscanf(words[0], "%f%%", &percent); err == nil {
				idle += percent
			}
			continue
		}
		if len(lines) < profileLines {
			// Columns that this machine cannot fill.
			lines = append(lines, strings.TrimRight(strings.Join(words, " "), " -"))
		}
	}
	if idle > 0 {
		lines = append(lines, fmt.Sprintf("%.2f%% idle", idle))
	}
	return lines
}
