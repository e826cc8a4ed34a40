package integration

import (
	"encoding/json"
	"fmt"
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

// A mount that lives on elsewhere is taken away, with a warning, and nobody waits. Not
// in parallel: its other namespace keeps all mounts that there are, and their tests
// would be warned too.
func TestUmount_lives_on(t *testing.T) {
	need(t, "mount", "umount", "unshare")
	if os.Geteuid() != 0 {
		missing(t, "bind mounts need root")
	}
	path := filepath.Join(scratch(t), "disk.img")
	writeImage(t, path, random(120, mib))
	m := mount(t, path)
	other := scratch(t)
	output(t, "mount", "--bind", m.dir, other)
	want := result{"", "hashfs: warning: " + m.dir + ": it is still mounted in " + other + ", and its images are in use\n", 0}
	if diff := cmp.Diff(want, run(t, program, "umount", m.dir)); diff != "" {
		t.Errorf("umount (-want +got):\n%s", diff)
	}
	m.gone = true
	away := startCommand(t, "unshare", "--mount", "--propagation=private", "sleep", "60")
	defer away.stop()
	r := result{}
	eventually(t, "it is in another namespace", func() bool {
		own, _ := os.Readlink("/proc/self/ns/mnt")
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", away.cmd.Process.Pid))
		return err == nil && its != own
	})
	time.Sleep(50 * time.Millisecond) // until it has made it private
	r = run(t, program, "umount", other)
	if r.Status != 0 || !strings.Contains(r.Stderr, "it is still mounted in the mount namespace of process ") {
		t.Errorf("umount: %+v", r)
	}
	away.stop()
	m.waitEnd()
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
