package filesrc

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

var (
	_ hasher.Source         = (*File)(nil)
	_ hasher.ExtentSource   = (*File)(nil)
	_ hasher.WritableSource = (*File)(nil)
	_ hasher.ZeroSource     = (*File)(nil)
	_ hasher.StampedSource  = (*File)(nil)
	_ hasher.NamedSource    = (*File)(nil)
	_ hasher.ScanSource     = (*File)(nil)
)

// Options say how a file is opened.
type Options struct {
	Writable bool // open for writing too, and lock it against others
}

// A File is a raw image in a regular file or on a block device.
type File struct {
	path     string
	writable bool
	device   bool     // a block device
	opened   int64    // nanoseconds since 1970
	locks    *os.File // what clients lock when the image is writable, else nil

	size     atomic.Int64 // bytes, as of the last Stamp
	replaced atomic.Bool  // set once, never cleared

	// mu guards current, its count of users, and closed. It is never held
	// across I/O, so that a read need not wait for a hanging lookup.
	mu      sync.Mutex
	current *handle
	closed  bool

	// nameMu guards name, and makes one step of Stamp's lookup, swap and
	// change of size. It is taken before mu.
	nameMu   sync.Mutex
	name     name
	nameSeen time.Time // when that of a writable image was last looked up
	links    uint64    // how many names its file had then
}

// A handle is one open file with the number of its users, the File itself
// being one as long as the handle is current. The last one closes it: closed
// any earlier, its number could come to mean another file under a reader.
type handle struct {
	file *os.File
	fd   int
	refs int // guarded by File.mu

	openDirect sync.Once
	direct     int         // a descriptor for reads past the page cache, once it is open
	indirect   atomic.Bool // such reads were refused
	caches     atomic.Bool // the kernel does not know rwfDontCache

	askType sync.Once
	fsType  int64 // of its file system, as statfs(2) tells; 0 if it does not
}

// Open opens the regular file or block device that path leads to, through
// links too.
// An error is one line with the path, the reason, and the way out if any; it
// matches [ErrInUse] when the file is locked by somebody else.
func Open(path string, o Options) (*File, error) {
	f := &File{path: path, writable: o.Writable}
	if err := f.open(); err != nil {
		f.name.close()
		if f.locks != nil {
			f.locks.Close()
		}
		return nil, err
	}
	return f, nil
}

func (f *File) open() error {
	file, st, err := f.name.openFirst(f.path, f.writable)
	if err != nil {
		return openError(f.path, f.writable, err)
	}
	if err := sized(file, st); err != nil {
		file.Close()
		return openError(f.path, f.writable, err)
	}
	f.device, f.opened = isDevice(st), time.Now().UnixNano()
	if f.device {
		if st.Size, err = endOf(file); err != nil {
			file.Close()
			return openError(f.path, f.writable, err)
		}
	}
	if f.writable {
		if err := lockImage(file, f.path); err != nil {
			file.Close()
			return err
		}
		if f.locks, err = newLockFile(f.path); err != nil {
			file.Close()
			return err
		}
	}
	f.current = &handle{file: file, fd: int(file.Fd()), refs: 1}
	f.size.Store(st.Size)
	return nil
}

// Path returns the path as it was given to Open.
func (f *File) Path() string { return f.path }

// Writable reports whether the file was opened for writing.
func (f *File) Writable() bool { return f.writable }

// Size returns the length in bytes, as it was at the last Stamp or Open.
func (f *File) Size() int64 { return f.size.Load() }

// ReadAt follows io.ReaderAt. It returns io.EOF with what there was when the
// file ends before len(p) bytes.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	h, err := f.acquire()
	if err != nil {
		return 0, err
	}
	defer f.release(h)
	return h.file.ReadAt(p, off) // retries EINTR and short reads
}

// Close closes the file and with it drops its locks.
func (f *File) Close() error {
	f.nameMu.Lock()
	defer f.nameMu.Unlock()
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return f.errClosed()
	}
	f.closed = true
	h := f.current
	f.mu.Unlock()

	f.name.close()
	if f.locks != nil {
		f.locks.Close()
	}
	return f.release(h)
}

func (f *File) errClosed() error {
	return fmt.Errorf("use %s: %w", f.path, os.ErrClosed)
}

// acquire returns the current handle for one operation; release ends that.
func (f *File) acquire() (*handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, f.errClosed()
	}
	f.current.refs++
	return f.current, nil
}

func (f *File) release(h *handle) error {
	f.mu.Lock()
	h.refs--
	last := h.refs == 0
	f.mu.Unlock()
	if !last {
		return nil
	}
	if h.direct > 0 {
		unix.Close(h.direct)
	}
	return h.file.Close()
}

// turnTo makes file the current one and returns its handle, acquired. The
// caller holds nameMu, so that Close cannot come between.
func (f *File) turnTo(file *os.File) *handle {
	h := &handle{file: file, fd: int(file.Fd()), refs: 2}
	f.mu.Lock()
	old := f.current
	f.current = h
	f.mu.Unlock()
	f.release(old)
	return h
}

// retry calls a system call again for as long as a signal interrupts it.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
