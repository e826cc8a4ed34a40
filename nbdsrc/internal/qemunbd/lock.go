package qemunbd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrInUse: another process has a file of the chain under QEMU's lock.
var ErrInUse = errors.New("in use")

// QEMU locks byte 100+i to have permission i and byte 200+i to deny it to
// others (block/file-posix.c), where i is 0 to read consistently, 1 to write
// and 3 to resize.
var (
	readConflicts  = []int64{101, 103, 200}
	writeConflicts = []int64{101, 103, 200, 201, 203}
)

// findConflict looks for the lock of somebody else that keeps QEMU from opening
// a file of the chain. It returns nil if there is none now.
func (c *chain) findConflict() error {
	for _, m := range c.members {
		conflicts := readConflicts
		if m.writable {
			conflicts = writeConflicts
		}
		for _, at := range conflicts {
			lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: at, Len: 1}
			fd := m.file.Fd()
			if err := retry(func() error { return unix.FcntlFlock(fd, unix.F_OFD_GETLK, &lk) }); err != nil || lk.Type == unix.F_UNLCK {
				continue
			}
			return fmt.Errorf("%s is %w by %s: end that first", show(m.place.path), ErrInUse, m.holder(int(lk.Pid)))
		}
	}
	return nil
}

// holder says in words who has a lock on the file. The kernel tells no process
// for locks of open files, but each process's fdinfo lists its own (proc(5)).
func (m *member) holder(pid int) string {
	infos, _ := filepath.Glob("/proc/[0-9]*/fdinfo/*") // what cannot be listed is left out
	for _, info := range infos {
		part := strings.Split(info, "/") // "", proc, PID, fdinfo, FD
		data, err := os.ReadFile(info)
		if err != nil || !bytes.Contains(data, []byte("lock:\t")) {
			continue
		}
		var st unix.Stat_t
		if unix.Stat("/proc/"+part[2]+"/fd/"+part[4], &st) == nil && sameFile(&st, &m.st) {
			return process(part[2])
		}
	}
	if pid > 0 {
		return process(strconv.Itoa(pid))
	}
	return "another process"
}

func process(pid string) string {
	if pid == strconv.Itoa(os.Getpid()) {
		return "this process itself"
	}
	comm, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil {
		return "process " + pid
	}
	return fmt.Sprintf("%q (process %s)", bytes.TrimSpace(comm), pid)
}
