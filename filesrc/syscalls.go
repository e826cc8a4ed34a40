package filesrc

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls that golang.org/x/sys/unix has no function for.

// zeroOut is the ioctl BLKZEROOUT. The kernel writes zeros where the device
// cannot make them itself, so that success always means zeros.
func zeroOut(fd int, off, length int64) error {
	span := [2]uint64{uint64(off), uint64(length)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKZEROOUT, uintptr(unsafe.Pointer(&span)))
	if errno != 0 {
		return errno
	}
	return nil
}

// mincore is mincore(2).
func mincore(m, there []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE,
		uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), uintptr(unsafe.Pointer(unsafe.SliceData(there))))
	if errno != 0 {
		return errno
	}
	return nil
}
