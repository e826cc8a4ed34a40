package filesrc

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

const hz = hasher.ExtentHole | hasher.ExtentZero

func ext(off, length int64, typ uint32) hasher.Extent {
	return hasher.Extent{Offset: off, Length: length, Type: typ}
}

// list returns the extents of a range, merged, after checking that they cover
// it in order.
func list(t *testing.T, f *File, off, length int64) []hasher.Extent {
	t.Helper()
	var got []hasher.Extent
	pos := off
	err := f.Extents(t.Context(), off, length, func(e hasher.Extent) bool {
		if e.Offset != pos || e.Length <= 0 || e.Type != 0 && e.Type != hz {
			t.Fatalf("extent %+v at %d", e, pos)
		}
		pos = e.End()
		if n := len(got); n > 0 && got[n-1].Type == e.Type {
			got[n-1].Length += e.Length
		} else {
			got = append(got, e)
		}
		return true
	})
	check(t, err)
	if pos != off+length {
		t.Fatalf("extents of [%d, %d) end at %d", off, off+length, pos)
	}
	return got
}

func TestExtents(t *testing.T) {
	const k = 1 << 10
	eachFS(t, func(t *testing.T, fs, dir string) {
		path := filepath.Join(dir, "image")
		w, err := os.Create(path)
		check(t, err)
		defer w.Close()
		check(t, w.Truncate(1024*k+100))
		_, err = w.WriteAt(make([]byte, 64*k), 256*k) // zeros, but data
		check(t, err)
		f := open(t, path, false)
		for _, tc := range []struct {
			name        string
			off, length int64
			want        []hasher.Extent
		}{
			{"all", 0, 1024*k + 100, []hasher.Extent{
				ext(0, 256*k, hz), ext(256*k, 64*k, 0), ext(320*k, 704*k+100, hz)}},
			{"empty range", 5, 0, nil},
			{"empty range at the end", 1024*k + 100, 0, nil},
			{"last byte", 1024*k + 99, 1, []hasher.Extent{ext(1024*k+99, 1, hz)}},
			{"within the hole", 7, 9, []hasher.Extent{ext(7, 9, hz)}},
			{"within the data", 256*k + 7, 9, []hasher.Extent{ext(256*k+7, 9, 0)}},
			{"over both borders", 256*k - 1, 64*k + 2, []hasher.Extent{
				ext(256*k-1, 1, hz), ext(256*k, 64*k, 0), ext(320*k, 1, hz)}},
		} {
			t.Run(tc.name, func(t *testing.T) {
				want := tc.want
				if fs == "ramfs" && tc.length > 0 { // knows no holes
					want = []hasher.Extent{ext(tc.off, tc.length, 0)}
				}
				if d := cmp.Diff(want, list(t, f, tc.off, tc.length)); d != "" {
					t.Error(d)
				}
			})
		}
	})
}

// TestExtents_unsynced: storage that is reserved, not written, is a hole until
// the moment that it is written, and not when that reaches the disk.
func TestExtents_unsynced(t *testing.T) {
	const size, b = 4 << 20, 64 << 10
	eachFS(t, func(t *testing.T, fs, dir string) {
		if fs == "ramfs" {
			t.Skip("ramfs reserves nothing")
		}
		path := writeFile(t, filepath.Join(dir, "image"), nil)
		check(t, os.Truncate(path, size))
		f := open(t, path, true)
		check(t, f.Allocate(0, size))
		if d := cmp.Diff([]hasher.Extent{ext(0, size, hz)}, list(t, f, 0, size)); fs != "tmpfs" && d != "" {
			t.Error("allocated:", d)
		}
		_, err := f.WriteAt([]byte{1}, 1<<20)
		check(t, err)
		for _, e := range list(t, f, 0, size) {
			if e.Zero() && e.Offset <= 1<<20 && 1<<20 < e.End() {
				t.Errorf("%+v holds a written byte", e)
			}
		}
	})
}

// TestExtents_model compares with a map of bytes after random writes, punches
// and zeroing: no hole may hold a byte that is not zero, and what was never
// written, or punched in whole blocks, is not called data.
func TestExtents_model(t *testing.T) {
	const block, size, steps = 4096, 64*4096 + 1000, 150
	eachFS(t, func(t *testing.T, fs, dir string) {
		if fs == "ramfs" {
			t.Skip("ramfs cannot punch")
		}
		path := writeFile(t, filepath.Join(dir, "image"), nil)
		check(t, os.Truncate(path, size))
		f := open(t, path, true)
		rnd := rand.New(rand.NewPCG(1, 2))
		var model [size]byte
		var hole [size/block + 1]bool // known to be one
		for i := range hole {
			hole[i] = true
		}
		for step := range steps {
			off := rnd.Int64N(size)
			length := 1 + rnd.Int64N(min(size-off, 5*block))
			op := rnd.IntN(4)
			if op < 2 {
				p := model[off : off+length]
				for i := range p {
					p[i] = byte(1 + rnd.IntN(255))
				}
				_, err := f.WriteAt(p, off)
				check(t, err)
			} else {
				check(t, f.Zero(off, length, op == 2))
				clear(model[off : off+length])
			}
			for b := off / block; b <= (off+length-1)/block; b++ {
				whole := off <= b*block && min((b+1)*block, size) <= off+length
				if op == 2 && whole {
					hole[b] = true
				} else if op != 2 {
					hole[b] = false
				}
			}
			from := rnd.Int64N(size)
			for _, e := range list(t, f, from, size-from) {
				for i := e.Offset; i < e.End(); i++ {
					if e.Zero() && model[i] != 0 {
						t.Fatalf("step %d: hole %+v, but byte %d was written", step, e, i)
					}
					if !e.Zero() && hole[i/block] {
						t.Fatalf("step %d: data %+v, but byte %d is in a hole", step, e, i)
					}
				}
			}
		}
		if content(t, f) != string(model[:]) {
			t.Error("content differs from the model")
		}
	})
}

// TestExtents_shrink cuts the file while it is walked: what is missing does
// not read as zeros.
func TestExtents_shrink(t *testing.T) {
	const size, cut = 1 << 20, 300_000
	path := writeFile(t, filepath.Join(t.TempDir(), "image"), make([]byte, 4096))
	check(t, os.Truncate(path, size))
	f := open(t, path, false)
	var got []hasher.Extent
	check(t, f.Extents(t.Context(), 0, size, func(e hasher.Extent) bool {
		if len(got) == 0 {
			check(t, os.Truncate(path, cut))
		}
		got = append(got, e)
		return true
	}))
	want := []hasher.Extent{ext(0, 4096, 0), ext(4096, cut-4096, hz), ext(cut, size-cut, 0)}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	want = []hasher.Extent{ext(cut+5, 10, 0)}
	if d := cmp.Diff(want, list(t, f, cut+5, 10)); d != "" {
		t.Error("beyond the end:", d)
	}
}

func TestExtents_stops(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "image"), make([]byte, 4096))
	check(t, os.Truncate(path, 1<<20))
	f := open(t, path, false)
	t.Run("by yield", func(t *testing.T) {
		n := 0
		check(t, f.Extents(t.Context(), 0, 1<<20, func(hasher.Extent) bool { n++; return false }))
		if n != 1 {
			t.Errorf("%d extents", n)
		}
	})
	t.Run("by context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		err := f.Extents(ctx, 0, 1<<20, func(hasher.Extent) bool { n++; cancel(); return true })
		if n != 1 || !errors.Is(err, context.Canceled) {
			t.Errorf("%d extents, %v", n, err)
		}
	})
}

// TestExtents_races has the walk overtaken by punches and writes: it must not
// end early, stand still or report a hole where a byte is always set.
func TestExtents_races(t *testing.T) {
	const size = 1 << 20
	path := writeFile(t, filepath.Join(t.TempDir(), "image"), make([]byte, size))
	f := open(t, path, true)
	_, err := f.WriteAt([]byte{1}, size/2)
	check(t, err)
	done := make(chan error)
	go func() {
		for range 2000 {
			if err := f.Zero(0, size/4, true); err != nil {
				done <- err
				return
			}
			if _, err := f.WriteAt(zeros[:size/4], 0); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		for _, e := range list(t, f, 0, size) {
			if e.Zero() && e.End() > size/2 {
				t.Errorf("%+v", e)
			}
		}
		select {
		case err := <-done:
			check(t, err)
			return
		default:
		}
	}
}

// TestExtents_descriptor: a walk moves the offset of the open file, and who
// shares that, as passthrough does, is not disturbed.
func TestExtents_descriptor(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "image"), []byte("0123456789"))
	f := open(t, path, false)
	p, ok := f.PassthroughFile()
	if !ok {
		t.Skip("no passthrough on this file system")
	}
	defer p.Close()
	list(t, f, 0, 10)
	buf := make([]byte, 4)
	if n, err := unix.Pread(int(p.Fd()), buf, 2); n != 4 || err != nil || string(buf) != "2345" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
}

// TestExtents_unknown: a file system that cannot tell has only data, and one
// that fails says so.
func TestExtents_unknown(t *testing.T) {
	h := open(t, writeFile(t, filepath.Join(t.TempDir(), "image"), nil), false).current
	for _, tc := range []struct {
		err  unix.Errno
		data bool
	}{{unix.EINVAL, true}, {unix.EOPNOTSUPP, true}, {unix.ENOSYS, true}, {unix.EIO, false}, {unix.ESTALE, false}} {
		e, err := h.unknown(10, 30, tc.err)
		if tc.data && (err != nil || e != ext(10, 20, 0)) || !tc.data && !errors.Is(err, tc.err) {
			t.Errorf("%v: got %+v, %v", tc.err, e, err)
		}
	}
}
