package qemunbd

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxSockets a child has when it has greeted one client: the one that it
// listens at, and that client's.
const maxSockets = 2

// checkFiles compares what the child has open with what it was given. QEMU
// reads the headers again, which may have been changed since they were checked.
func (ch *child) checkFiles() error {
	if ch.chain.remote {
		return nil // trusted, and none of our business
	}
	given, err := ch.plan.stats()
	if err != nil {
		return err
	}
	dir := fmt.Sprintf("/proc/%d/fd", ch.cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("see what %s has open: %w", program, err)
	}
	sockets := 0
	for _, e := range entries {
		var st unix.Stat_t
		name := dir + "/" + e.Name()
		if err := retry(func() error { return unix.Stat(name, &st) }); err != nil {
			continue // closed meanwhile
		}
		ok := true
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			ok = false
			for i := range given {
				ok = ok || sameFile(&given[i], &st)
			}
		case unix.S_IFBLK, unix.S_IFDIR:
			ok = false
		case unix.S_IFSOCK:
			sockets++
			ok = sockets <= maxSockets
		}
		if !ok {
			path, _ := os.Readlink(name)
			return fmt.Errorf("%w: %s has opened %s, which no header named when it was checked", ErrRefused, program, path)
		}
	}
	return nil
}

// stats returns the status of all files that the child was given.
func (p *plan) stats() ([]unix.Stat_t, error) {
	all := make([]unix.Stat_t, len(p.files))
	for i, f := range p.files {
		if err := unix.Fstat(int(f.Fd()), &all[i]); err != nil {
			return nil, fmt.Errorf("stat %s: %w", f.Name(), err)
		}
	}
	return all, nil
}
