package filesrc

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

// content reads the image to its size.
func content(t *testing.T, f *File) string {
	t.Helper()
	p := make([]byte, f.Size())
	if _, err := f.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	return string(p)
}

// TestStamp_readOnly changes what the name leads to, step by step.
func TestStamp_readOnly(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, tc := range []struct {
		name     string
		path     string
		change   func()
		want     string
		wantName bool // the name leads to what is served
	}{
		{"nothing", "image", func() {}, "old", true},
		{"replaced", "image", func() {
			check(t, os.Rename(writeFile(t, at("n"), []byte("longer")), at("image")))
		}, "longer", true},
		{"removed", "image", func() { check(t, os.Remove(at("image"))) }, "old", false},
		{"removed and made again", "image", func() {
			check(t, os.Remove(at("image")))
			writeFile(t, at("image"), []byte("again"))
		}, "again", true},
		{"by a directory", "image", func() {
			check(t, os.Remove(at("image")))
			check(t, os.Mkdir(at("image"), 0o700))
		}, "old", false},
		{"by a fifo", "image", func() {
			check(t, os.Remove(at("image")))
			check(t, unix.Mkfifo(at("image"), 0o600))
		}, "old", false},
		{"by a link", "image", func() {
			check(t, os.Remove(at("image")))
			writeFile(t, at("other"), []byte("linked"))
			check(t, os.Symlink("other", at("image")))
		}, "linked", true},
		{"link: target replaced", "link", func() {
			check(t, os.Rename(writeFile(t, at("n"), []byte("new")), at("image")))
		}, "new", true},
		{"link: elsewhere", "link", func() {
			writeFile(t, at("sub/v2"), []byte("version 2"))
			check(t, os.Symlink("sub/v2", at("l")))
			check(t, os.Rename(at("l"), at("link")))
		}, "version 2", true},
		{"link: nowhere", "link", func() {
			check(t, os.Symlink("none/none", at("l")))
			check(t, os.Rename(at("l"), at("link")))
		}, "old", false},
		{"link: becomes a file", "link", func() {
			check(t, os.Remove(at("link")))
			writeFile(t, at("link"), []byte("plain"))
		}, "plain", true},
		{"directory renamed", "image", func() { check(t, os.Rename(dir, dir+"x")) }, "old", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer os.Rename(dir+"x", dir)
			check(t, os.RemoveAll(dir))
			check(t, os.MkdirAll(at("sub"), 0o700))
			writeFile(t, at("image"), []byte("old"))
			check(t, os.Symlink("image", at("link")))
			f := open(t, at(tc.path), false)
			first, err := f.Stamp()
			check(t, err)

			tc.change()
			if got := content(t, f); got != "old" {
				t.Errorf("got %q before a stamp", got)
			}
			st, err := f.Stamp()
			check(t, err)
			if got := content(t, f); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if same := st.Dev == st.NameDev && st.Inode == st.NameInode; same != tc.wantName {
				t.Errorf("name leads to what is served: %v; %+v", same, st)
			}
			if changed := st != first; changed == (tc.name == "nothing" || tc.name == "directory renamed") {
				t.Errorf("stamp changed: %v", changed)
			}
			if again, err := f.Stamp(); again != st || err != nil {
				t.Errorf("second stamp %+v, %v, first %+v", again, err, st)
			}
			if f.Replaced() {
				t.Error("a read-only image says it was replaced")
			}
			served, err := f.Stat()
			check(t, err)
			if served.Ino != st.Inode || served.Size != st.Size {
				t.Errorf("stat tells of inode %d, stamp of %d", served.Ino, st.Inode)
			}
		})
	}
}

// TestStamp_removed tells the file without a name from others by zeros.
func TestStamp_removed(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "image"), []byte("x"))
	f := open(t, path, false)
	check(t, os.Remove(path))
	st, err := f.Stamp()
	check(t, err)
	if st.NameDev != 0 || st.NameInode != 0 || st.Inode == 0 {
		t.Errorf("got %+v", st)
	}
}

// TestStamp_descriptor: the number that an image was given by comes to mean
// another file.
func TestStamp_descriptor(t *testing.T) {
	dir := t.TempDir()
	var files [2]*os.File
	for i, text := range []string{"old", "wrong"} {
		file, err := os.Open(writeFile(t, filepath.Join(dir, text), []byte(text)))
		check(t, err)
		defer file.Close()
		files[i] = file
	}
	f := open(t, "/dev/fd/"+itoa(int(files[0].Fd())), false)
	check(t, unix.Dup3(int(files[1].Fd()), int(files[0].Fd()), unix.O_CLOEXEC))
	st, err := f.Stamp()
	check(t, err)
	if got := content(t, f); got != "old" || st.Inode == st.NameInode {
		t.Errorf("got %q, %+v", got, st)
	}
}

func TestStamp_writable(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(path string) error
		replaced bool
	}{
		{"nothing", func(string) error { return nil }, false},
		{"written", func(path string) error { return os.WriteFile(path, []byte("abc"), 0) }, false},
		{"resized", func(path string) error { return os.Truncate(path, 77) }, false},
		{"replaced", func(path string) error {
			if err := os.WriteFile(path+"n", []byte("new"), 0o600); err != nil {
				return err
			}
			return os.Rename(path+"n", path)
		}, true},
		{"removed", os.Remove, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := writeFile(t, filepath.Join(t.TempDir(), "image"), []byte("old"))
			f := open(t, path, true)
			first, err := f.Stamp()
			check(t, err)
			check(t, tc.change(path))
			f.nameSeen = f.nameSeen.Add(-nameInterval) // as if it were later
			st, err := f.Stamp()
			check(t, err)
			if st.Inode != first.Inode || f.Replaced() != tc.replaced {
				t.Errorf("inode %d was %d, replaced %v", st.Inode, first.Inode, f.Replaced())
			}
			if f.Size() != st.Size || tc.name == "resized" && st.Size != 77 {
				t.Errorf("size %d, in stamp %d", f.Size(), st.Size)
			}
		})
	}
}

// TestStamp_covered mounts over the image's directory: neither stamps nor a
// turn to a new file may walk into the mount.
func TestStamp_covered(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	path := writeFile(t, filepath.Join(dir, "image"), []byte("old"))
	check(t, os.Symlink(path, filepath.Join(dir, "link")))
	under, err := os.Open(dir)
	check(t, err)
	defer under.Close()
	f, l := open(t, path, false), open(t, filepath.Join(dir, "link"), false)
	check(t, unix.Mount("none", dir, "tmpfs", 0, ""))
	defer unix.Unmount(dir, 0)
	writeFile(t, path, []byte("wrong"))

	fd := "/proc/self/fd/" + itoa(int(under.Fd()))
	check(t, os.Rename(writeFile(t, fd+"/n", []byte("new")), fd+"/image"))
	for name, f := range map[string]*File{"file": f, "link": l} {
		_, err := f.Stamp()
		check(t, err)
		if got := content(t, f); got != "new" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// TestStamp_race reads while the name is turned from file to file: each read
// is of one of them, none fails, and none is left open.
func TestStamp_race(t *testing.T) {
	const size, turns, readers = 64 << 10, 300, 4
	dir := t.TempDir()
	path := filepath.Join(dir, "image")
	fill := func(i int, path string) string {
		return writeFile(t, path, bytes.Repeat([]byte{byte('a' + i%26)}, size))
	}
	f := open(t, fill(0, path), false)
	before := openFiles(t)

	done := make(chan struct{})
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			p := make([]byte, size)
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := f.ReadAt(p, 0); err != nil {
					t.Error(err)
					return
				}
				if bytes.Count(p, p[:1]) != size {
					t.Error("one read mixes two files")
					return
				}
				if _, err := f.Stamp(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range turns {
		check(t, os.Rename(fill(i+1, path+"n"), path))
	}
	close(done)
	wg.Wait()
	_, err := f.Stamp()
	check(t, err)
	if got, want := content(t, f)[0], byte('a'+turns%26); got != want {
		t.Errorf("ends on %c, want %c", got, want)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d files open, %d before", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(fds)
}

// TestStamp_punch: who has read zeros of a hole that another is punching learns of it
// from the next stamp.
func TestStamp_punch(t *testing.T) {
	eachFS(t, func(t *testing.T, fs, dir string) {
		path := filepath.Join(dir, "disk.raw")
		const size = 32 << 20
		for range 10 {
			if err := os.WriteFile(path, bytes.Repeat([]byte{1}, size), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := Open(path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // a tick of the file's times
			before, err := f.Stamp()
			if err != nil {
				t.Fatal(err)
			}
			done := false
			punched := make(chan error, 1)
			go func() { punched <- punch(path, size) }()
			one := []byte{1}
			for one[0] != 0 && !done {
				select {
				case err = <-punched:
					done = true
				default:
				}
				if _, err := f.ReadAt(one, 0); err != nil {
					t.Fatal(err)
				}
			}
			after, stampErr := f.Stamp()
			if one[0] == 0 && after == before || stampErr != nil {
				t.Errorf("there are zeros, and the stamp is as before (%v)", stampErr)
			}
			if !done {
				err = <-punched
			}
			f.Close()
			if errors.Is(err, unix.EOPNOTSUPP) {
				return
			}
			if err != nil || one[0] != 0 {
				t.Errorf("no zeros were read (%v)", err)
			}
		}
	})
}

func punch(path string, n int64) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, n)
}
