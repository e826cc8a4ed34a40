package filesrc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A write that fails halfway says how much of it was done. The file is one that
// must not grow, so that the kernel writes the pages up to its end and then
// fails, as on a full file system.
func TestWriteAt_partial(t *testing.T) {
	page := os.Getpagesize()
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	check(t, err)
	defer unix.Close(fd)
	check(t, unix.Ftruncate(fd, int64(4*page)))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	check(t, err)
	f := open(t, fmt.Sprintf("/proc/self/fd/%d", fd), true)
	defer f.Close()

	data := bytes.Repeat([]byte{1}, 3*page)
	n, err := f.WriteAt(data, int64(2*page))
	if n != 2*page || !errors.Is(err, unix.EPERM) {
		t.Errorf("%d bytes, %v; want %d and %v", n, err, 2*page, unix.EPERM)
	}
	want := append(make([]byte, 2*page), data[:2*page]...)
	if content(t, f) != string(want) {
		t.Error("the file has not the bytes that were written")
	}
}
