package filesrc

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

func TestOpen_refusals(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	check(t, unix.Mkfifo(at("fifo"), 0o600))
	l, err := net.Listen("unix", at("socket"))
	check(t, err)
	defer l.Close()
	writeFile(t, at("file"), nil)
	check(t, os.Symlink("loop", at("loop")))
	check(t, os.Symlink("nowhere", at("dangling")))
	check(t, os.Symlink("fifo", at("link-to-fifo")))

	for _, tc := range []struct {
		name, path string
		writable   bool
		want       string
		is         error
	}{
		{name: "missing", path: at("none"), want: "open PATH: no such file or directory", is: unix.ENOENT},
		{name: "missing, writable", path: at("none"), writable: true,
			want: "open PATH for writing: no such file or directory", is: unix.ENOENT},
		{name: "missing directory", path: at("no/ne"), want: "open PATH: no such file or directory"},
		{name: "empty", path: "", want: "open PATH: no such file or directory"},
		{name: "below a file", path: at("file/x"), want: "open PATH: not a directory"},
		{name: "file as directory", path: at("file") + "/", want: "open PATH: not a directory"},
		{name: "directory", path: dir, want: "open PATH: is a directory; a raw image is a regular file or a block device"},
		{name: "directory, slash", path: dir + "/", want: "open PATH: is a directory; a raw image is a regular file or a block device"},
		{name: "root", path: "/", want: "open PATH: is a directory; a raw image is a regular file or a block device"},
		{name: "fifo", path: at("fifo"), want: "open PATH: is a fifo; a raw image is a regular file or a block device"},
		{name: "fifo, writable", path: at("fifo"), writable: true,
			want: "open PATH: is a fifo; a raw image is a regular file or a block device"},
		{name: "link to fifo", path: at("link-to-fifo"), want: "open PATH: is a fifo; a raw image is a regular file or a block device"},
		{name: "socket", path: at("socket"), want: "open PATH: is a socket; a raw image is a regular file or a block device"},
		{name: "character device", path: "/dev/null",
			want: "open PATH: is a character device; a raw image is a regular file or a block device"},
		{name: "made as it is read", path: "/proc/version",
			want: "open PATH: has content, but says that it is empty: it is made as it is read; copy it to a regular file"},
		{name: "dangling link", path: at("dangling"), want: "open PATH: no such file or directory"},
		{name: "circle of links", path: at("loop"), want: "open PATH: too many levels of symbolic links"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, err := Open(tc.path, Options{Writable: tc.writable})
			if err == nil {
				f.Close()
				t.Fatal("opened")
			}
			if want := strings.Replace(tc.want, "PATH", tc.path, 1); err.Error() != want {
				t.Errorf("got  %s\nwant %s", err, want)
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%v is not %v", err, tc.is)
			}
		})
	}
}

// TestOpen_permissions runs as a user without rights: root has all.
func TestOpen_permissions(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "file"), []byte("x"))
	if os.Getuid() == 0 && os.Getenv("FILESRC_TEST_NOBODY") == "" {
		runAsNobody(t, dir)
		return
	}
	for _, tc := range []struct {
		name     string
		mode     os.FileMode
		writable bool
		want     string
	}{
		{"unreadable", 0, false,
			"open PATH: permission denied: run as a user who may read it"},
		{"read-only, writable", 0o400, true,
			"open PATH for writing: permission denied: run as a user who may write it, or serve it read-only"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			check(t, os.Chmod(file, tc.mode))
			_, err := Open(file, Options{Writable: tc.writable})
			if want := strings.Replace(tc.want, "PATH", file, 1); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
	t.Run("of another user", func(t *testing.T) { // O_NOATIME is refused there
		f := open(t, "/etc/passwd", false)
		if got, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size())); err != nil || len(got) == 0 {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
	})
}

func runAsNobody(t *testing.T, dir string) {
	exe := filepath.Join(dir, "test")
	data, err := os.ReadFile("/proc/self/exe")
	check(t, err)
	check(t, os.WriteFile(exe, data, 0o755))
	for _, d := range []string{filepath.Dir(dir), dir} { // both of this test alone
		check(t, os.Chmod(d, 0o777))
	}
	cmd := exec.Command(exe, "-test.run=^TestOpen_permissions$", "-test.v")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "FILESRC_TEST_NOBODY=1", "GORACE=atexit_sleep_ms=0", "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("PASS: TestOpen_permissions/of_another_user")) {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestOpen_readOnlyFileSystem(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "file"), []byte("x"))
	check(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	defer unix.Unmount(dir, 0)
	check(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	_, err := Open(file, Options{Writable: true})
	want := "open " + file + " for writing: read-only file system: serve it read-only"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestOpen_waysToName(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "file"), []byte("content"))
	check(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	check(t, os.Symlink("../file", filepath.Join(dir, "d/relative")))
	check(t, os.Symlink(filepath.Join(dir, "d/relative"), filepath.Join(dir, "absolute")))
	fd, err := os.Open(file)
	check(t, err)
	defer fd.Close()
	unlinked, err := os.CreateTemp(dir, "")
	check(t, err)
	defer unlinked.Close()
	_, err = unlinked.WriteString("content")
	check(t, err)
	check(t, os.Remove(unlinked.Name()))
	t.Chdir(dir)

	for _, tc := range []struct{ name, path string }{
		{"absolute", file},
		{"relative", "file"},
		{"dots", "./d/../file"},
		{"relative link", "d/relative"},
		{"link to link", "absolute"},
		{"descriptor", "/dev/fd/" + itoa(int(fd.Fd()))},
		{"descriptor without a name", "/proc/self/fd/" + itoa(int(unlinked.Fd()))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := open(t, tc.path, false)
			if got, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size())); err != nil || string(got) != "content" {
				t.Errorf("got %q, %v", got, err)
			}
			st, err := f.Stamp()
			check(t, err)
			if st.Inode == 0 || st.Inode != st.NameInode || st.Dev != st.NameDev {
				t.Errorf("%+v does not lead to itself", st)
			}
			if f.Path() != tc.path {
				t.Errorf("path is %q", f.Path())
			}
		})
	}
}

func TestReadAt(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "file"), []byte("0123456789"))
	f := open(t, path, false)
	for _, tc := range []struct {
		name   string
		off    int64
		length int
		want   string
		err    error
	}{
		{"all", 0, 10, "0123456789", nil},
		{"middle", 3, 4, "3456", nil},
		{"nothing", 3, 0, "", nil},
		{"over the end", 8, 4, "89", io.EOF},
		{"at the end", 10, 1, "", io.EOF},
		{"beyond", 1 << 40, 1, "", io.EOF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := make([]byte, tc.length)
			n, err := f.ReadAt(p, tc.off)
			if string(p[:n]) != tc.want || err != tc.err {
				t.Errorf("got %q, %v", p[:n], err)
			}
		})
	}
	t.Run("shrunk", func(t *testing.T) {
		check(t, os.Truncate(path, 4))
		p := make([]byte, 10)
		n, err := f.ReadAt(p, 0)
		if string(p[:n]) != "0123" || err != io.EOF {
			t.Errorf("got %q, %v", p[:n], err)
		}
		if f.Size() != 10 {
			t.Errorf("size changed to %d without a stamp", f.Size())
		}
		st, err := f.Stamp()
		check(t, err)
		if st.Size != 4 || f.Size() != 4 {
			t.Errorf("size is %d and %d after the stamp", st.Size, f.Size())
		}
	})
}

func TestClose(t *testing.T) {
	f := open(t, writeFile(t, filepath.Join(t.TempDir(), "file"), []byte("x")), true)
	check(t, f.Close())
	for name, err := range map[string]error{
		"close":   f.Close(),
		"read":    second(f.ReadAt(make([]byte, 1), 0)),
		"write":   second(f.WriteAt(make([]byte, 1), 0)),
		"stamp":   second(f.Stamp()),
		"stat":    second(f.Stat()),
		"extents": f.Extents(t.Context(), 0, 1, func(hasher.Extent) bool { return true }),
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after close: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
