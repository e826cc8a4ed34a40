package fs

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A lockTable keeps the locks that clients have on one image. Each lock owner
// of the kernel gets an open file description of its own, whose locks (OFD
// locks, fcntl(2), and flock(2)) then conflict as the owners' do: a process
// that opened the image twice has one owner for its POSIX locks, an OFD lock
// and a flock lock have one each.
type lockTable struct {
	open func() (*os.File, error)

	// mu guards owners and the handles of each.
	mu     sync.Mutex
	owners map[lockOwner]*locker
}

type lockOwner struct {
	id    uint64
	flock bool
}

// A locker holds the locks of one owner, taken through some handles. They end
// when the owner closes the image (POSIX) or the last of the handles goes.
type locker struct {
	file    *os.File
	handles map[any]bool
}

func newLockTable(open func() (*os.File, error)) *lockTable {
	return &lockTable{open: open, owners: map[lockOwner]*locker{}}
}

// lockFile opens what the locks of one client are taken on.
func (d *imageDir) lockFile() (*os.File, error) {
	if b, ok := d.Backing.(LockBacking); ok {
		return b.LockFile()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.anonymous == nil {
		fd, err := unix.MemfdCreate("hashfs-locks", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, fmt.Errorf("make a file for locks: %w", err)
		}
		d.anonymous = os.NewFile(uintptr(fd), "hashfs-locks")
	}
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", d.anonymous.Fd()), os.O_RDWR, 0)
}

// locker returns the file of an owner who locks through handle, and notes that.
func (t *lockTable) locker(o lockOwner, handle any) (*os.File, error) {
	if file := t.known(o, handle, nil); file != nil {
		return file, nil
	}
	file, err := t.open()
	if err != nil {
		return nil, err
	}
	known := t.known(o, handle, file)
	if known != file {
		file.Close() // another request of the owner came first
	}
	return known, nil
}

// known returns the file of an owner who locks through handle, taking file for
// it if there is none.
func (t *lockTable) known(o lockOwner, handle any, file *os.File) *os.File {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.owners[o]
	if l == nil {
		if file == nil {
			return nil
		}
		l = &locker{file, map[any]bool{}}
		t.owners[o] = l
	}
	l.handles[handle] = true
	return l.file
}

// closed ends the POSIX locks of an owner who closed a descriptor of the image.
func (t *lockTable) closed(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := lockOwner{id: id}
	if l := t.owners[o]; l != nil {
		delete(t.owners, o)
		l.file.Close()
	}
}

// released ends the locks that were taken through handle alone.
func (t *lockTable) released(handle any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for o, l := range t.owners {
		delete(l.handles, handle)
		if len(l.handles) == 0 {
			delete(t.owners, o)
			l.file.Close()
		}
	}
}

// peek returns the file of an owner, nil if there is none.
func (t *lockTable) peek(o lockOwner) *os.File {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.owners[o]; l != nil {
		return l.file
	}
	return nil
}

// test looks for a lock that stands against lk, into out.
func (t *lockTable) test(o lockOwner, lk, out *fuse.FileLock) error {
	file := t.peek(o)
	if file == nil {
		var err error
		if file, err = t.open(); err != nil {
			return err
		}
		defer file.Close()
	}
	k := toFlock(lk)
	if err := control(file, func(fd uintptr) error {
		return unix.FcntlFlock(fd, unix.F_OFD_GETLK, &k)
	}); err != nil {
		return err
	}
	*out = fuse.FileLock{Typ: uint32(k.Type)}
	if k.Type == unix.F_UNLCK {
		return nil
	}
	out.Start, out.End = uint64(k.Start), math.MaxInt64
	if k.Len > 0 {
		out.End = uint64(k.Start + k.Len - 1)
	}
	if k.Pid > 0 { // -1 is an OFD lock: another client, or an opener of the file
		out.Pid = uint32(k.Pid)
	}
	return nil
}

// set takes or ends a lock. It does not wait: it fails with EAGAIN.
func (t *lockTable) set(o lockOwner, handle any, lk *fuse.FileLock) error {
	if lk.Typ == unix.F_UNLCK && t.peek(o) == nil {
		return nil
	}
	file, err := t.locker(o, handle)
	if err != nil {
		return err
	}
	err = control(file, func(fd uintptr) error {
		if o.flock {
			return unix.Flock(int(fd), toFlockOp(lk.Typ)|unix.LOCK_NB)
		}
		k := toFlock(lk)
		return unix.FcntlFlock(fd, unix.F_OFD_SETLK, &k)
	})
	if err == unix.EACCES { // what fcntl(2) may say for EAGAIN
		err = unix.EAGAIN
	}
	return err
}

// Waiting for a lock asks again and again, at first often. A call that waits in
// the kernel could not be interrupted from here, and with it not even the
// client be killed.
const (
	lockPollMin = time.Millisecond
	lockPollMax = 100 * time.Millisecond
)

// wait takes a lock as set does, waiting for it until ctx ends.
func (t *lockTable) wait(ctx context.Context, o lockOwner, handle any, lk *fuse.FileLock) error {
	for pause := lockPollMin; ; pause = min(2*pause, lockPollMax) {
		err := t.set(o, handle, lk)
		if err != unix.EAGAIN {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// control runs a system call on file, which another goroutine may close.
func control(file *os.File, call func(fd uintptr) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return unix.EBADF
	}
	var result error
	err = conn.Control(func(fd uintptr) {
		for {
			if result = call(fd); result != unix.EINTR {
				return
			}
		}
	})
	if err != nil {
		return unix.EBADF // it was closed
	}
	return result
}

func toFlock(lk *fuse.FileLock) unix.Flock_t {
	k := unix.Flock_t{Type: int16(lk.Typ), Whence: io.SeekStart, Start: int64(lk.Start)}
	if lk.End < math.MaxInt64 {
		k.Len = int64(lk.End-lk.Start) + 1
	}
	return k
}

func toFlockOp(typ uint32) int {
	switch typ {
	case unix.F_RDLCK:
		return unix.LOCK_SH
	case unix.F_WRLCK:
		return unix.LOCK_EX
	}
	return unix.LOCK_UN
}

// lockErrno is the errno of a call of a lock table. These are system calls on
// our own files, whose errors are the client's.
func (d *imageDir) lockErrno(ctx context.Context, err error) syscall.Errno {
	if errno, ok := err.(syscall.Errno); ok {
		return errno
	}
	return d.m.fail(ctx, d, "lock image", err)
}
