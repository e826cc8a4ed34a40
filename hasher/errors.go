package hasher

import (
	"errors"
	"fmt"
)

// Errors of an Image, to be tested with errors.Is. A context's own error is
// returned as it is when the caller's context ended first.
var (
	// ErrStale: the moment that this view shows is gone, since the image was
	// changed from outside or a memory bound was passed; open another.
	ErrStale = errors.New("the moment of this view is gone")

	// ErrBusy: the image changed during each of several tries.
	ErrBusy = errors.New("the image would not hold still")

	// ErrNoSpace: a write beyond the end of the image.
	ErrNoSpace = errors.New("beyond the end of the image")

	// ErrClosed: the image is closed.
	ErrClosed = errors.New("image is closed")
)

// A ReadError says which bytes of an image could not be read, and why.
type ReadError struct {
	Offset, Length int64 // bytes
	Err            error
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("read %d bytes at %d: %v", e.Length, e.Offset, e.Err)
}

func (e *ReadError) Unwrap() error { return e.Err }
