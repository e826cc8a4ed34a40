package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// statusJSON is what hashfs status --json prints.
type statusJSON []struct {
	Mountpoint, Source, State, Error string
	Images                           []struct {
		Name  string
		Info  *info
		Error string
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := newSample(t, dir)
	m := mount(t, "a="+s.path, "b="+s.path+",writable,digest=md5/4k")
	m.read("a", "checksum")
	want := fmt.Sprintf(`%s:
  a: a=%s, raw, read-only
    size    656360 bytes (641.0 KiB)
    digest  sha256, blocks of 65536 bytes
    blocks  11: 4 hashed, 7 zero, 0 unknown, 0 failed
  b: b=%s,writable,digest=md5/4k, raw, writable
    size    656360 bytes (641.0 KiB)
    digest  md5, blocks of 4096 bytes
    blocks  161: 0 hashed, 0 zero, 161 unknown, 0 failed
`, m.dir, s.path, s.path)
	same(t, "status", output(t, program, "status", m.dir), want)
	if all := run(t, program, "status"); !strings.Contains(all.Stdout, want) {
		t.Errorf("status of all: %+v, want among others:\n%s", all, want)
	}

	var got statusJSON
	if err := json.Unmarshal([]byte(output(t, program, "status", "--json", m.dir)), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Mountpoint != m.dir || got[0].State != "ok" || len(got[0].Images) != 2 || got[0].Images[1].Info == nil {
		t.Fatalf("status --json: %+v", got)
	}
	if diff := cmp.Diff(m.info("b"), *got[0].Images[1].Info); diff != "" {
		t.Errorf("info.json of b (-file +status):\n%s", diff)
	}
	// A path to the mount point, and one that is none.
	link := filepath.Join(dir, "link")
	if err := os.Symlink(m.dir, link); err != nil {
		t.Fatal(err)
	}
	same(t, "status by a link", output(t, program, "status", link), want)
	none := result{"", "hashfs: " + dir + ": not a hashfs mount\nhashfs: " + m.path("a") + ": not a hashfs mount\nhashfs: /none: no such file or directory\n", 1}
	if diff := cmp.Diff(none, run(t, program, "status", dir, m.path("a"), "/none")); diff != "" {
		t.Errorf("status of others (-want +got):\n%s", diff)
	}
}

// A daemon that was killed leaves a mount that is dead. status says so, umount
// clears it, and so does the next mount.
func TestDeadMount(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	for _, row := range []struct {
		name  string
		clear func(t *testing.T, point string)
	}{
		{"umount", func(t *testing.T, point string) {
			if got := run(t, program, "umount", point); got != (result{}) {
				t.Errorf("umount: %+v", got)
			}
		}},
		{"mount", func(t *testing.T, point string) {
			m := mountWith(t, mountOptions{point: point}, s.path)
			warning := "hashfs: warning: " + point + ": cleared a mount whose daemon is gone\n"
			if !strings.HasPrefix(m.log(), warning) {
				t.Errorf("mount says %q, want %q", m.log(), warning)
			}
			m.expect("^hashfs: warning: .*: cleared a mount whose daemon is gone$")
			same(t, "checksum", m.read("disk", "checksum"), newOracle(s.data).checksum())
			m.unmount()
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := mount(t, s.path)
			m.read("disk", "checksum")
			m.kill()
			want := result{m.dir + ": its daemon is gone: hashfs umount " + m.dir + " clears it\n", "", 1}
			if got := run(t, program, "status", m.dir); got != want {
				t.Errorf("status: %+v, want %+v", got, want)
			}
			var state statusJSON
			r := run(t, program, "status", "--json", m.dir)
			if err := json.Unmarshal([]byte(r.Stdout), &state); err != nil || len(state) != 1 || state[0].State != "dead" || r.Status != 1 {
				t.Errorf("status --json: %+v, %v", r, err)
			}
			row.clear(t, m.dir)
			if left := mountsBelow(m.dir); len(left) > 0 {
				t.Errorf("still mounted: %q", left)
			}
		})
	}
}

func TestUmount(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := newSample(t, dir)
	m := mount(t, s.path)
	open, err := os.Open(m.path("disk", "checksum"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	busy := "busy: files are open in it, or it is somebody's working directory: close them, or detach it by --lazy\n"
	if os.Geteuid() != 0 {
		busy = "busy: if it is busy, detach it by --lazy\n" // with fusermount3's words
	}
	if got := run(t, program, "umount", m.dir); got.Status != 1 || got.Stdout != "" || strings.Count(got.Stderr, "\n") != 1 ||
		!strings.HasPrefix(got.Stderr, "hashfs: "+m.dir+": ") || !strings.HasSuffix(got.Stderr, busy) {
		t.Errorf("umount of a busy mount: %+v, want %q", got, busy)
	}
	want := newOracle(s.data).checksum()
	same(t, "the mount after that", m.read("disk", "checksum"), want)
	if got := run(t, program, "umount", "--lazy", m.dir); got != (result{}) {
		t.Errorf("umount --lazy: %+v", got)
	}
	if left := mountsBelow(m.dir); len(left) > 0 {
		t.Errorf("still mounted: %q", left)
	}
	// What is open is served on; with its close the daemon ends.
	buf := make([]byte, 65)
	if n, err := open.ReadAt(buf, 0); err != nil || string(buf[:n]) != want {
		t.Errorf("the open file: %q, %v", buf[:n], err)
	}
	select {
	case <-m.ended:
		t.Error("the daemon has ended before the last close")
	default:
	}
	open.Close()
	m.waitEnd()

	none := result{"", "hashfs: " + m.dir + ": nothing is mounted here\nhashfs: /proc: not a hashfs mount: umount(8) takes it away\nhashfs: /none: no such file or directory\n", 1}
	if diff := cmp.Diff(none, run(t, program, "umount", m.dir, "/proc", "/none")); diff != "" {
		t.Errorf("umount of others (-want +got):\n%s", diff)
	}
}

// umount(8) does as well, and several mounts come and go by one command.
func TestUmount_others(t *testing.T) {
	t.Parallel()
	needRoot(t)
	need(t, "umount", "fusermount3")
	s := newSample(t, scratch(t))
	for _, argv := range [][]string{{"umount"}, {"fusermount3", "-u"}} {
		m := mountBackground(t, s.path)
		output(t, append(argv, m.dir)...)
		m.waitEnd()
	}
	a, b := mount(t, s.path), mountBackground(t, s.path)
	output(t, program, "umount", a.dir, b.dir)
	a.waitEnd()
	b.waitEnd()
}

// Signals unmount, and a second one ends what is busy.
func TestMount_signals(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		m := mount(t, s.path)
		m.signal(signal)
		m.waitEnd()
	}
	m := mount(t, s.path)
	open, err := os.Open(m.path("disk", "digests"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	m.signal(syscall.SIGTERM)
	for deadline := time.Now().Add(patience); len(mountsBelow(m.dir)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a busy mount is not detached on SIGTERM")
		}
	}
	if _, err := open.ReadAt(make([]byte, 90), 0); err != nil {
		t.Errorf("a file that was open: %v", err)
	}
	m.expect("level=WARN msg=\"ended by a second signal, open files are cut off\"")
	m.killed = true // the exit status is that of a failure
	m.signal(syscall.SIGTERM)
	m.waitEnd()
	if m.status != 1 {
		t.Errorf("exit status %d after a second signal", m.status)
	}
}

// Every flag is a mount option too, and the options of mount(8) do no harm.
func TestMount_options(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := scratch(t)
	s := newSample(t, dir)
	log := filepath.Join(dir, "log,with a comma")
	options := `rw,noauto,_netdev,nofail,user,relatime,dev,suid,x-systemd.automount,x-systemd.requires=a,comment=x,noexec,` +
		`writable,digest=md5/4k,cache-size=2m,cache_size=2m,jobs=1,owner=12:34,mode=0640,allow_other,` +
		`log-file=` + strings.ReplaceAll(log, ",", `\,`)
	point := newPoint(t, 0)
	output(t, program, "mount", "-o", options, s.path, point)
	m := adopt(t, point)
	i := m.info("disk")
	if !i.Writable || i.Digest != "md5" || i.BlockSize != 4096 || i.Cache.Limit != 2*mib {
		t.Errorf("%+v", i)
	}
	if got := output(t, "stat", "-c", "%a %u:%g", m.path("disk", "checksum"), m.path("disk", "image")); got != "440 12:34\n640 12:34\n" {
		t.Errorf("stat says %q", got)
	}
	got := strings.Split(strings.TrimSpace(output(t, "findmnt", "-n", "-o", "OPTIONS", m.dir)), ",")
	for _, option := range []string{"rw", "nosuid", "nodev", "noexec", "allow_other", "default_permissions"} {
		if !contains(got, option) {
			t.Errorf("the mount has not the option %s, but %q", option, got)
		}
	}
	if content, err := os.ReadFile(log); err != nil || !strings.Contains(string(content), "msg=mounted") {
		t.Errorf("the log holds %q, %v", content, err)
	}
	// Without the option writable, rw means nothing.
	if i := mount(t, "-o", "rw", s.path).info("disk"); i.Writable {
		t.Error("-o rw made the image writable")
	}
	ro := mount(t, "-o", "ro", s.path)
	if got := output(t, "findmnt", "-n", "-o", "OPTIONS", ro.dir); !strings.HasPrefix(got, "ro,") {
		t.Errorf("-o ro: the mount has the options %s", got)
	}
	same(t, "checksum of a mount with ro", ro.read("disk", "checksum"), newOracle(s.data).checksum())
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// mount(8) calls a program of a certain name, with its own order of arguments
// and nothing in the environment.
func TestMount_called_as_helper(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needFUSE(t)
	dir := scratch(t)
	s := newSample(t, dir)
	want := newOracle(s.data)
	for i, row := range []struct {
		name string
		as   string
		args func(source, point string) []string
	}{
		{"as mount.fuse.hashfs", "mount.fuse.hashfs", func(s, m string) []string { return []string{s, m, "-o", "rw,dev,suid"} }},
		{"as mount.hashfs", "mount.hashfs", func(s, m string) []string { return []string{s, m, "-o", "rw"} }},
		{"by mount.fuse3", "hashfs", func(s, m string) []string { return []string{s, m, "-o", "rw,allow_other,dev,suid"} }},
		{"with flags of mount(8)", "mount.fuse.hashfs", func(s, m string) []string {
			return []string{s, m, "-s", "-n", "-v", "-o", "rw,frobnicate", "-t", "fuse.hashfs"}
		}},
		{"without options", "mount.fuse.hashfs", func(s, m string) []string { return []string{s, m} }},
		{"with the type in the source", "mount.fuse.hashfs", func(s, m string) []string { return []string{"hashfs#" + s, m} }},
		{"with a name", "mount.fuse.hashfs", func(s, m string) []string { return []string{"disk=" + s, m, "-o", "ro"} }},
	} {
		t.Run(row.name, func(t *testing.T) {
			link := filepath.Join(dir, fmt.Sprint(i), row.as)
			if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(program, link); err != nil {
				t.Fatal(err)
			}
			point := newPoint(t, 0)
			argv := append([]string{"env", "-i", link}, row.args(s.path, point)...)
			r := run(t, argv...)
			m := adopt(t, point)
			m.expect("^hashfs: warning: there is no syslog")
			if r.Status != 0 || r.Stdout != "" {
				t.Fatalf("%q: %+v", argv, r)
			}
			m.checkDigests("disk", want)
		})
	}
	// -f does everything but mount.
	link := filepath.Join(dir, "0", "mount.fuse.hashfs")
	if got := run(t, link, s.path, dir, "-f", "-o", "rw"); got != (result{}) {
		t.Errorf("-f: %+v", got)
	}
	bad := run(t, link, s.path, dir, "-o", "rw,frobnicate")
	if want := (result{"", "hashfs: mount option \"frobnicate\": unknown; see hashfs mount --help\n", 2}); bad != want {
		t.Errorf("an unknown option: %+v, want %+v", bad, want)
	}
	if got := run(t, link, s.path, "-o", "rw"); got.Status != 2 || strings.Count(got.Stderr, "\n") != 1 {
		t.Errorf("no mount point: %+v", got)
	}
}

// With the link that make install makes, mount(8) and fstab know the type.
func TestMount_by_mount8(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needFUSE(t)
	need(t, "mount", "umount", "findmnt")
	dir := scratch(t)
	s := newSample(t, dir)
	point := newPoint(t, 0)
	log := filepath.Join(dir, "log")
	fstab := filepath.Join(dir, "fstab")
	line := fmt.Sprintf("%s %s fuse.hashfs noauto,_netdev,x-systemd.automount,digest=blake3/4k,writable,log_file=%s 0 0\n", s.path, point, log)
	writeImage(t, fstab, []byte(line))
	// mount(8) looks for its helpers in /sbin alone.
	setup := `mkdir DIR/sbin
ln -s ` + program + ` DIR/sbin/mount.fuse.hashfs
mount --bind DIR/sbin $(readlink -f /sbin)
`
	for name, command := range map[string]string{
		"mount -t": "mount -t fuse.hashfs -o digest=blake3/4k,writable,log_file=" + log + " " + s.path + " " + point,
		"fstab":    "mount -T " + fstab + " " + point,
	} {
		t.Run(name, func(t *testing.T) {
			script := command + `
findmnt -n -o FSTYPE,SOURCE ` + point + `
cat ` + point + `/disk/checksum
cat ` + point + `/disk/info.json | tr -d ' \n' | grep -o '"writable":[a-z]*'
umount ` + point + `
`
			got := run(t, inPrivate(t, setup, "sh", "-ec", script)...)
			want := result{"fuse.hashfs " + s.path + "\n" + newOracleOf(algorithms[15].new, 4096, s.data).checksum() + "\"writable\":true\n", "", 0}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s\nlog: %s", diff, readFile(t, log))
			}
			for deadline := time.Now().Add(endTime); len(processes(point)) > 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the daemon has not ended")
				}
			}
		})
	}
	if content := readFile(t, log); strings.Contains(content, "level=WARN") || strings.Contains(content, "level=ERROR") || strings.Count(content, "msg=unmounted") != 2 {
		t.Errorf("log:\n%s", content)
	}
}

// The daemon's messages go to syslog, or else to standard error where that is
// a file, and it is said where they go.
func TestMount_log(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needFUSE(t)
	dir := scratch(t)
	s := newSample(t, dir)
	syslog, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "syslog"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer syslog.Close()
	const fuse = "mknod -m 600 /dev/fuse c 10 229\n"
	const lost = "hashfs: warning: there is no syslog, and standard error is no file: the daemon's messages are lost; --log-file keeps them\n"
	const kept = "hashfs: warning: there is no syslog: the daemon's messages go to standard error, a file; --log-file chooses another\n"
	for _, row := range []struct {
		name, setup, to string
		stderr          string // of the command
		file            string // what standard error's file holds
		logged          bool   // in that file
	}{
		{"syslog", emptyDev + fuse + "ln -s " + filepath.Join(dir, "syslog") + " /dev/log\n", "", "", "", false},
		{"no syslog, a pipe", emptyDev + fuse, "", lost, "", false},
		{"no syslog, a file", emptyDev + fuse, " 2>" + filepath.Join(dir, "stderr"), "", kept, true},
		{"foreground's is its own", emptyDev + fuse, " --foreground 2>" + filepath.Join(dir, "stderr") + " & sleep 2; true", "", "time=", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			point := newPoint(t, 0)
			file := filepath.Join(dir, "stderr")
			os.Remove(file)
			script := program + " mount " + s.path + " " + point + row.to + "\ncat " + point + "/disk/checksum\n" + program + " umount " + point + "\nwait\n"
			got := run(t, inPrivate(t, row.setup, "sh", "-ec", script)...)
			want := result{newOracle(s.data).checksum(), row.stderr, 0}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for deadline := time.Now().Add(endTime); len(processes(point)) > 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the daemon has not ended")
				}
			}
			if row.file == "" {
				return
			}
			content := readFile(t, file)
			if !strings.Contains(content, row.file) || strings.Contains(content, "msg=unmounted") != row.logged {
				t.Errorf("standard error's file holds %q", content)
			}
		})
	}
	var lines []string
	for range 2 {
		buf := make([]byte, 2000)
		syslog.SetReadDeadline(time.Now().Add(patience))
		n, err := syslog.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(buf[:n]))
	}
	// 30 is daemon.info.
	if !strings.HasPrefix(lines[0], "<30>") || !strings.Contains(lines[0], "hashfs[") || !strings.Contains(lines[0], "msg=mounted") || !strings.Contains(lines[1], "msg=unmounted") {
		t.Errorf("syslog has got %q", lines)
	}
}
