package filesrc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func lockRange(f *os.File, typ int16, start, length int64) error {
	lk := unix.Flock_t{Type: typ, Start: start, Len: length}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
}

func lockFile(t *testing.T, f *File) *os.File {
	t.Helper()
	l, err := f.LockFile()
	check(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func TestLockFile_writable(t *testing.T) {
	f := open(t, image(t), true)
	a, b := lockFile(t, f), lockFile(t, f)
	check(t, lockRange(a, unix.F_WRLCK, 0, 0)) // not against the image's own locks
	if err := lockRange(b, unix.F_RDLCK, 10, 1); err != unix.EAGAIN {
		t.Errorf("second client: %v", err)
	}
	check(t, a.Close())
	check(t, lockRange(b, unix.F_WRLCK, 10, 1))
	if n, err := a.Write(nil); err == nil {
		t.Errorf("wrote %d to a closed file", n)
	}
}

func TestLockFile_readOnly(t *testing.T) {
	path := image(t)
	f := open(t, path, false)
	a, b := lockFile(t, f), lockFile(t, f)
	check(t, lockRange(a, unix.F_RDLCK, 0, 10))
	check(t, lockRange(b, unix.F_RDLCK, 0, 10))
	if err := lockRange(b, unix.F_WRLCK, 0, 10); err != unix.EBADF {
		t.Errorf("write lock: %v", err)
	}
	if _, err := a.Write([]byte("x")); !errors.Is(err, unix.EBADF) {
		t.Errorf("write: %v", err)
	}
	// A user of the file itself is seen.
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer w.Close()
	if err := lockRange(w, unix.F_WRLCK, 0, 10); err != unix.EAGAIN {
		t.Errorf("lock of the file: %v", err)
	}
	check(t, lockRange(w, unix.F_WRLCK, 20, 10))
	if err := lockRange(a, unix.F_RDLCK, 20, 10); err != unix.EAGAIN {
		t.Errorf("lock by a client: %v", err)
	}
}

// TestPassthroughFile: the descriptor outlives a turn to another file.
func TestPassthroughFile(t *testing.T) {
	eachFS(t, func(t *testing.T, fs, dir string) {
		path := writeFile(t, filepath.Join(dir, "image"), []byte("old"))
		f := open(t, path, false)
		p, ok := f.PassthroughFile()
		if !ok {
			var st unix.Statfs_t
			check(t, unix.Statfs(dir, &st))
			if st.Type != unix.OVERLAYFS_SUPER_MAGIC {
				t.Fatal("not offered")
			}
			return
		}
		defer p.Close()
		check(t, os.Rename(writeFile(t, path+"n", []byte("new")), path))
		_, err := f.Stamp()
		check(t, err)
		buf := make([]byte, 3)
		if _, err := p.ReadAt(buf, 0); err != nil || string(buf) != "old" {
			t.Errorf("got %q, %v", buf, err)
		}
	})
}

func TestPassthroughFile_refused(t *testing.T) {
	if p, ok := open(t, image(t), true).PassthroughFile(); ok || p != nil {
		t.Error("offered for a writable image")
	}
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir, err := os.MkdirTemp("/dev/shm", "filesrc-test-")
	check(t, err)
	defer os.RemoveAll(dir)
	for _, d := range []string{"lower", "upper", "work", "at"} {
		check(t, os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	writeFile(t, filepath.Join(dir, "lower/image"), []byte("x"))
	err = unix.Mount("none", dir+"/at", "overlay", 0,
		"lowerdir="+dir+"/lower,upperdir="+dir+"/upper,workdir="+dir+"/work")
	if err == unix.ENODEV {
		t.Skip("no overlayfs in this kernel")
	}
	check(t, err)
	defer unix.Unmount(dir+"/at", 0)
	f := open(t, dir+"/at/image", false)
	defer f.Close()
	if _, ok := f.PassthroughFile(); ok {
		t.Error("offered on overlayfs")
	}
}
