package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"hashfs/hasher"
)

func TestErrnoOf_table(t *testing.T) {
	live := t.Context()
	ended, cancel := context.WithCancel(live)
	cancel()
	wrap := func(err error) error { return fmt.Errorf("read image: %w", err) }
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want syscall.Errno
	}{
		{"success", live, nil, 0},
		{"the moment is gone", live, wrap(hasher.ErrStale), syscall.ESTALE},
		{"the image would not hold still", live, wrap(hasher.ErrBusy), syscall.EBUSY},
		{"a write beyond the end", live, wrap(hasher.ErrNoSpace), syscall.ENOSPC},
		{"a write to a read-only image", live, wrap(hasher.ErrReadOnly), syscall.EROFS},
		{"a punch that the source cannot do", live, wrap(hasher.ErrNotSupported), syscall.EOPNOTSUPP},
		{"a closed image", live, wrap(hasher.ErrClosed), syscall.EIO},
		{"an interrupted reader", ended, wrap(context.Canceled), syscall.EINTR},
		{"somebody else was interrupted", live, wrap(context.Canceled), syscall.EIO},
		{"the kernel's limit came near", live, wrap(context.DeadlineExceeded), syscall.ETIMEDOUT},
		{"a bad sector", live, wrap(&hasher.ReadError{Err: syscall.EIO}), syscall.EIO},
		{"a read error is never a full disk", live, &hasher.ReadError{Err: syscall.ENOSPC}, syscall.EIO},
		{"a stale NFS handle is not our ESTALE", live, &hasher.ReadError{Err: syscall.ESTALE}, syscall.EIO},
		{"a full disk", live, &os.PathError{Op: "write", Err: syscall.ENOSPC}, syscall.ENOSPC},
		{"a full quota", live, wrap(syscall.EDQUOT), syscall.EDQUOT},
		{"a bad descriptor is our fault", live, wrap(syscall.EBADF), syscall.EIO},
		{"a source's EINTR is no interruption", live, wrap(syscall.EINTR), syscall.EIO},
		{"a source's timeout will not pass", live, wrap(syscall.ETIMEDOUT), syscall.EIO},
		{"never ENOSYS", live, wrap(syscall.ENOSYS), syscall.EIO},
		{"anything else", live, errors.New("what"), syscall.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := errnoOf(c.ctx, c.err); got != c.want {
				t.Errorf("errnoOf(%v) = %v, want %v", c.err, got, c.want)
			}
		})
	}
}
