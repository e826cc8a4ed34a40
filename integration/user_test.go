package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// nobody is the ordinary user of these tests.
const nobody = 65534

// asNobody runs a command as that user, without any rights of root.
var asNobody = []string{"setpriv", fmt.Sprintf("--reuid=%d", nobody), fmt.Sprintf("--regid=%d", nobody), "--clear-groups"}

// inPrivate runs a command in a mount namespace of its own, where the lines
// of setup were run before. A word DIR in them is a directory that holds
// nodes, and is gone with the namespace.
func inPrivate(t testing.TB, setup string, argv ...string) []string {
	t.Helper()
	needRoot(t)
	need(t, "unshare", "nsenter", "setpriv", "mount", "umount", "awk")
	// A copy of another test's mount would keep that alive.
	script := `set -e
for m in $(awk '/ - fuse.hashfs / { print $5 }' /proc/self/mountinfo); do umount -l -c "$(printf %b "$m")" || true; done
mount -t tmpfs -o mode=755,dev none "$0"
` + strings.ReplaceAll(setup, "DIR", `"$0"`) + `
exec "$@"`
	return append([]string{"unshare", "--mount", "--propagation", "private", "sh", "-c", script, scratch(t)}, argv...)
}

// openFuse lets everybody open /dev/fuse, as most distributions do.
const openFuse = `mknod -m 666 DIR/fuse c 10 229
mount --bind DIR/fuse /dev/fuse
`

// mountAsNobody mounts as the ordinary user, by fusermount3.
func mountAsNobody(t testing.TB, o mountOptions, setup string, args ...string) *mounted {
	t.Helper()
	needFUSE(t)
	need(t, "fusermount3")
	o.via = inPrivate(t, openFuse+setup, asNobody...)
	o.enter = append([]string{"nsenter", "--mount", "--target", "%d", "--"}, asNobody...)
	o.owner = nobody
	return mountWith(t, o, args...)
}

// in runs a command where the mount is seen, as the user who mounted.
func (m *mounted) in(argv ...string) result {
	m.t.Helper()
	return run(m.t, append(append([]string{}, m.enter...), argv...)...)
}

// inAsRoot runs a command where the mount is seen, as root.
func (m *mounted) inAsRoot(argv ...string) result {
	m.t.Helper()
	return run(m.t, append([]string{"nsenter", "--mount", "--target", fmt.Sprint(m.daemon.Pid), "--"}, argv...)...)
}

// readableSample is a sample that belongs to root and that all may read.
func readableSample(t testing.TB) *sample {
	t.Helper()
	s := newSample(t, scratch(t))
	if err := os.Chmod(s.path, 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestUser_mount(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := readableSample(t)
	for _, background := range []bool{false, true} {
		t.Run(fmt.Sprintf("background %v", background), func(t *testing.T) {
			m := mountAsNobody(t, mountOptions{background: background}, "", s.path)
			for name, want := range s.contents() {
				r := m.in("cat", m.path("disk", name))
				if r.Status != 0 || r.Stderr != "" {
					t.Errorf("cat %s: status %d, %s", name, r.Status, r.Stderr)
				}
				same(t, name, r.Stdout, want)
			}
			// All is the user's, though the image is root's.
			got := m.in("stat", "-c", "%n %a %u:%g", m.dir, m.path("disk"), m.path("disk", "checksum"), m.path("disk", "image"), m.path("CACHEDIR.TAG"))
			want := strings.NewReplacer("MNT", m.dir, "OWNER", fmt.Sprintf("%d:%d", nobody, nobody)).Replace(
				"MNT 500 OWNER\nMNT/disk 500 OWNER\nMNT/disk/checksum 400 OWNER\nMNT/disk/image 400 OWNER\nMNT/CACHEDIR.TAG 400 OWNER\n")
			same(t, "stat", got.Stdout, want)
			if r := m.in(program, "status"); !strings.Contains(r.Stdout, m.dir+":\n  disk: ") {
				t.Errorf("status: %+v", r)
			}
			// Without allow-other it is nobody else's, not even root's.
			if r := m.inAsRoot("cat", m.path("disk", "checksum")); r.Status != 1 || !strings.Contains(r.Stderr, "Permission denied") {
				t.Errorf("root: %+v", r)
			}
			if r := m.inAsRoot(program, "status"); !strings.Contains(r.Stdout, "permission denied: mounted by another user without allow-other") {
				t.Errorf("status as root: %+v", r)
			}
			if r := m.inAsRoot(program, "status", m.dir); r.Status != 1 {
				t.Errorf("status of it as root: %+v", r)
			}
		})
	}
}

func TestUser_writes(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := newSample(t, scratch(t))
	if err := os.Chown(s.path, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	m := mountAsNobody(t, mountOptions{}, "", "--writable", s.path)
	s.data[100] ^= 1
	if r := m.in("sh", "-c", fmt.Sprintf("printf '\\%03o' | dd of=%s bs=1 seek=100 conv=notrunc status=none", s.data[100], m.path("disk", "image"))); r != (result{}) {
		t.Fatalf("write: %+v", r)
	}
	same(t, "checksum", m.in("cat", m.path("disk", "checksum")).Stdout, newOracle(s.data).checksum())
	same(t, "the backing file", readFile(t, s.path), string(s.data))
}

const userAllowOther = `echo user_allow_other >DIR/fuse.conf
touch /etc/fuse.conf
mount --bind DIR/fuse.conf /etc/fuse.conf
`

// With allow-other others may come in as far as the mode lets them.
func TestUser_allow_other(t *testing.T) {
	t.Parallel()
	needRoot(t)
	s := readableSample(t)
	m := mountAsNobody(t, mountOptions{}, userAllowOther, "--allow-other", "--mode", "0440", s.path)
	want := newOracle(s.data).checksum()
	as := func(uid, gid int) result {
		return m.inAsRoot("setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", gid), "--clear-groups", "cat", m.path("disk", "checksum"))
	}
	for _, row := range []struct {
		name     string
		uid, gid int
		allowed  bool
	}{
		{"the user", nobody, nobody, true},
		{"root", 0, 0, true},
		{"the group", 1234, nobody, true},
		{"another user", 1234, 1234, false},
	} {
		r := as(row.uid, row.gid)
		if row.allowed && r != (result{Stdout: want}) || !row.allowed && (r.Status != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, "Permission denied")) {
			t.Errorf("%s: %+v", row.name, r)
		}
	}
}

// noUserAllowOther is the fuse.conf that distributions come with.
const noUserAllowOther = `echo '#user_allow_other' >DIR/fuse.conf
touch /etc/fuse.conf
mount --bind DIR/fuse.conf /etc/fuse.conf
`

// emptyDev replaces /dev by one that has what programs cannot do without.
const emptyDev = `mount -t tmpfs -o mode=755,dev none /dev
mknod -m 666 /dev/null c 1 3
`

const hideFusermount = `for f in /usr/bin/fusermount3 /usr/bin/fusermount /bin/fusermount3; do
if [ -e $f ]; then mount --bind /dev/null $(readlink -f $f); fi
done
`

// What an ordinary user cannot do, and what is missing on the machine, is
// told in one line. DIR is the directory with the images and the mount point.
func TestBadInput_machine(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needFUSE(t)
	need(t, "fusermount3")
	dir := scratch(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"mnt", "theirs", "locked"} {
		if err := os.Mkdir(path(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(path("mnt"), nobody, nobody); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"disk.img", "secret.img", "readonly.img", "locked/disk.img"} {
		writeImage(t, path(f), []byte("data"))
	}
	for f, mode := range map[string]os.FileMode{"disk.img": 0o666, "secret.img": 0o600, "readonly.img": 0o644, "locked": 0o700} {
		if err := os.Chmod(path(f), mode); err != nil {
			t.Fatal(err)
		}
	}
	const notOpen = `mknod -m 600 DIR/fuse c 10 229
mount --bind DIR/fuse /dev/fuse
`
	for _, row := range []struct {
		name  string
		setup string
		user  bool
		args  []string
		want  string
	}{
		{"image not readable", openFuse, true, []string{"secret.img", "mnt"}, "open secret.img: permission denied: run as a user who may read it"},
		{"image not writable", openFuse, true, []string{"--writable", "readonly.img", "mnt"}, "open readonly.img for writing: permission denied: run as a user who may write it, or serve it read-only"},
		{"directory not searchable", openFuse, true, []string{"locked/disk.img", "mnt"}, "open locked/disk.img: permission denied: run as a user who may read it"},
		{"directory of images not readable", openFuse, true, []string{"locked", "mnt"}, "locked: scan the directory: permission denied"},
		{"mount point of another user", openFuse, true, []string{"disk.img", "theirs"}, "mount on DIR/theirs: fusermount3: user has no write access to mountpoint DIR/theirs"},
		{"allow-other", openFuse + noUserAllowOther, true, []string{"--allow-other", "disk.img", "mnt"}, "allow-other: an ordinary user may not: have root add the line user_allow_other to /etc/fuse.conf"},
		{"/dev/fuse not open to users", notOpen, true, []string{"disk.img", "mnt"}, "/dev/fuse: permission denied: run as root, or have root open the device to users by chmod 666 /dev/fuse"},
		{"/dev/fuse is missing", emptyDev, true, []string{"disk.img", "mnt"}, "/dev/fuse: no such file or directory: load the kernel's module by modprobe fuse"},
		{"/dev/fuse is missing, root", emptyDev, false, []string{"disk.img", "mnt"}, "/dev/fuse: no such file or directory: load the kernel's module by modprobe fuse"},
		{"/dev/fuse has no driver, root", emptyDev + "mknod -m 666 /dev/fuse c 10 99\n", false, []string{"disk.img", "mnt"}, "/dev/fuse: no such device: load the kernel's module by modprobe fuse"},
		{"fusermount3 is missing", openFuse + hideFusermount, true, []string{"disk.img", "mnt"}, "fusermount3: not found, and only root can do without: apt install fuse3"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var argv []string
			if row.user {
				argv = append(argv, asNobody...)
			}
			argv = append(append(argv, program, "mount"), row.args...)
			got := call{argv: inPrivate(t, row.setup, argv...), dir: dir}.run(t)
			want := result{"", "hashfs: " + strings.ReplaceAll(row.want, "DIR", dir) + "\n", 1}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if left := processes(path("mnt")); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// An ordinary user cannot raise the limit of open files, of which an image needs
// two or more.
func TestBadInput_many_images(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needFUSE(t)
	need(t, "prlimit", "fusermount3")
	images := scratch(t)
	for i := range 100 {
		path := filepath.Join(images, fmt.Sprintf("%02d.img", i))
		writeImage(t, path, nil)
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	point := newPoint(t, nobody)
	argv := append(append([]string{}, asNobody...), "prlimit", "--nofile=64:64", program, "mount", images, point)
	got := run(t, inPrivate(t, openFuse, argv...)...)
	if got.Status != 1 || got.Stdout != "" || strings.Count(got.Stderr, "\n") != 1 ||
		!strings.HasSuffix(got.Stderr, ": too many open files: raise their limit by ulimit -n, or mount fewer images\n") {
		t.Errorf("%+v", got)
	}
}
