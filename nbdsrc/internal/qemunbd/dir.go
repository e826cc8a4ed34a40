package qemunbd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	dirPrefix  = "hashfs-nbd-"
	socketName = "socket" // where clients come: a link to the child's, once that was checked
	childName  = "child"
	maxSocket  = 107 // bytes of a unix socket's path, unix(7)
	rootDir    = "/run/hashfs"
)

// A socketDir is a directory of mode 0700 for the socket of one child. It is locked while in
// use, so that what a killed process left behind can be told and is removed.
type socketDir struct {
	path string
	lock *os.File
}

// newSocketDir makes a directory in the first of the runtime directories that
// takes it.
func newSocketDir() (*socketDir, error) {
	var errs []error
	for _, parent := range runtimeDirs() {
		d, err := newSocketDirIn(parent)
		if err == nil {
			return d, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no directory for a socket: %w", errs[len(errs)-1])
}

// runtimeDirs returns where directories of ours may be, the best first. One
// that another user could exchange for his own is no good.
func runtimeDirs() []string {
	var dirs []string
	if x := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(x) && private(x) {
		dirs = append(dirs, x)
	}
	if os.Geteuid() == 0 && (os.Mkdir(rootDir, 0o700) == nil || private(rootDir)) {
		dirs = append(dirs, rootDir)
	}
	return append(dirs, os.TempDir())
}

// private reports whether path is a directory of ours that nobody else writes.
func private(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR &&
		st.Uid == uint32(os.Geteuid()) && st.Mode&0o022 == 0
}

func newSocketDirIn(parent string) (*socketDir, error) {
	sweep(parent)
	for {
		path, err := os.MkdirTemp(parent, dirPrefix) // mode 0700
		if err != nil {
			return nil, err
		}
		d, err := lockDir(path)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.ENOENT) {
			continue // a sweep of another process's took it for left behind
		}
		if err == nil && len(d.socket()) > maxSocket {
			err = fmt.Errorf("the path of the socket %s would have more than %d bytes", d.socket(), maxSocket)
			d.remove()
		}
		return d, err
	}
}

// lockDir opens a directory and locks it, without waiting.
func lockDir(path string) (*socketDir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	d := &socketDir{path, os.NewFile(uintptr(fd), path)}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		d.lock.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if _, err := os.Lstat(path); err != nil {
		d.lock.Close()
		return nil, err
	}
	return d, nil
}

// sweep removes the directories of processes that were killed.
func sweep(parent string) {
	entries, _ := os.ReadDir(parent) // what cannot be listed is left
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		if !strings.HasPrefix(e.Name(), dirPrefix) || !private(path) {
			continue
		}
		if d, err := lockDir(path); err == nil {
			d.remove()
		}
	}
}

func (d *socketDir) socket() string { return filepath.Join(d.path, socketName) }
func (d *socketDir) child() string  { return filepath.Join(d.path, childName) }

// bar keeps clients away from the next child, and admit lets them in. A link
// leaves the socket to the child, to be removed when it ends.
func (d *socketDir) bar()         { _ = os.Remove(d.socket()) }
func (d *socketDir) admit() error { return os.Symlink(childName, d.socket()) }

func (d *socketDir) remove() {
	d.bar()
	_ = os.Remove(d.child()) // qemu-nbd does so itself, if it can
	_ = os.Remove(d.path)
	d.lock.Close()
}
