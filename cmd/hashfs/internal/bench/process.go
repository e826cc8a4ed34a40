package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// timed returns the measurement of a command's time from start to end. Its
// output goes to /dev/null, opened as such.
func timed(argv ...string) measurement {
	return func(ctx context.Context) (float64, error) {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		var complaint bytes.Buffer
		cmd.Stderr = &complaint
		start := time.Now()
		err := cmd.Run()
		took := time.Since(start)
		if err != nil {
			return 0, commandError(argv, err, complaint.Bytes())
		}
		return took.Seconds(), nil
	}
}

// peakMemory returns the measurement of the most memory, in MiB, that a command
// had resident. It is GNU time that asks: what the kernel says of a child
// includes what its parent had when it was started, and GNU time has little.
func (l *lab) peakMemory(argv ...string) measurement {
	return func(ctx context.Context) (float64, error) {
		if err := need("GNU time", l.tools.time); err != nil {
			return 0, err
		}
		report := filepath.Join(l.dir, "time")
		if _, err := command(ctx, append([]string{l.tools.time, "-f", "%M", "-o", report}, argv...)...); err != nil {
			return 0, err
		}
		text, err := os.ReadFile(report)
		if err != nil {
			return 0, err
		}
		kib, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		return kib / 1024, err
	}
}
