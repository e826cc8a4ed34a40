package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var costOpens = flag.Int("cost.opens", 30_000, "files below blocks that TestCost_opens_of_blocks opens, a third of them before it begins to look")

// plainProgram returns the program built without the race detector, which takes
// several times the memory.
var plainProgram = sync.OnceValues(func() (string, error) {
	if !raceEnabled {
		return program, nil
	}
	path := program + ".plain"
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/hashfs").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
})

// mountPlainDisk mounts the file at path by that program.
func mountPlainDisk(t testing.TB, path string, flags ...string) *diskMount {
	t.Helper()
	plain, err := plainProgram()
	if err != nil {
		t.Fatal(err)
	}
	// The words that mountWith puts after these begin with the program that
	// it would run.
	o := mountOptions{via: []string{"sh", "-c", `shift; exec "$0" "$@"`, plain}}
	return &diskMount{mountWith(t, o, append(flags, "disk="+path)...), path, blockSize}
}

// resident returns the memory of the daemon in bytes: now, or at its most.
func (d *diskMount) resident(field string) int64 {
	d.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.daemon.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			var n int64
			if _, err := fmt.Sscan(rest, &n); err != nil {
				d.t.Fatal(err)
			}
			return n << 10
		}
	}
	d.t.Fatalf("no %s in %s", field, status)
	return 0
}

// An image that is one hole of 1000 GiB takes no memory for its blocks, however
// much of it was read.
func TestCost_memory_of_a_hole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "disk.img")
	writeSparse(t, path, 1000*gib)
	d := mountPlainDisk(t, path)
	if sum := d.read("disk", "checksum"); len(sum) != 65 {
		t.Errorf("checksum is %q", sum)
	}
	now, most := d.resident("VmRSS"), d.resident("VmHWM")
	t.Logf("%.1f MiB resident after the checksum, %.1f MiB at most", float64(now)/float64(mib), float64(most)/float64(mib))
	if now > 32*mib {
		t.Errorf("%.1f MiB are resident, want at most 32", float64(now)/float64(mib))
	}
}

// Files below blocks that were opened are forgotten again.
func TestCost_opens_of_blocks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "disk.img")
	writeSparse(t, path, 1000*gib)
	d := mountPlainDisk(t, path)
	open := func(from, to int) {
		for i := from; i < to; i++ {
			f, err := os.Open(d.path("disk", "blocks", fmt.Sprintf("%016x", int64(i)*blockSize)))
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
	}
	first := *costOpens / 3
	open(0, first)
	before := d.resident("VmRSS")
	open(first, *costOpens)
	after := d.resident("VmRSS")
	t.Logf("after %d opens %.1f MiB are resident, after %d %.1f MiB", first, float64(before)/float64(mib), *costOpens, float64(after)/float64(mib))
	// The garbage collector takes some MiB or gives them back; inodes that
	// were kept would take twenty.
	if grown := after - before; grown > 8*mib {
		t.Errorf("%d opens made the daemon grow by %.1f MiB", *costOpens-first, float64(grown)/float64(mib))
	}
}
