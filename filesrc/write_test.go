package filesrc

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// TestZero covers the three ways of zeroing: in place where the disk's file
// system can, punch and allocate on tmpfs, writing on ramfs.
func TestZero(t *testing.T) {
	const size = 3<<20 + 1000 // more than one piece of zeros
	eachFS(t, func(t *testing.T, fs, dir string) {
		for _, tc := range []struct {
			name        string
			off, length int64
			punch       bool
		}{
			{"all", 0, size, false},
			{"inside a block", 100, 200, false},
			{"unaligned", 1001, 2<<20 + 77, false},
			{"to the end", 1 << 20, size - 1<<20, false},
			{"nothing", 5, 0, false},
			{"punch all", 0, size, true},
			{"punch inside a block", 100, 200, true},
			{"punch unaligned", 1001, 2<<20 + 77, true},
			{"punch to the end", 1 << 20, size - 1<<20, true},
			{"punch nothing", 5, 0, true},
		} {
			t.Run(tc.name, func(t *testing.T) {
				want := bytes.Repeat([]byte{0xa5}, size)
				f := open(t, writeFile(t, filepath.Join(dir, "image"), want), true)
				defer f.Close()
				err := f.Zero(tc.off, tc.length, tc.punch)
				if fs == "ramfs" && tc.punch && tc.length > 0 {
					if !errors.Is(err, hasher.ErrNotSupported) {
						t.Errorf("got %v", err)
					}
					err = nil
				} else {
					clear(want[tc.off : tc.off+tc.length])
				}
				check(t, err)
				st, err := f.Stat()
				check(t, err)
				if content(t, f) != string(want) || st.Size != size {
					t.Error("wrong bytes afterwards")
				}
				// A file system may allocate lazily, but not give back.
				if !tc.punch && fs != "btrfs" && st.Blocks*512 < size {
					t.Errorf("%d bytes stay allocated", st.Blocks*512)
				}
			})
		}
	})
}

func TestAllocate(t *testing.T) {
	const size = 1 << 20
	eachFS(t, func(t *testing.T, fs, dir string) {
		path := writeFile(t, filepath.Join(dir, "image"), []byte("begin"))
		check(t, os.Truncate(path, size))
		f := open(t, path, true)
		before := content(t, f)
		err := f.Allocate(0, size)
		if fs == "ramfs" {
			if !errors.Is(err, hasher.ErrNotSupported) {
				t.Errorf("got %v", err)
			}
			return
		}
		check(t, err)
		check(t, f.Allocate(0, 0))
		st, err := f.Stat()
		check(t, err)
		if st.Blocks*512 < size || st.Size != size || content(t, f) != before {
			t.Errorf("%d bytes allocated of %d", st.Blocks*512, st.Size)
		}
	})
}

func TestWriteAt(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "image"), []byte("0123456789"))
	f := open(t, path, true)
	n, err := f.WriteAt([]byte("abc"), 4)
	check(t, err)
	check(t, f.Flush())
	got, err := os.ReadFile(path)
	check(t, err)
	if n != 3 || string(got) != "0123abc789" || !f.Writable() {
		t.Errorf("wrote %d, got %q", n, got)
	}
}

func TestWrite_readOnly(t *testing.T) {
	f := open(t, writeFile(t, filepath.Join(t.TempDir(), "image"), []byte("x")), false)
	_, err := f.WriteAt([]byte("y"), 0)
	for name, err := range map[string]error{
		"write":    err,
		"flush":    f.Flush(),
		"zero":     f.Zero(0, 1, false),
		"punch":    f.Zero(0, 1, true),
		"allocate": f.Allocate(0, 1),
	} {
		if !errors.Is(err, hasher.ErrReadOnly) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if f.Writable() || content(t, f) != "x" {
		t.Error("writable after all")
	}
}

// TestWrite_full: a full file system is an error that says so, in each way.
func TestWrite_full(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	check(t, unix.Mount("none", dir, "tmpfs", 0, "size=1m"))
	defer unix.Unmount(dir, 0)
	path := writeFile(t, filepath.Join(dir, "image"), nil)
	check(t, os.Truncate(path, 4<<20))
	f := open(t, path, true)
	defer f.Close()
	n, err := f.WriteAt(make([]byte, 4<<20), 0)
	if n >= 4<<20 {
		t.Errorf("wrote %d", n)
	}
	for name, err := range map[string]error{
		"write":    err,
		"zero":     f.Zero(0, 4<<20, false),
		"allocate": f.Allocate(0, 4<<20),
	} {
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
