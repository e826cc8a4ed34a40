package fs

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"hashfs/hasher"
)

// errnos is the one place where an error becomes a number. The first row that
// matches decides; what matches none is EIO. ENOSYS must not appear: the kernel
// would refuse the operation for the whole mount from then on.
var errnos = []struct {
	err   error
	errno syscall.Errno
}{
	{hasher.ErrStale, syscall.ESTALE},
	{hasher.ErrBusy, syscall.EBUSY},
	{hasher.ErrNoSpace, syscall.ENOSPC},
	{hasher.ErrReadOnly, syscall.EROFS},
	{hasher.ErrNotSupported, syscall.EOPNOTSUPP},
	{hasher.ErrClosed, syscall.EIO},
	{context.Canceled, syscall.EINTR},
	{context.DeadlineExceeded, syscall.ETIMEDOUT},
}

// kept are the system errors of a source that mean to a client of the mount
// what they mean to us. EINTR and ETIMEDOUT are not among them: here they say
// that the reader was interrupted, and that reading again will help.
var kept = []syscall.Errno{
	syscall.EDQUOT,
	syscall.EFBIG,
	syscall.EIO,
	syscall.ENOLCK,
	syscall.ENOMEM,
	syscall.ENOSPC,
	syscall.EOPNOTSUPP,
	syscall.EPERM,
	syscall.EROFS,
}

// errnoOf returns the errno for an error of an operation that ran under ctx,
// 0 for nil.
func errnoOf(ctx context.Context, err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		// Not our reader was interrupted. Many programs take an EINTR
		// that follows no signal for a failure, or for the end.
		return syscall.EIO
	}
	for _, row := range errnos {
		if errors.Is(err, row.err) {
			return row.errno
		}
	}
	var read *hasher.ReadError
	if errors.As(err, &read) {
		return syscall.EIO
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && slices.Contains(kept, errno) {
		return errno
	}
	return syscall.EIO
}
