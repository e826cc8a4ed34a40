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

// Flush makes completed writes durable. When it fails, nobody knows what the
// source holds, so all that is known is forgotten and views end.
func (im *Image) Flush(context.Context) error {
	if im.writable == nil {
		return nil
	}
	err := im.writable.Flush()
	if err == nil {
		return nil
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	im.forgetLocked(im.stamp)
	return fmt.Errorf("flush: %w", err)
}
