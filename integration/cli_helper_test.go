package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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
