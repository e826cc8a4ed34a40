package mounts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A Daemon is the process that serves a mount.
type Daemon struct {
	PID int
	fd  int // of the process, so that no other is taken for it
}

// FindDaemon returns the daemon of that process ID, as Ping told it. It reports false
// where that is not known here, as in another PID namespace, or is not ours to know.
func FindDaemon(pid int) (*Daemon, bool) {
	if pid <= 0 {
		return nil, false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, false
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && to == "/dev/fuse" {
			return &Daemon{pid, fd}, true
		}
	}
	unix.Close(fd)
	return nil, false
}

// Await waits until the daemon has ended, and reports false if that took longer than
// limit, or ctx was done.
func (d *Daemon) Await(ctx context.Context, limit time.Duration) bool {
	for end := time.Now().Add(limit); ctx.Err() == nil && time.Now().Before(end); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}, 100)
		if err == nil && n > 0 {
			return true
		}
	}
	return false
}

// Close lets go of the daemon.
func (d *Daemon) Close() { unix.Close(d.fd) }
