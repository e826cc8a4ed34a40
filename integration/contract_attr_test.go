package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// walk returns what stat says of everything that is listed, and of a block
// and a sum, which are not: its mode, owner and group, by its path.
func (m *mounted) walk(image string) map[string]string {
	m.t.Helper()
	all := map[string]string{}
	note := func(path string) {
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			m.t.Fatalf("%s: %v", path, err)
		}
		name, _ := filepath.Rel(m.dir, path)
		all[name] = fmt.Sprintf("%04o %d:%d", st.Mode&0o7777, st.Uid, st.Gid)
	}
	err := filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			note(path)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	note(m.path(image, "blocks", "0000000000000000"))
	note(m.path(image, "sums", "md5"))
	return all
}

func TestAttr_modes_and_owner(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := scratch(t)
	path := filepath.Join(dir, "disk.img")
	writeImage(t, path, random(30, 100))
	if err := os.Chown(path, 1234, 5678); err != nil {
		t.Fatal(err)
	}
	daemon, err := user.Lookup("daemon")
	if err != nil {
		t.Fatal(err)
	}
	disk, err := user.LookupGroup("disk")
	if err != nil {
		t.Fatal(err)
	}
	// The owner of the whole is that of its only image, who could not come in
	// otherwise.
	for _, row := range []struct {
		name              string
		args              []string
		file, image, dirs string
		owner             string
	}{
		{"default", nil, "0400", "0400", "0500", "1234:5678"},
		{"writable", []string{"--writable"}, "0400", "0600", "0500", "1234:5678"},
		{"owner", []string{"--owner", "daemon"}, "0400", "0400", "0500", daemon.Uid + ":5678"},
		{"owner and group", []string{"--owner", "daemon:disk"}, "0400", "0400", "0500", daemon.Uid + ":" + disk.Gid},
		{"numbers", []string{"--owner", "77:88"}, "0400", "0400", "0500", "77:88"},
		{"group of the user", []string{"--owner", "daemon:"}, "0400", "0400", "0500", daemon.Uid + ":" + daemon.Gid},
		{"group alone", []string{"--owner", ":disk"}, "0400", "0400", "0500", "1234:" + disk.Gid},
		{"group may read", []string{"--mode", "0440"}, "0440", "0440", "0550", "1234:5678"},
		{"group may read, writable", []string{"--mode", "0440", "--writable"}, "0440", "0640", "0550", "1234:5678"},
		{"group may write", []string{"--mode", "660", "--writable"}, "0440", "0660", "0550", "1234:5678"},
		{"group may write what is not writable", []string{"--mode", "660"}, "0440", "0440", "0550", "1234:5678"},
		{"as mount options", []string{"-o", "owner=77:88,mode=0440,writable"}, "0440", "0640", "0550", "77:88"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := mount(t, append(row.args, path)...)
			want := map[string]string{}
			for _, d := range []string{".", "disk", "disk/blocks", "disk/sums", ".hashfs"} {
				want[d] = row.dirs + " " + row.owner
			}
			for _, f := range []string{
				"CACHEDIR.TAG", ".hashfs/version", ".hashfs/metrics", "disk/checksum", "disk/digests", "disk/digests.bin",
				"disk/map", "disk/map.json", "disk/info.json", "disk/blocks/0000000000000000", "disk/sums/md5",
			} {
				want[f] = row.file + " " + row.owner
			}
			want["disk/image"] = row.image + " " + row.owner
			if diff := cmp.Diff(want, m.walk("disk")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Images of different owners belong to them; what belongs to no image is root's.
func TestAttr_several_owners(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := scratch(t)
	for i, name := range []string{"a.img", "b.img"} {
		path := filepath.Join(dir, name)
		writeImage(t, path, random(31, 100))
		if err := os.Chown(path, 100+i, 200+i); err != nil {
			t.Fatal(err)
		}
	}
	m := mount(t, dir)
	all := m.walk("a")
	for name, want := range map[string]string{
		".": "0500 0:0", "CACHEDIR.TAG": "0400 0:0", ".hashfs/metrics": "0400 0:0",
		"a": "0500 100:200", "a/checksum": "0400 100:200", "b/blocks": "0500 101:201", "b/image": "0400 101:201",
	} {
		if all[name] != want {
			t.Errorf("%s: %s, want %s", name, all[name], want)
		}
	}
}

// Nothing can be made, removed, renamed or changed, whoever asks, and it is
// refused as that, not as a failure.
func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := newSample(t, dir)
	for _, writable := range []bool{false, true} {
		t.Run(fmt.Sprintf("writable %v", writable), func(t *testing.T) {
			m := mount(t, fmt.Sprintf("--writable=%v", writable), s.path)
			before := m.walk("disk")
			for _, d := range []string{".", "disk", "disk/blocks", "disk/sums", ".hashfs"} {
				refuseInDirectory(t, m.path(d))
			}
			for name := range before {
				// The mount point itself is the kernel's.
				if name != "." {
					refuseChange(t, m.path(name), m.path("new"))
				}
			}
			for name := range before {
				if info, err := os.Stat(m.path(name)); err == nil && !info.IsDir() {
					refuseWriting(t, m.path(name), writable && name == "disk/image", writable)
				}
			}
			if diff := cmp.Diff(before, m.walk("disk")); diff != "" {
				t.Errorf("something has changed (-before +after):\n%s", diff)
			}
			m.checkDigests("disk", newOracle(s.data))
		})
	}
}

// refused checks that err is one of those that refuse.
func refused(t *testing.T, what string, err error, allowed ...error) {
	t.Helper()
	if os.Geteuid() != 0 {
		// The modes say no before the program is asked.
		allowed = append(allowed, unix.EACCES)
	}
	for _, a := range append(allowed, unix.EPERM, unix.EROFS) {
		if errors.Is(err, a) {
			return
		}
	}
	t.Errorf("%s: %v, want EPERM or EROFS", what, err)
}

func refuseInDirectory(t *testing.T, dir string) {
	t.Helper()
	other := filepath.Join(dir, "new")
	refused(t, "mkdir "+other, os.Mkdir(other, 0o755))
	refused(t, "rmdir "+other, unix.Rmdir(other), unix.ENOENT)
	refused(t, "mknod "+other, unix.Mknod(other, unix.S_IFREG|0o600, 0))
	refused(t, "mkfifo "+other, unix.Mkfifo(other, 0o600))
	refused(t, "symlink "+other, os.Symlink("x", other))
	_, err := os.OpenFile(other, os.O_CREATE|os.O_WRONLY, 0o600)
	refused(t, "create "+other, err)
	_, err = unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	refused(t, "tmpfile in "+dir, err, unix.EOPNOTSUPP)
	_, err = bindSocket(other)
	refused(t, "bind a socket to "+other, err)
}

// bindSocket binds a Unix socket.
func bindSocket(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	if len(path) > 100 {
		return -1, unix.EPERM // too long for a socket, nothing to be learned
	}
	return fd, unix.Bind(fd, &unix.SockaddrUnix{Name: path})
}

func refuseChange(t *testing.T, path, other string) {
	t.Helper()
	refused(t, "chmod "+path, os.Chmod(path, 0o644))
	refused(t, "chown "+path, os.Lchown(path, 1, 1))
	refused(t, "utimes "+path, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Sec: 1}, {Sec: 1}}, 0))
	refused(t, "setxattr "+path, unix.Setxattr(path, "user.x", []byte("y"), 0), unix.EOPNOTSUPP)
	refused(t, "unlink "+path, unix.Unlink(path), unix.EISDIR)
	refused(t, "rmdir "+path, unix.Rmdir(path), unix.ENOTDIR, unix.EBUSY)
	refused(t, "rename "+path, os.Rename(path, other), unix.EBUSY)
	refused(t, "link "+path, os.Link(path, other))
}

// refuseWriting tries to open a file for writing, and to cut it.
func refuseWriting(t *testing.T, path string, mayWrite, writable bool) {
	t.Helper()
	refused(t, "truncate "+path, os.Truncate(path, 0))
	refused(t, "truncate "+path+" to more", os.Truncate(path, 1<<30))
	for flags, name := range map[int]string{os.O_WRONLY: "O_WRONLY", os.O_RDWR: "O_RDWR", os.O_WRONLY | os.O_APPEND: "O_APPEND"} {
		f, err := os.OpenFile(path, flags, 0)
		if mayWrite && err == nil {
			refused(t, "ftruncate "+path, f.Truncate(5))
			f.Close()
			continue
		}
		refused(t, "open "+path+" "+name, err, unix.EACCES)
	}
	_, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	refused(t, "open "+path+" O_TRUNC", err, unix.EACCES)
}

// dd cuts the file that it writes, unless told not to, and that is refused.
func TestRefusals_dd(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	m := mount(t, "--writable", s.path)
	dd := []string{"dd", "if=/dev/zero", "of=" + m.path("disk", "image"), "bs=1000", "count=2", "status=none"}
	if r := run(t, dd...); r.Status != 1 || !strings.Contains(r.Stderr, "Operation not permitted") {
		t.Errorf("dd: %+v, want EPERM", r)
	}
	same(t, "the image after it", m.read("disk", "image"), string(s.data))
	output(t, append(dd, "conv=notrunc")...)
	clear(s.data[:2000])
	m.checkDigests("disk", newOracle(s.data))
	// A shell's > cuts as well, and >> writes at the end, where no room is.
	for _, script := range []string{"echo x >$0", "echo x >>$0"} {
		if r := run(t, "sh", "-c", script, m.path("disk", "image")); r.Status == 0 {
			t.Errorf("%s: %+v", script, r)
		}
	}
	m.checkDigests("disk", newOracle(s.data))
}
