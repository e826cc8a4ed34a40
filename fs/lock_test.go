package fs

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func newTestLocks(t *testing.T) *lockTable {
	path := filepath.Join(t.TempDir(), "locks")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return newLockTable(func() (*os.File, error) { return os.OpenFile(path, os.O_RDWR, 0) })
}

func lockOf(typ int, start, end uint64) *fuse.FileLock {
	return &fuse.FileLock{Typ: uint32(typ), Start: start, End: end}
}

var wholeFile = lockOf(unix.F_WRLCK, 0, math.MaxInt64)

func TestLocks_conflicts(t *testing.T) {
	a, b := lockOwner{id: 1}, lockOwner{id: 2}
	flockA, flockB := lockOwner{id: 1, flock: true}, lockOwner{id: 2, flock: true}
	for _, c := range []struct {
		name  string
		first lockOwner
		has   *fuse.FileLock
		owner lockOwner
		wants *fuse.FileLock
		want  error
	}{
		{"two owners", a, wholeFile, b, wholeFile, unix.EAGAIN},
		{"one owner by two handles", a, wholeFile, a, wholeFile, nil},
		{"apart", a, lockOf(unix.F_WRLCK, 0, 9), b, lockOf(unix.F_WRLCK, 10, 10), nil},
		{"touching", a, lockOf(unix.F_WRLCK, 0, 9), b, lockOf(unix.F_WRLCK, 9, 9), unix.EAGAIN},
		{"both read", a, lockOf(unix.F_RDLCK, 0, 9), b, lockOf(unix.F_RDLCK, 0, 9), nil},
		{"flock and flock", flockA, wholeFile, flockB, wholeFile, unix.EAGAIN},
		{"flock and fcntl do not meet", flockA, wholeFile, b, wholeFile, nil},
		{"unlocking what is another's", a, wholeFile, b, lockOf(unix.F_UNLCK, 0, math.MaxInt64), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			locks := newTestLocks(t)
			if err := locks.set(c.first, "first", c.has); err != nil {
				t.Fatal(err)
			}
			if err := locks.set(c.owner, "second", c.wants); err != c.want {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestLocks_end(t *testing.T) {
	a, b := lockOwner{id: 1}, lockOwner{id: 2}
	for _, c := range []struct {
		name string
		end  func(*lockTable)
		free bool
	}{
		{"at the owner's close", func(l *lockTable) { l.closed(a.id) }, true},
		{"not at another's close", func(l *lockTable) { l.closed(b.id) }, false},
		{"at the release of its handle", func(l *lockTable) { l.released("first") }, true},
		{"not at another's release", func(l *lockTable) { l.released("second") }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			locks := newTestLocks(t)
			if err := locks.set(a, "first", wholeFile); err != nil {
				t.Fatal(err)
			}
			c.end(locks)
			var found fuse.FileLock
			if err := locks.test(b, wholeFile, &found); err != nil {
				t.Fatal(err)
			}
			if free := found.Typ == unix.F_UNLCK; free != c.free {
				t.Errorf("free is %v, found %+v", free, found)
			}
			if !c.free && (found.Start != 0 || found.End != math.MaxInt64) {
				t.Errorf("found %+v, want the whole file", found)
			}
		})
	}
}

func TestLocks_waitEndsWithLockOrContext(t *testing.T) {
	locks := newTestLocks(t)
	a, b := lockOwner{id: 1}, lockOwner{id: 2}
	if err := locks.set(a, "first", wholeFile); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := locks.wait(ctx, b, "second", wholeFile); err != context.Canceled {
		t.Errorf("an interrupted wait ended with %v", err)
	}
	got := make(chan error)
	go func() { got <- locks.wait(t.Context(), b, "second", wholeFile) }()
	locks.closed(a.id)
	if err := <-got; err != nil {
		t.Errorf("the wait for a lock that was given up ended with %v", err)
	}
}
