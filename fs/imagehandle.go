package fs

import (
	"context"
	"math"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// imageHandle is an open image that is read and written through us.
type imageHandle struct {
	f     *imageFile
	wrote atomic.Bool   // and did not flush since
	seen  atomic.Uint64 // failed flushes of the image that it knows of
}

func newImageHandle(f *imageFile) *imageHandle {
	h := &imageHandle{f: f}
	h.seen.Store(h.image().FailedFlushes())
	return h
}

var (
	_ fusefs.FileReader    = (*imageHandle)(nil)
	_ fusefs.FileWriter    = (*imageHandle)(nil)
	_ fusefs.FileAllocater = (*imageHandle)(nil)
	_ fusefs.FileFsyncer   = (*imageHandle)(nil)
	_ fusefs.FileFlusher   = (*imageHandle)(nil)
	_ fusefs.FileReleaser  = (*imageHandle)(nil)
	_ fusefs.FileLseeker   = (*imageHandle)(nil)
	_ fusefs.FileGetlker   = (*imageHandle)(nil)
	_ fusefs.FileSetlker   = (*imageHandle)(nil)
	_ fusefs.FileSetlkwer  = (*imageHandle)(nil)
)

func (h *imageHandle) image() *hasher.Image { return h.f.d.Image.Image }

// begin returns the context for one request and what turns its error into an
// answer.
func (h *imageHandle) begin(ctx context.Context, op string) (context.Context, context.CancelFunc, func(error) syscall.Errno) {
	ctx, cancel := h.f.m.deadline(ctx)
	return ctx, cancel, func(err error) syscall.Errno {
		return h.f.m.fail(ctx, h.f.d, op+" image", err)
	}
}

func (h *imageHandle) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	ctx, cancel, errno := h.begin(ctx, "read")
	defer cancel()
	n, err := h.image().ReadAt(ctx, dest, off)
	if err != nil {
		return nil, errno(err)
	}
	if !h.current() {
		return nil, syscall.ESTALE
	}
	return fuse.ReadResultData(dest[:n]), 0
}

// current reports whether the image is still the file that was opened. Only a
// read-only one can turn to another; a handle must not go on with that one's
// bytes in the midst of a copy. To ask after the read is enough, since an image
// does not turn back.
func (h *imageHandle) current() bool {
	d := h.f.d
	if d.Backing == nil || d.Image.Image.Writable() {
		return true
	}
	st, err := d.Backing.Stat()
	return err == nil && idOf(&st) == h.f.id
}

func (h *imageHandle) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	ctx, cancel, errno := h.begin(ctx, "write")
	defer cancel()
	h.wrote.Store(true)
	n, err := h.image().WriteAt(ctx, data, off)
	if err != nil && n == 0 {
		return 0, errno(err)
	}
	return uint32(n), 0
}

// Allocate is fallocate(2). The size of the image stays: a range beyond it is
// cut where the mode says to keep the size, and refused where it says to grow.
func (h *imageHandle) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	ctx, cancel, errno := h.begin(ctx, "allocate")
	defer cancel()
	h.wrote.Store(true)
	g, err := h.image().Refresh(ctx)
	if err != nil {
		return errno(err)
	}
	start, length, refused := clip(off, size, g.Size, mode&unix.FALLOC_FL_KEEP_SIZE != 0)
	if refused != 0 {
		return refused
	}
	switch mode &^ unix.FALLOC_FL_KEEP_SIZE {
	case 0:
		if length == 0 {
			return syscall.ENOSPC
		}
		return errno(h.image().Allocate(ctx, start, length))
	case unix.FALLOC_FL_PUNCH_HOLE:
		if length == 0 {
			return 0
		}
		return errno(h.image().Zero(ctx, start, length, true))
	case unix.FALLOC_FL_ZERO_RANGE:
		if length == 0 {
			return 0
		}
		return errno(h.image().Zero(ctx, start, length, false))
	}
	return syscall.EOPNOTSUPP
}

// clip returns the part of [off, off+size) that lies before end.
func clip(off, size uint64, end int64, keepSize bool) (start, length int64, errno syscall.Errno) {
	if off > math.MaxInt64 || size > math.MaxInt64-off {
		return 0, 0, syscall.EFBIG
	}
	start, length = int64(off), int64(size)
	if start+length > end {
		if !keepSize {
			return 0, 0, syscall.ENOSPC
		}
		length = max(end-start, 0)
	}
	return start, length, 0
}

// Fsync makes all writes durable, not only those of this handle. A failure is told
// to each handle that was open then, as the kernel does for files.
func (h *imageHandle) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	if !h.image().Writable() {
		return 0
	}
	ctx, cancel, errno := h.begin(ctx, "flush")
	defer cancel()
	h.wrote.Store(false)
	err := h.image().Flush(ctx)
	failed := h.image().FailedFlushes()
	if h.seen.Swap(failed) != failed && err == nil {
		return syscall.EIO // the log has its cause
	}
	return errno(err)
}

// closePatience is for how long a close(2) waits after a signal. It cannot be tried
// again, as a read can, and most signals are no reason to give up: programs in Go get
// one whenever a thread is to do something else. But also who is killed waits for it.
const closePatience = 5 * time.Second

// outlast returns a context that ends so long after ctx.
func outlast(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return late, func() {
		stop()
		cancel()
	}
}

// Flush is a close(2) of one of maybe several descriptors. What was written by it
// is in the files of the image after it, for others to read.
func (h *imageHandle) Flush(ctx context.Context) syscall.Errno {
	c, ok := ctx.(*fuse.Context)
	if !ok {
		return 0
	}
	if owner, ok := h.f.m.front.closer(c.Cancel); ok {
		h.f.d.locks.closed(owner)
	}
	if !h.wrote.Load() || !h.image().WritesBack() {
		return 0
	}
	patient, leave := outlast(ctx, closePatience)
	defer leave()
	ctx, cancel, errno := h.begin(patient, "flush")
	defer cancel()
	h.wrote.Store(false)
	err := h.image().Flush(ctx)
	if err == nil && h.seen.Load() == h.image().FailedFlushes() {
		return 0
	}
	// It stays so until fsync: this may be the close of a child that was forked
	// meanwhile, which nobody looks at.
	h.wrote.Store(true)
	if err != nil {
		return errno(err)
	}
	return syscall.EIO
}

func (h *imageHandle) Release(ctx context.Context) syscall.Errno {
	h.f.d.locks.released(h)
	return 0
}

// Lseek answers SEEK_DATA and SEEK_HOLE. A hole is what the source knows to
// read as zeros.
func (h *imageHandle) Lseek(ctx context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	if whence != unix.SEEK_DATA && whence != unix.SEEK_HOLE {
		return 0, syscall.EINVAL
	}
	ctx, cancel, errno := h.begin(ctx, "seek in")
	defer cancel()
	g, err := h.image().Refresh(ctx)
	if err != nil {
		return 0, errno(err)
	}
	end := g.Size
	if off >= uint64(end) {
		return 0, syscall.ENXIO
	}
	found := int64(-1)
	err = h.image().Extents(ctx, int64(off), end-int64(off), func(e hasher.Extent) bool {
		if e.Zero() == (whence == unix.SEEK_HOLE) {
			found = e.Offset
		}
		return found < 0
	})
	switch {
	case err != nil:
		return 0, errno(err)
	case !h.current():
		return 0, syscall.ESTALE
	case found >= 0:
		return uint64(found), 0
	case whence == unix.SEEK_HOLE:
		return uint64(end), 0
	}
	return 0, syscall.ENXIO
}

func (h *imageHandle) owner(id uint64, flags uint32) lockOwner {
	return lockOwner{id, flags&fuse.FUSE_LK_FLOCK != 0}
}

func (h *imageHandle) Getlk(ctx context.Context, owner uint64, lk *fuse.FileLock, flags uint32, out *fuse.FileLock) syscall.Errno {
	err := h.f.d.locks.test(h.owner(owner, flags), lk, out)
	return h.f.d.lockErrno(ctx, err)
}

func (h *imageHandle) Setlk(ctx context.Context, owner uint64, lk *fuse.FileLock, flags uint32) syscall.Errno {
	err := h.f.d.locks.set(h.owner(owner, flags), h, lk)
	return h.f.d.lockErrno(ctx, err)
}

func (h *imageHandle) Setlkw(ctx context.Context, owner uint64, lk *fuse.FileLock, flags uint32) syscall.Errno {
	ctx, cancel := h.f.m.deadline(ctx)
	defer cancel()
	err := h.f.d.locks.wait(ctx, h.owner(owner, flags), h, lk)
	return h.f.d.lockErrno(ctx, err)
}

// passedHandle is an open image that the kernel reads by itself, from file. It
// stays with that file when the image turns to another, as any open file does.
type passedHandle struct {
	*imageHandle
	file *os.File
}

var (
	_ fusefs.FilePassthroughFder = (*passedHandle)(nil)
	_ fusefs.FileReleaser        = (*passedHandle)(nil)
	_ fusefs.FileLseeker         = (*passedHandle)(nil)
)

// PassthroughFd returns the descriptor for the kernel, which stays open until
// the release of the handle.
func (h *passedHandle) PassthroughFd() (int, bool) { return int(h.file.Fd()), true }

func (h *passedHandle) Lseek(ctx context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	var at int64
	err := control(h.file, func(fd uintptr) (err error) {
		at, err = unix.Seek(int(fd), int64(off), int(whence))
		return err
	})
	if errno, ok := err.(syscall.Errno); ok && errno == syscall.ENXIO {
		return 0, errno
	}
	return uint64(at), h.f.m.fail(ctx, h.f.d, "seek in image", err)
}

func (h *passedHandle) Release(ctx context.Context) syscall.Errno {
	h.file.Close()
	return h.imageHandle.Release(ctx)
}

func (h *passedHandle) stat() (*unix.Stat_t, error) { return fstat(h.file) }

func fstat(file *os.File) (*unix.Stat_t, error) {
	st := new(unix.Stat_t)
	err := control(file, func(fd uintptr) error { return unix.Fstat(int(fd), st) })
	return st, err
}

func statTime(st *unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }
