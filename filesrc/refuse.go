package filesrc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInUse: a lock of another process stands against opening for writing.
var ErrInUse = errors.New("in use")

var errNoProc = errors.New("/proc is not mounted, and is needed to open images")

// A typeError says that a file is of a type that is not served.
type typeError string

func (e typeError) Error() string { return string(e) }

// served returns nil for the status of a regular file or a block device, else
// what it is.
func served(st *unix.Stat_t) error {
	const wanted = "; a raw image is a regular file or a block device"
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFBLK:
		return nil
	case unix.S_IFDIR:
		return typeError("is a directory" + wanted)
	case unix.S_IFCHR:
		return typeError("is a character device" + wanted)
	case unix.S_IFIFO:
		return typeError("is a fifo" + wanted)
	case unix.S_IFSOCK:
		return typeError("is a socket" + wanted)
	}
	return typeError("is not a regular file" + wanted)
}

func isDevice(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFBLK }

func isRegular(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// sized returns nil for a file that is as long as its status says. Those of
// /proc say 0, and would be taken for empty images.
func sized(file *os.File, st *unix.Stat_t) error {
	if st.Size > 0 || isDevice(st) {
		return nil
	}
	if n, _ := file.ReadAt(make([]byte, 1), 0); n == 0 {
		return nil
	}
	var now unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &now); err != nil || now.Size > 0 {
		return err // it has grown meanwhile
	}
	return typeError("has content, but says that it is empty: it is made as it is read; copy it to a regular file")
}

// openError is the line of an open that failed.
func openError(path string, writable bool, err error) error {
	switch {
	case !writable && errors.Is(err, unix.EACCES):
		return fmt.Errorf("open %s: %w: run as a user who may read it", path, err)
	case !writable || errors.As(err, new(typeError)):
		return fmt.Errorf("open %s: %w", path, err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("open %s for writing: %w: run as a user who may write it, "+
			"or serve it read-only", path, err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("open %s for writing: %w: unmount it, or end what holds it, or serve it read-only", path, err)
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EPERM), errors.Is(err, unix.ETXTBSY):
		return fmt.Errorf("open %s for writing: %w: serve it read-only", path, err)
	}
	return fmt.Errorf("open %s for writing: %w", path, err)
}
