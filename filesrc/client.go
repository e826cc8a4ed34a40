package filesrc

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// LockFile returns a new open file for the locks of one client of the mount:
// the open file description locks taken on it conflict with those on any other
// that LockFile returned, and go when it is closed, which is the caller's part.
//
// For a read-only image it is the file that is served now, so that clients and
// users of the file itself see each other's locks. It is not open for writing,
// and a write lock on it fails with EBADF. For a writable image it is an
// anonymous file, since this process holds the image's own locks: clients then
// see only each other's.
func (f *File) LockFile() (*os.File, error) {
	if f.writable {
		return newDescription(f.locks, unix.O_RDWR)
	}
	h, err := f.acquire()
	if err != nil {
		return nil, err
	}
	defer f.release(h)
	return newDescription(h.file, unix.O_RDONLY)
}

func newDescription(file *os.File, flags int) (*os.File, error) {
	fd, err := reopen(int(file.Fd()), flags)
	if err != nil {
		return nil, fmt.Errorf("open %s for locks: %w", file.Name(), err)
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

// newLockFile makes the anonymous file of LockFile.
func newLockFile(path string) (*os.File, error) {
	// The seal is asked for where vm.memfd_noexec insists; kernels before 6.3
	// do not know it.
	fd, err := unix.MemfdCreate("hashfs-locks", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate("hashfs-locks", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: make a file for clients' locks: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// PassthroughFile returns the file that is served now for FUSE passthrough,
// when the image is read-only and on a file system that can be passed through;
// stacked ones cannot, and asking the kernel turns passthrough off for the
// whole mount. The descriptor is a new one of the same open file, so that it
// stays valid when the image turns to another file; the caller closes it.
func (f *File) PassthroughFile() (*os.File, bool) {
	if f.writable || f.device {
		return nil, false
	}
	h, err := f.acquire()
	if err != nil {
		return nil, false
	}
	defer f.release(h)
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(h.fd, &st) }); err != nil {
		return nil, false
	}
	switch st.Type {
	case unix.OVERLAYFS_SUPER_MAGIC, unix.ECRYPTFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
		return nil, false
	}
	fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	return os.NewFile(uintptr(fd), f.path), true
}
