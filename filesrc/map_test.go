package filesrc

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mappedFile returns an open file of some pages on a file system that is known
// for its mappings, and its content.
func mappedFile(t *testing.T, pages int) (*File, []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.raw")
	data := make([]byte, pages*os.Getpagesize())
	rand.NewChaCha8([32]byte{7}).Read(data)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	f.current.askType.Do(func() {}) // whatever the temporary directory is on
	f.current.fsType = unix.EXT4_SUPER_MAGIC
	return f, data
}

func TestMap(t *testing.T) {
	f, data := mappedFile(t, 8)
	page := int64(os.Getpagesize())
	for _, r := range [][2]int64{{0, 8}, {3, 1}, {5, 3}} {
		var got []byte
		if err := f.Map(r[0]*page, r[1]*page, func(p []byte) { got = bytes.Clone(p) }); err != nil {
			t.Error(err)
		}
		if want := data[r[0]*page:][:r[1]*page]; !bytes.Equal(got, want) {
			t.Errorf("%v: the bytes differ", r)
		}
	}
	f.current.fsType = 0
	if err := f.Map(0, page, func([]byte) { t.Error("used") }); err == nil || !strings.Contains(err.Error(), f.path) {
		t.Errorf("on an unknown file system: %v", err)
	}
	f.Close()
	if err := f.Map(0, page, func([]byte) { t.Error("used") }); err == nil {
		t.Error("no error after Close")
	}
}

// TestMap_cut: a load of what is no longer there is an error, and no end of the
// program.
func TestMap_cut(t *testing.T) {
	f, data := mappedFile(t, 8)
	page := os.Getpagesize()
	var got []byte
	deferred := false
	err := f.Map(0, int64(len(data)), func(p []byte) {
		defer func() { deferred = true }()
		got = append(got, p[:2*page]...)
		if err := os.Truncate(f.path, int64(2*page)); err != nil {
			t.Error(err)
		}
		got = append(got, p[2*page:]...)
	})
	if err == nil || !strings.Contains(err.Error(), f.path) {
		t.Errorf("got %v", err)
	}
	if !bytes.Equal(got, data[:2*page]) || !deferred {
		t.Errorf("%d bytes, deferred %v", len(got), deferred)
	}
}

// TestMap_panics: what is wrong in use itself is not taken for a fault of the
// file.
func TestMap_panics(t *testing.T) {
	f, data := mappedFile(t, 1)
	elsewhere, err := unix.Mmap(-1, 0, len(data), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(elsewhere)
	var got byte
	for name, use := range map[string]func([]byte){
		"an index":        func(p []byte) { got = p[len(p)-1+len(elsewhere)] },
		"a nil pointer":   func([]byte) { *(*int)(nil) = 1 },
		"other memory":    func([]byte) { got = elsewhere[0] },
		"a panic of ours": func([]byte) { panic("ours") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			err := f.Map(0, int64(len(data)), use)
			t.Errorf("%s: %v, byte %d", name, err, got)
		}()
	}
}

// TestMap_device: storage that fails.
func TestMap_device(t *testing.T) {
	device, backing := loopDevice(t, 1<<20)
	f, err := Open(device, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Map(0, 1<<20, func(p []byte) { _ = bytes.Clone(p) }); err != nil {
		t.Error(err)
	}
	if err := os.Truncate(backing, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(f.current.fd, 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if err := f.Map(0, 1<<20, func(p []byte) { _ = bytes.Clone(p) }); err == nil || !strings.Contains(err.Error(), device) {
		t.Errorf("got %v", err)
	}
}
