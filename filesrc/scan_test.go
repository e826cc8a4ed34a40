package filesrc

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// cachedPages returns which pages of a file are in the page cache.
func cachedPages(t *testing.T, f *File, size int64) []bool {
	t.Helper()
	h, err := f.acquire()
	if err != nil {
		t.Fatal(err)
	}
	defer f.release(h)
	there, err := h.resident(0, size)
	if err != nil {
		t.Fatal(err)
	}
	pages := make([]bool, len(there))
	for i, b := range there {
		pages[i] = b&1 != 0
	}
	return pages
}

func TestScanAt_leavesThePageCacheAsItWas(t *testing.T) {
	page := int64(os.Getpagesize())
	size := 64*page + 100
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	path := filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, older := range []bool{false, true} {
		f, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		f.current.caches.Store(older)
		// Only clean pages can be dropped.
		if err := f.current.file.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Fatal(err)
		}
		if err := unix.Fadvise(f.current.fd, 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fadvise(f.current.fd, 0, 0, unix.FADV_RANDOM); err != nil {
			t.Fatal(err)
		}
		one := make([]byte, page)
		for _, at := range []int64{3, 4, 20} {
			if _, err := f.ReadAt(one, at*page); err != nil {
				t.Fatal(err)
			}
		}
		before := cachedPages(t, f, size)
		got := make([]byte, size)
		for off := int64(0); off < size; off += 10 * page {
			end := min(off+10*page, size)
			if n, err := f.ScanAt(got[off:end], off, true); err != nil {
				t.Fatalf("older=%v: %d bytes at %d: %v", older, n, off, err)
			}
		}
		if !bytes.Equal(got, data) {
			t.Errorf("older=%v: the bytes differ", older)
		}
		after := cachedPages(t, f, size)
		for i := range before {
			if before[i] && !after[i] {
				t.Errorf("older=%v: page %d was cached and is so no more", older, i)
			}
			if !before[i] && after[i] {
				t.Errorf("older=%v: page %d is cached now", older, i)
			}
		}
	}
}

func TestScanAt_withoutWaitTakesWhatIsCached(t *testing.T) {
	page := int64(os.Getpagesize())
	data := bytes.Repeat([]byte("0123456789abcdef"), 8*int(page)/16)
	path := filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, len(data))
	n, err := f.ScanAt(p, 0, false)
	if errors.Is(err, hasher.ErrWouldWait) && n == 0 {
		t.Log("this file system never answers without waiting")
		return
	}
	if n != len(p) || err != nil || !bytes.Equal(p, data) {
		t.Errorf("%d bytes of a cached file, %v", n, err)
	}
	if err := f.current.file.Sync(); err != nil {
		t.Fatal(err)
	}
	// Pages that were written together may be kept together.
	if err := unix.Fadvise(f.current.fd, 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(f.current.fd, 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	for at := range int64(4) {
		if _, err := f.ReadAt(p[:page], at*page); err != nil {
			t.Fatal(err)
		}
	}
	if cachedPages(t, f, 8*page)[4] {
		t.Log("this file system keeps its pages")
		return
	}
	if n, err := f.ScanAt(p, 0, false); int64(n) != 4*page || !errors.Is(err, hasher.ErrWouldWait) {
		t.Errorf("%d bytes, %v, want %d and ErrWouldWait", n, err, 4*page)
	}
}

func TestScanAt_endsAsReadAtDoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, older := range []bool{false, true} {
		f, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		f.current.caches.Store(older)
		for _, c := range []struct {
			off  int64
			len  int
			want string
			err  error
		}{
			{0, 10, "0123456789", nil}, {3, 4, "3456", nil}, {8, 5, "89", io.EOF}, {10, 1, "", io.EOF}, {50, 1, "", io.EOF}, {5, 0, "", nil},
		} {
			p := make([]byte, c.len)
			n, err := f.ScanAt(p, c.off, true)
			if string(p[:n]) != c.want || !errors.Is(err, c.err) {
				t.Errorf("older=%v: %d bytes at %d: %q, %v, want %q, %v", older, c.len, c.off, p[:n], err, c.want, c.err)
			}
		}
	}
}

// TestCached_keepsNothing: to ask of an empty range, too, leaves the file to be closed.
func TestCached_keepsNothing(t *testing.T) {
	f := open(t, writeFile(t, filepath.Join(t.TempDir(), "disk.raw"), []byte("0123456789")), false)
	for _, length := range []int64{-1, 0, 1, 10} {
		if n := f.Cached(0, length); n > max(0, length) {
			t.Errorf("%d bytes of %d are cached", n, length)
		}
	}
	if f.current.refs != 1 {
		t.Errorf("the file has %d users", f.current.refs)
	}
}

// TestScanAt_marks: what is in the page cache because it was read in order is read, and
// looked at in place, without more coming there.
func TestScanAt_marks(t *testing.T) {
	eachFS(t, func(t *testing.T, fs, dir string) {
		if fs == "tmpfs" {
			t.Skip("all of it is in the page cache")
		}
		const size, some = 32 << 20, 2 << 20
		path := filepath.Join(dir, "disk.raw")
		if err := os.WriteFile(path, bytes.Repeat([]byte{1, 2, 3, 4}, size/4), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		mapped := f.mayMap(f.current)
		for _, inPlace := range []bool{false, true} {
			if inPlace && !mapped {
				continue
			}
			if err := f.current.file.Sync(); err != nil {
				t.Fatal(err)
			}
			if err := unix.Fadvise(f.current.fd, 0, 0, unix.FADV_DONTNEED); err != nil {
				t.Fatal(err)
			}
			readInOrder(t, path, some)
			page := int64(os.Getpagesize())
			cached := f.Cached(0, size)
			p := make([]byte, 256<<10)
			for off := int64(0); off < cached; off += int64(len(p)) {
				n := min(int64(len(p)), cached-off)
				if inPlace {
					err = f.Map(off, n, func(m []byte) { copy(p, m) })
				} else {
					_, err = f.ScanAt(p[:n], off, false)
				}
				if err != nil && !errors.Is(err, hasher.ErrWouldWait) {
					t.Fatal(err)
				}
			}
			if after := f.Cached(0, size); mapped && after > cached {
				t.Errorf("in place %t: %d pages, %d before", inPlace, after/page, cached/page)
			}
		}
	})
}

// readInOrder reads the first n bytes as any program would.
func readInOrder(t *testing.T, path string, n int64) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(file, n), make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
}
