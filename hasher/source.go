package hasher

import (
	"context"
	"errors"
	"io"
	"time"
)

// A Source holds the bytes of one image. The optional interfaces below add
// what a source can do; without one the safe default named there holds.
//
// All methods may be called from several goroutines at once, but for Close,
// which comes last.
type Source interface {
	// ReadAt follows io.ReaderAt. A read that ends before the size of the
	// image with io.EOF is a failure to its caller, never zeros.
	io.ReaderAt

	// Size is the length of the image in bytes. It changes only within a
	// call of Stamp.
	Size() int64

	io.Closer
}

// A ScanSource reads for a pass over the image, such that caches which others
// use are as they were before. Without it such a pass uses ReadAt.
type ScanSource interface {
	// ScanAt follows io.ReaderAt, as ReadAt does. Without wait it takes only
	// what can be had without waiting for storage, and returns ErrWouldWait
	// with what it has when that is less than p.
	ScanAt(p []byte, off int64, wait bool) (int, error)

	// Cached returns how many bytes of [off, off+length) are in the cache. To
	// try a read without wait on others may bring them in.
	Cached(off, length int64) int64
}

// A WriteBackSource keeps a part of what is written to itself until it is flushed,
// so that who looks at what it stores finds something else.
type WriteBackSource interface{ WritesBack() bool }

// A MapSource shows what is in its cache in place, without the copy that a read
// makes.
type MapSource interface {
	// Map calls use with the bytes [off, off+length), which are whole pages
	// before the end of the source. They change when the source does, and there
	// is nothing of them after use has returned. What loads them must be Go, or
	// assembly that calls nothing and leaves the stack pointer alone.
	//
	// It returns an error where that cannot be had, also if use had begun and
	// came to a byte that is gone, or that storage does not give: use was left
	// at that load then, with what it had deferred done.
	Map(off, length int64, use func(p []byte)) error
}

// A QueueSource can have reads under way ahead of their turn, so that a disk or a
// server need not wait for its client. Without it a pass reads piece after piece.
type QueueSource interface {
	// Queue returns a queue for the caller alone, who has to close it, or nil
	// where there is none to be had now.
	Queue() ReadQueue

	// Queueing returns how many bytes the reads of a queue should have, a power
	// of two, and how many bytes should be submitted to it at a time.
	Queueing() (request, ahead int64)
}

// A ReadQueue gives the results of reads in the order in which they were
// submitted. One goroutine at a time may use it.
type ReadQueue interface {
	// Submit begins a read of p at off. p must not be touched until Next has
	// returned its result, or Close has returned.
	Submit(p []byte, off int64)

	// Next returns the result of the oldest read whose result it has not
	// returned yet, as ReadAt would. Without wait it returns ErrWouldWait when
	// that takes longer than a switch to other work is worth.
	Next(wait bool) (n int, err error)

	// Close drops the reads that are left, once their buffers are free.
	Close()
}

// Extent types are the bits of NBD's base:allocation context.
const (
	ExtentHole = 1 << 0 // no storage is allocated
	ExtentZero = 1 << 1 // reads as zeros
)

// An Extent is a run of bytes of one type.
type Extent struct {
	Offset int64  // bytes from the start of the image
	Length int64  // bytes, more than 0
	Type   uint32 // ExtentHole and ExtentZero, or'ed; 0 is data
}

// End returns the offset of the byte after the extent.
func (e Extent) End() int64 { return e.Offset + e.Length }

// Zero reports whether the extent is known to read as zeros.
func (e Extent) Zero() bool { return e.Type&ExtentZero != 0 }

// An ExtentSource knows where it has no data. Without it all is data.
type ExtentSource interface {
	// Extents calls yield for the extents of [off, off+length), in order,
	// without gaps or overlaps, clipped to that range, and stops early when
	// yield returns false. The range lies within the image.
	Extents(ctx context.Context, off, length int64, yield func(Extent) bool) error
}

// A WritableSource can be written. Without it, or where Writable is false,
// the image is read-only.
type WritableSource interface {
	Writable() bool

	// WriteAt follows io.WriterAt. The range lies within the image.
	io.WriterAt

	// Flush makes completed writes durable, as fdatasync(2) does.
	Flush() error
}

// A ZeroSource makes ranges read as zeros without being sent them. Without
// it, or when it answers ErrNotSupported, the image refuses the request.
type ZeroSource interface {
	// Zero guarantees on success that [off, off+length) reads as zeros.
	// With punch the storage may be given back, without it stays allocated.
	Zero(off, length int64, punch bool) error

	// Allocate reserves storage for [off, off+length) and keeps its bytes.
	Allocate(off, length int64) error
}

// A RemoteSource may keep a caller waiting for long. Without it calls return
// about as soon as a local file's, and callers wait for them.
type RemoteSource interface {
	// Remote reports whether waiters should be able to leave a call behind.
	Remote() bool
}

// A StampedSource can tell that it was changed by somebody else. Without it
// changes from outside go unnoticed.
type StampedSource interface {
	// Stamp returns the stamp of the image as it is now. A source that
	// follows its name to another file does so here, and Size with it.
	Stamp() (Stamp, error)

	// AwaitWriters returns when no write that was under way at the call still
	// changes bytes, as far as the source can see that. A write(2) moves the
	// times of a file when it begins, so without this a long one would go
	// unnoticed by who looks at the file after that.
	AwaitWriters() error
}

// A NamedSource can tell that its name leads elsewhere by now. Without it the
// name is taken to lead to it for ever.
type NamedSource interface {
	// Replaced reports whether a Stamp found that the source keeps its bytes
	// although its name leads to others, or nowhere. Once true it stays so.
	Replaced() bool
}

// A Stamp is equal to a later one only if the image was not changed between,
// provided that it had Settled when it was taken. It is comparable with ==.
type Stamp struct {
	Size       int64
	MTime      int64 // nanoseconds since 1970
	CTime      int64 // nanoseconds since 1970
	Dev, Inode uint64
	NameDev    uint64 // of the file that has the image's name now,
	NameInode  uint64 // 0 when there is none
}

// Errors that a source returns, to be tested with errors.Is.
var (
	// ErrNotSupported: this source cannot do that at all.
	ErrNotSupported = errors.New("operation not supported by this image")

	// ErrWouldWait: the rest of the bytes is not at hand.
	ErrWouldWait = errors.New("the bytes have to be waited for")

	// ErrUnknownOutcome: a write may have been done, or may be done yet.
	ErrUnknownOutcome = errors.New("it is not known whether the write was done")

	// ErrUnavailable: the source as a whole cannot be reached now, so that
	// there is no point in asking for other bytes.
	ErrUnavailable = errors.New("the source cannot be reached")

	// ErrReadOnly: the image was not opened for writing.
	ErrReadOnly = errors.New("image is read-only")
)

// ModTime returns the stamp's modification time.
func (s Stamp) ModTime() time.Time { return time.Unix(0, s.MTime) }
