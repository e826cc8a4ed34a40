package filesrc

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// Extents tells holes from data as lseek(2) does: what the file system does
// not store, and storage that was reserved and never written, is hole and
// zero; all else is data, even when it is zeros. Data that was written and is
// not on disk yet is data. A file system that cannot tell has only data.
//
// A block device has only data.
//
// What is missing at the end of a file that shrank below the range is data,
// since it does not read as zeros.
func (f *File) Extents(ctx context.Context, off, length int64, yield func(hasher.Extent) bool) error {
	h, err := f.acquire()
	if err != nil {
		return err
	}
	defer f.release(h)
	if f.device {
		yield(extent(off, length, 0))
		return nil
	}

	for pos, end := off, off+length; pos < end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := h.next(pos, end)
		if err != nil {
			return err
		}
		if !yield(e) {
			return nil
		}
		pos = e.End()
	}
	return nil
}

// next returns the extent that begins at pos, clipped to end.
func (h *handle) next(pos, end int64) (hasher.Extent, error) {
	data, err := h.seek(pos, unix.SEEK_DATA)
	if err == unix.ENXIO {
		return h.trailing(pos, end)
	}
	if err != nil {
		return h.unknown(pos, end, err)
	}
	if data > pos {
		return extent(pos, min(data, end), hasher.ExtentHole|hasher.ExtentZero), nil
	}
	hole, err := h.seek(pos, unix.SEEK_HOLE)
	if err == unix.ENXIO {
		return h.trailing(pos, end)
	}
	if err != nil {
		return h.unknown(pos, end, err)
	}
	if hole <= pos {
		// Punched since the first look: data is always a safe answer, and
		// the piece is kept small, as what follows may be more of a hole.
		hole = pos - pos%pieceSize + pieceSize
	}
	return extent(pos, min(hole, end), 0), nil
}

// pieceSize is the length in bytes of what is called data for want of a
// better answer about a file that changes.
const pieceSize = 64 << 10

// trailing returns the extent at pos when no data follows in the file: a hole
// up to the end of the file, and beyond it nothing that could be zero.
func (h *handle) trailing(pos, end int64) (hasher.Extent, error) {
	st, err := h.stat()
	if err != nil {
		return hasher.Extent{}, err
	}
	if pos < st.Size {
		return extent(pos, min(st.Size, end), hasher.ExtentHole|hasher.ExtentZero), nil
	}
	return extent(pos, end, 0), nil
}

// unknown returns the rest as data when err says that the file system cannot
// tell, and fails otherwise.
func (h *handle) unknown(pos, end int64, err error) (hasher.Extent, error) {
	if err == unix.EINVAL || unsupported(err) {
		return extent(pos, end, 0), nil
	}
	return hasher.Extent{}, fmt.Errorf("find extents of %s at %d: %w", h.file.Name(), pos, err)
}

// seek moves the offset of the open file, which nothing here or elsewhere
// uses, so that the calls of several goroutines do not disturb each other.
func (h *handle) seek(pos int64, whence int) (found int64, err error) {
	err = retry(func() (err error) {
		found, err = unix.Seek(h.fd, pos, whence)
		return err
	})
	return found, err
}

func extent(from, to int64, typ uint32) hasher.Extent {
	return hasher.Extent{Offset: from, Length: to - from, Type: typ}
}
