package integration

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A diskMount is an image in a file that is mounted as "disk".
type diskMount struct {
	*mounted
	backing string // path of the file
	bs      int64  // block size in bytes
}

// mountDisk mounts the file at path with flags.
func mountDisk(t testing.TB, path string, flags ...string) *diskMount {
	t.Helper()
	return &diskMount{mount(t, append(flags, "disk="+path)...), path, blockSize}
}

// writableDisk mounts a new image of these bytes for writing.
func writableDisk(t testing.TB, data []byte, flags ...string) *diskMount {
	t.Helper()
	path := filepath.Join(scratch(t), "backing.img")
	writeImage(t, path, data)
	return mountDisk(t, path, append(flags, "--writable")...)
}

func (d *diskMount) image() string { return d.path("disk", "image") }

// open opens the image itself, with flags of open(2).
func (d *diskMount) open(flags int) *os.File {
	d.t.Helper()
	f, err := os.OpenFile(d.image(), flags, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { f.Close() })
	return f
}

// check compares the digests and maps of the image with what is computed here
// from the backing file: those of this mount, and those of a fresh one.
func (d *diskMount) check(when string) {
	d.t.Helper()
	d.checkHere(when)
	fresh := mountDisk(d.t, d.backing, "--digest", fmt.Sprintf("sha256/%d", d.bs))
	fresh.bs = d.bs
	fresh.checkHere(when + ", mounted again")
	fresh.unmount()
}

// checkHere is check without the fresh mount.
func (d *diskMount) checkHere(when string) {
	d.t.Helper()
	o := newOracleOf(sha256.New, d.bs, []byte(readFile(d.t, d.backing)))
	same(d.t, when+": digests.bin", d.read("disk", "digests.bin"), o.bin())
	same(d.t, when+": digests", d.read("disk", "digests"), o.digests())
	same(d.t, when+": checksum", d.read("disk", "checksum"), o.checksum())
	extents := extentsOf(d.t, d.backing)
	same(d.t, when+": map", d.read("disk", "map"), extentLines(extents))
	var got []extent
	if err := json.Unmarshal([]byte(d.read("disk", "map.json")), &got); err != nil {
		d.t.Fatalf("%s: map.json: %v", when, err)
	}
	if fmt.Sprint(got) != fmt.Sprint(extents) {
		d.t.Errorf("%s: map.json says %v, want %v", when, got, extents)
	}
}

// An extent is a run of bytes of a file that are a hole or not.
type extent struct {
	Start  int64
	Length int64
	Data   bool
}

// extentsOf asks the file system for the extents of a file.
func extentsOf(t testing.TB, path string) (all []extent) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	end, err := f.Seek(0, unix.SEEK_END)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < end; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			data, err = end, nil
		}
		e := extent{at, data - at, false}
		if err == nil && data == at {
			var hole int64
			hole, err = unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
			e = extent{at, hole - at, true}
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
		at += e.Length
	}
	return all
}

// extentLines is the content of the file map.
func extentLines(extents []extent) string {
	var b strings.Builder
	for _, e := range extents {
		if e.Data {
			fmt.Fprintf(&b, "%10d  %10d  %3d  data\n", e.Start, e.Length, 0)
		} else {
			fmt.Fprintf(&b, "%10d  %10d  %3d  hole,zero\n", e.Start, e.Length, 3)
		}
	}
	return b.String()
}

// aligned returns n bytes that begin at a page, as O_DIRECT wants them.
func aligned(t testing.TB, n int) []byte {
	t.Helper()
	p, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(p) })
	return p[:n]
}

// sameBytes is same for bytes of an image.
func sameBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		same(t, what, string(got), string(want))
	}
}

// wantErrno fails the test unless err is the errno, 0 for none.
func wantErrno(t testing.TB, what string, err error, want unix.Errno) {
	t.Helper()
	if want == 0 && err != nil || want != 0 && !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// readAll is os.ReadFile for goroutines that may not end the test.
func readAll(path string) (string, error) {
	content, err := os.ReadFile(path)
	return string(content), err
}

// uninterrupted calls a system call again when a signal interrupted it: the Go
// runtime sends itself some, and a request that waits for a hash ends by them.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// fallocate is fallocate(2).
func fallocate(f *os.File, mode uint32, off, length int64) error {
	return uninterrupted(func() error { return unix.Fallocate(int(f.Fd()), mode, off, length) })
}

// pwrite is pwrite(2): os.File's method goes on after a short write.
func pwrite(f *os.File, p []byte, off int64) (n int, err error) {
	err = uninterrupted(func() (err error) {
		n, err = unix.Pwrite(int(f.Fd()), p, off)
		return err
	})
	return n, err
}
