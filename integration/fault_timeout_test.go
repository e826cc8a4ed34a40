package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// setRequestTimeout gives mounts that are made until restore a time, in
// seconds, after which the kernel ends the connection over a request without an
// answer.
func setRequestTimeout(t testing.TB, seconds string) (restore func()) {
	t.Helper()
	const path = "/proc/sys/fs/fuse/default_request_timeout"
	before, err := os.ReadFile(path)
	if err != nil {
		t.Skip("this kernel has no timeout of requests: ", err)
	}
	set := func(value string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if os.WriteFile(path, before, 0o644) != nil {
		t.Skip(path, " cannot be written, and so not be restored")
	}
	restored := false
	restore = func() {
		if !restored {
			restored = true
			set(strings.TrimSpace(string(before)))
		}
	}
	t.Cleanup(restore)
	set(seconds)
	return restore
}

// Where the kernel ends a connection over a request that takes too long, a read
// that needs longer fails with ETIMEDOUT just before. The mount lives on, the
// work goes on, and who reads again gets what it came to.
//
// It does not run at the same time as others, whose mounts would have the
// timeout too.
func TestTimeout_of_requests(t *testing.T) {
	needRoot(t)
	const size = 20 * blockSize
	control := filepath.Join(scratch(t), "control")
	path := serveSource(t, size, "--filter=pause", "pause-control="+control)
	restore := setRequestTimeout(t, "2")
	d := mountDisk(t, path)
	restore()
	tell := newPause(t, control)

	tell("p")
	names := []string{"checksum", "digests.bin", "sums/md5"}
	if !testing.Short() {
		// Longer than the kernel takes to look for requests that are too old,
		// which it does every 15 seconds.
		names = append(names, names...)
		names = append(names, names...)
	}
	for _, name := range names {
		begun := time.Now()
		_, err := readAll(d.path("disk", name))
		wantErrno(t, name, err, unix.ETIMEDOUT)
		if took := time.Since(begun); took < time.Second || took > 10*time.Second {
			t.Errorf("%s fails after %v, want between one and two seconds", name, took)
		}
	}
	d.info("disk")
	tell("r")
	d.checkDigests("disk", newOracle(pattern(size)))
}
