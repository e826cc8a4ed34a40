package filesrc

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore is mincore(2), which golang.org/x/sys/unix lacks.
func mincore(m, there []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE,
		uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), uintptr(unsafe.Pointer(unsafe.SliceData(there))))
	if errno != 0 {
		return errno
	}
	return nil
}
