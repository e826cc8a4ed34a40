package filesrc

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

var _ hasher.MapSource = (*File)(nil)

// mappedTypes are file systems on which a mapping shows what a read gives at the
// same time. On others that need not be so: overlayfs maps the file below for as
// long as it is open, and reads the one above once somebody has written.
var mappedTypes = []int64{
	unix.BTRFS_SUPER_MAGIC,
	unix.EXT4_SUPER_MAGIC, // ext2 and ext3 too
	unix.TMPFS_MAGIC,
	unix.XFS_SUPER_MAGIC,
}

var errNotMapped = errors.New("its file system is none of those whose files are mapped")

// Map shows a part of the file in memory: see [hasher.MapSource].
func (f *File) Map(off, length int64, use func(p []byte)) error {
	h, err := f.acquire()
	if err != nil {
		return err
	}
	defer f.release(h)
	if !f.mayMap(h) {
		return fmt.Errorf("map %s: %w", f.path, errNotMapped)
	}
	return f.mapped(h, off, length, use)
}

// mayMap reports whether a mapping shows what a read does.
func (f *File) mayMap(h *handle) bool { return f.device || h.isOn(mappedTypes) }

// mapped calls use with a part of the file, which begins at a page.
func (f *File) mapped(h *handle, off, length int64, use func(p []byte)) error {
	m, err := unix.MmapPtr(h.fd, off, nil, uintptr(length), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return &os.PathError{Op: "map", Path: f.path, Err: err}
	}
	defer unmap(m, length)
	p := unsafe.Slice((*byte)(m), length)
	// A mark that an earlier read has left in the page cache has who comes to it read
	// ahead, and what that brings would stay.
	if err := unix.Madvise(p, unix.MADV_RANDOM); err != nil {
		return &os.PathError{Op: "map", Path: f.path, Err: err}
	}
	if err := look(p, use); err != nil {
		return fmt.Errorf("map %s: %d bytes at %d: %w", f.path, length, off, err)
	}
	return nil
}

// unmap does not tell Go's runtime of its system call. That gives the turn of a
// thread which is in one for 20 µs to another thread, which it wakes, and to unmap
// takes longer, since other processors have to be told. What it may wait for, the
// lock of the address space, the runtime needs as well. Measured: half the switches
// of threads in a pass over 4 GiB in memory.
func unmap(m unsafe.Pointer, length int64) {
	_, _, _ = unix.RawSyscall(unix.SYS_MUNMAP, uintptr(m), uintptr(length), 0)
}

// look calls use with mapped memory. The kernel has a load fail by SIGBUS where
// the file was cut off or storage fails; Go's runtime makes it a panic here, and
// this an error.
func look(m []byte, use func(p []byte)) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}:
			start := uintptr(unsafe.Pointer(unsafe.SliceData(m)))
			if at := cause.Addr(); at < start || at-start >= uintptr(len(m)) {
				panic(cause)
			}
			err = cause
		default:
			panic(cause)
		}
	}()
	use(m)
	return nil
}
