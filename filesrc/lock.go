package filesrc

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// QEMU's permissions (block-common.h, BLK_PERM_*), by their bit numbers.
const (
	permRead           = 0 // consistent read
	permWrite          = 1
	permWriteUnchanged = 2 // writes that do not change what is read
	permResize         = 3
)

// Where QEMU's lock bytes begin (block/file-posix.c). Each range is as long
// as its permission mask has bits.
const (
	permBase   = 100
	sharedBase = 200
	lockBits   = 64
)

var (
	heldPerms   = []int64{permRead, permWrite}
	deniedPerms = []int64{permWrite, permWriteUnchanged, permResize}
)

// lockImage locks file, open for writing, until its last descriptor is closed.
// All locks are taken before the others' are looked for: in the other order
// two programs that start together would not see each other.
func lockImage(file *os.File, path string) error {
	err := takeLocks(int(file.Fd()))
	var c conflict
	switch {
	case err == nil:
		return nil
	case errors.As(err, &c):
		return fmt.Errorf("open %s for writing: %w by %s: end that first, or serve it read-only",
			path, ErrInUse, findHolder(file, int(c)))
	}
	return fmt.Errorf("lock %s: %w: serve it read-only, which needs no lock", path, err)
}

// A conflict is the process with a lock that stands against ours, where the
// kernel tells: above 0 for a POSIX lock, -1 for one of an open file.
type conflict int

func (conflict) Error() string { return "locked" }

func takeLocks(fd int) error {
	for _, p := range heldPerms {
		if err := setLock(fd, unix.F_RDLCK, permBase+p, 1); err != nil {
			return err
		}
	}
	for _, p := range deniedPerms {
		if err := setLock(fd, unix.F_RDLCK, sharedBase+p, 1); err != nil {
			return err
		}
	}
	// Against programs with other protocols than QEMU's.
	between, after := int64(permBase+lockBits), int64(sharedBase+lockBits)
	for _, r := range [][2]int64{
		{0, permBase},
		{between, sharedBase - between},
		{after, 0}, // to the end, wherever that is
	} {
		if err := setLock(fd, unix.F_WRLCK, r[0], r[1]); err != nil {
			return err
		}
	}
	for _, p := range heldPerms {
		if err := testLock(fd, unix.F_WRLCK, sharedBase+p, 1); err != nil {
			return err
		}
	}
	for _, p := range deniedPerms {
		if err := testLock(fd, unix.F_WRLCK, permBase+p, 1); err != nil {
			return err
		}
	}
	return nil
}

// setLock locks a range, to the end of the file if length is 0. It fails with
// a conflict when the lock of another open file stands against it.
func setLock(fd int, typ int16, start, length int64) error {
	lk := unix.Flock_t{Type: typ, Whence: io.SeekStart, Start: start, Len: length}
	err := fcntl(fd, unix.F_OFD_SETLK, &lk)
	if err != unix.EAGAIN && err != unix.EACCES {
		return err
	}
	if err := testLock(fd, typ, start, length); err != nil {
		return err
	}
	return conflict(-1) // released since
}

// testLock fails with a conflict when setLock would.
func testLock(fd int, typ int16, start, length int64) error {
	lk := unix.Flock_t{Type: typ, Whence: io.SeekStart, Start: start, Len: length}
	if err := fcntl(fd, unix.F_OFD_GETLK, &lk); err != nil {
		return err
	}
	if lk.Type != unix.F_UNLCK {
		return conflict(lk.Pid)
	}
	return nil
}

func fcntl(fd, cmd int, lk *unix.Flock_t) error {
	return retry(func() error { return unix.FcntlFlock(uintptr(fd), cmd, lk) })
}
