package filesrc

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// zeros is what is written where a file system cannot make zeros itself.
var zeros [1 << 20]byte

// WriteAt follows io.WriterAt.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	h, err := f.acquireToWrite("write", off)
	if err != nil {
		return 0, err
	}
	defer f.release(h)
	return h.writeAt(p, off)
}

// writeAt is not os.File's method, which forgets how much it wrote when what
// is left then fails.
func (h *handle) writeAt(p []byte, off int64) (done int, err error) {
	for done < len(p) {
		var n int
		err := retry(func() (err error) {
			n, err = unix.Pwrite(h.fd, p[done:], off+int64(done))
			return err
		})
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return done, fmt.Errorf("write %s at %d: %w", h.file.Name(), off+int64(done), err)
		}
		done += n
	}
	return done, nil
}

// Flush makes completed writes durable by fdatasync(2). After an error it is
// unknown which of them are.
func (f *File) Flush() error {
	h, err := f.acquireToWrite("flush", 0)
	if err != nil {
		return err
	}
	defer f.release(h)
	if err := retry(func() error { return unix.Fdatasync(h.fd) }); err != nil {
		return fmt.Errorf("flush %s: %w", f.path, err)
	}
	return nil
}

// Zero makes [off, off+length) read as zeros. With punch the storage is given
// back, or the answer is hasher.ErrNotSupported. Without punch it stays
// allocated: the file system zeroes it in place, or else punches it and
// allocates it anew (so that a large range does not take as long as writing
// it), or else zeros are written. A block device is told to zero the range in
// either case (BLKZEROOUT), and never to discard it, since what it reads as
// then is the device's own affair. After an error some of the range may be
// zeroed or punched.
func (f *File) Zero(off, length int64, punch bool) error {
	h, err := f.acquireToWrite("zero", off)
	if err != nil {
		return err
	}
	defer f.release(h)
	if length == 0 {
		return nil // fallocate(2) calls that invalid
	}
	if f.device {
		return h.result("zero", off, length, h.zeroDevice(off, length))
	}
	if punch {
		return h.result("punch", off, length, h.fallocate(unix.FALLOC_FL_PUNCH_HOLE, off, length))
	}
	err = h.fallocate(unix.FALLOC_FL_ZERO_RANGE, off, length)
	if unsupported(err) {
		err = h.punchAndAllocate(off, length)
	}
	if unsupported(err) {
		err = h.writeZeros(off, length)
	}
	return h.result("zero", off, length, err)
}

// Allocate reserves storage for [off, off+length) and keeps its bytes, or
// answers hasher.ErrNotSupported.
func (f *File) Allocate(off, length int64) error {
	h, err := f.acquireToWrite("allocate", off)
	if err != nil {
		return err
	}
	defer f.release(h)
	if length == 0 || f.device {
		return nil // a device has all of its storage
	}
	return h.result("allocate", off, length, h.fallocate(0, off, length))
}

// punchAndAllocate allocates first, to learn whether the file system can: a
// range that was punched and cannot be allocated again would be left a hole.
func (h *handle) punchAndAllocate(off, length int64) error {
	if err := h.fallocate(0, off, length); err != nil {
		return err
	}
	if err := h.fallocate(unix.FALLOC_FL_PUNCH_HOLE, off, length); err != nil {
		return err
	}
	return h.fallocate(0, off, length)
}

func (h *handle) writeZeros(off, length int64) error {
	for length > 0 {
		n, err := h.writeAt(zeros[:min(length, int64(len(zeros)))], off)
		if err != nil {
			return err
		}
		off, length = off+int64(n), length-int64(n)
	}
	return nil
}

// fallocate never changes the size of the file.
func (h *handle) fallocate(mode uint32, off, length int64) error {
	return retry(func() error {
		return unix.Fallocate(h.fd, mode|unix.FALLOC_FL_KEEP_SIZE, off, length)
	})
}

// result is the error of an operation on a range, nil when err is.
func (h *handle) result(op string, off, length int64, err error) error {
	if err == nil {
		return nil
	}
	if unsupported(err) {
		err = hasher.ErrNotSupported
	}
	return fmt.Errorf("%s %d bytes of %s at %d: %w", op, length, h.file.Name(), off, err)
}

func unsupported(err error) bool { return err == unix.EOPNOTSUPP || err == unix.ENOSYS }

func (f *File) acquireToWrite(op string, off int64) (*handle, error) {
	if !f.writable {
		return nil, fmt.Errorf("%s %s at %d: %w", op, f.path, off, hasher.ErrReadOnly)
	}
	return f.acquire()
}
