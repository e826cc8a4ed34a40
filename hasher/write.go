package hasher

import (
	"context"
	"errors"
	"fmt"
)

// WriteAt writes the image. A write that reaches beyond the end is cut there,
// and one that begins there fails with ErrNoSpace. It returns how many bytes
// were written, and an error if that is fewer than fit. ctx counts until the
// write itself begins.
func (im *Image) WriteAt(ctx context.Context, p []byte, off int64) (n int, err error) {
	if im.writable == nil {
		return 0, ErrReadOnly
	}
	err = im.within(ctx, off, int64(len(p)), false, func(length int64) (err error) {
		n, err = im.writable.WriteAt(p[:length], off)
		return err
	})
	return n, err
}

// Zero makes [off, off+length), as far as it lies within the image, read as
// zeros. With punch the storage may be given back. ErrNotSupported says that
// the source cannot guarantee it; nothing was changed then.
func (im *Image) Zero(ctx context.Context, off, length int64, punch bool) error {
	if im.writable == nil {
		return ErrReadOnly
	}
	if im.zeroing == nil {
		return ErrNotSupported
	}
	err := im.within(ctx, off, length, true, func(length int64) error {
		return im.zeroing.Zero(off, length, punch)
	})
	if errors.Is(err, ErrNoSpace) {
		return nil // there is nothing to zero beyond the end
	}
	return err
}

// Allocate reserves storage for [off, off+length) without changing a byte of
// it. ErrNoSpace says that the range reaches beyond the end.
func (im *Image) Allocate(ctx context.Context, off, length int64) error {
	if im.writable == nil {
		return ErrReadOnly
	}
	if im.zeroing == nil {
		return ErrNotSupported
	}
	im.mu.Lock()
	fits := off+length <= im.size
	im.mu.Unlock()
	if !fits {
		return ErrNoSpace
	}
	// Bytes stay as they are, but extents and the stamp do not.
	return im.within(ctx, off, length, false, func(length int64) error {
		return im.zeroing.Allocate(off, length)
	})
}

// within runs a mutation of what of [off, off+length) lies within the image,
// and again if the image's size changed before it began.
func (im *Image) within(ctx context.Context, off, length int64, zeroes bool, write func(length int64) error) error {
	for length > 0 {
		im.mu.Lock()
		fits := min(length, im.size-off)
		im.mu.Unlock()
		if fits <= 0 {
			return ErrNoSpace
		}
		err := im.mutate(ctx, off, fits, zeroes, func() error { return write(fits) })
		if !errors.Is(err, errRange) {
			return err
		}
	}
	return nil
}

// FailedFlushes counts them, for those whose own Flush did not fail after it. It
// grows before Flush returns.
func (im *Image) FailedFlushes() uint64 { return im.failedFlushes.Load() }

// WritesBack reports whether what was written may be seen only through the image
// until Flush.
func (im *Image) WritesBack() bool {
	w, ok := im.src.(WriteBackSource)
	return ok && w.WritesBack()
}

// Flush makes completed writes durable. When it fails, nobody knows what the
// source holds, so all that is known is forgotten and views end. When ctx ends
// first, the flush goes on.
func (im *Image) Flush(ctx context.Context) error {
	if im.writable == nil {
		return nil
	}
	if !im.remote {
		return im.flush()
	}
	_, err := await(ctx, func() (struct{}, error) { return struct{}{}, im.flush() })
	return err
}

func (im *Image) flush() error {
	err := im.writable.Flush()
	if err == nil {
		return nil
	}
	im.failedFlushes.Add(1)
	im.mu.Lock()
	defer im.mu.Unlock()
	if !broken(ruleFlushForgets) {
		im.endMomentsLocked(errFlush)
		im.forgetLocked(im.stamp, "a flush failed")
	}
	return fmt.Errorf("flush: %w", err)
}

// errFlush ends moments: what they were cannot be read any more, and a view
// that nobody has read yet must not silently show another.
var errFlush = fmt.Errorf("%w: a flush failed, and what is stored is not known", ErrStale)

// Invalidate says that the bytes [off, off+length) may have been changed from
// outside. Views that still need what they were become stale, as with a change
// that a stamp showed. The range is cut to the image.
func (im *Image) Invalidate(off, length int64) {
	im.mu.Lock()
	defer im.mu.Unlock()
	bs := int64(im.spec.BlockSize)
	s := span{off / bs, im.spec.blocks(min(off+length, im.size))}
	if s.lo >= s.hi {
		return
	}
	for _, m := range append([]*moment(nil), im.moments...) {
		if m.lackLocked(s) {
			m.endLocked(errOutside)
		}
	}
	im.doubtful.remove(s)
	im.changeLocked(s)
	im.extentMap.m = nil
}

// InvalidateAll says that anything may have been changed from outside, the
// size too.
func (im *Image) InvalidateAll() error {
	if im.stamped != nil {
		if err := im.check(); err != nil {
			return err
		}
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	im.doubtful = nil
	im.forgetLocked(im.stamp, "invalidated")
	return nil
}
