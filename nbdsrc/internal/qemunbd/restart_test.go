package qemunbd

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pid returns the process ID of the child that runs.
func (s *Server) pid(t *testing.T) int {
	t.Helper()
	pid := 0
	eventually(t, "a child that runs", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.now.child != nil {
			pid = s.now.child.cmd.Process.Pid
		}
		return pid != 0
	})
	return pid
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

func TestServer_killed_child_is_started_again(t *testing.T) {
	for _, writable := range []bool{false, true} {
		t.Run(fmt.Sprintf("writable %v", writable), func(t *testing.T) {
			data, log := content(1), new(lines)
			path := convert(t, data, filepath.Join(t.TempDir(), "a.qcow2"), "qcow2")
			s := serve(t, Options{Path: path, Writable: writable, Name: "disk", Log: slog.New(slog.NewTextHandler(log, nil))})
			uri := s.URI()
			for i := range 3 {
				before := s.pid(t)
				kill(t, before, syscall.SIGKILL)
				eventually(t, "another child", func() bool {
					return s.Restarts() == uint64(i+1) && s.pid(t) != before
				})
				wantContent(t, s, data)
			}
			if s.URI() != uri {
				t.Errorf("the URI was %s and is %s", uri, s.URI())
			}
			for _, want := range []string{"image=disk", "file=" + path, "signal: killed", "started again"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("no %q in the log: %s", want, log)
				}
			}
		})
	}
}

// Clients that come at once, as nbdsrc does after it was cut off, are let in
// when the new child was checked, and are not taken for what it has opened.
func TestServer_restarts_while_clients_wait(t *testing.T) {
	data, log := content(1), new(lines)
	path := convert(t, data, filepath.Join(t.TempDir(), "a.qcow2"), "qcow2")
	s := serve(t, Options{Path: path, Log: slog.New(slog.NewTextHandler(log, nil))})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if conn, err := net.Dial("unix", s.dir.socket()); err == nil {
				defer conn.Close()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	for i := range 3 {
		kill(t, s.pid(t), syscall.SIGKILL)
		eventually(t, "another child", func() bool { return s.Restarts() == uint64(i+1) && s.pid(t) > 0 })
	}
	close(stop)
	<-stopped
	wantContent(t, s, data)
	if strings.Contains(log.String(), "cannot be started") {
		t.Errorf("the log: %s", log)
	}
}

func stamp(t *testing.T, s *Server) Stamp {
	t.Helper()
	st, err := s.Stamp()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestServer_follows_changes_from_outside(t *testing.T) {
	need(t, "qemu-img", "qemu-nbd")
	dir := t.TempDir()
	old, changed, other := content(1), content(2), content(3)
	base := raw(t, dir, old)
	path := overlay(t, dir+"/a.qcow2", "qcow2", base, "raw")
	s := serve(t, Options{Path: path})
	wantContent(t, s, old)
	first := stamp(t, s)
	if again := stamp(t, s); again != first || s.Restarts() != 0 {
		t.Fatalf("the stamp was %v and is %v, after %d restarts", first, again, s.Restarts())
	}

	// The backing file is written in place.
	writeFile(t, base, changed)
	second := stamp(t, s)
	if second == first || s.Restarts() != 1 {
		t.Errorf("a change of the backing file: %d restarts", s.Restarts())
	}
	wantContent(t, s, changed)

	// Another image gets the name.
	convert(t, other, dir+"/b.qcow2", "qcow2")
	if err := os.Rename(dir+"/b.qcow2", path); err != nil {
		t.Fatal(err)
	}
	third := stamp(t, s)
	if third == second || s.Restarts() != 2 {
		t.Errorf("another image: %d restarts", s.Restarts())
	}
	wantContent(t, s, other)
	if files := s.Files(); len(files) != 1 {
		t.Errorf("files are still %q", files)
	}

	// It loses its name: what is open is served on.
	if err := os.Rename(path, dir+"/c.qcow2"); err != nil {
		t.Fatal(err)
	}
	if stamp(t, s) == third {
		t.Error("the stamp does not tell that the name is gone")
	}

	// The name leads to what is no image, and to one again.
	writeFile(t, path, []byte("no image"))
	if _, err := s.Stamp(); err == nil || !strings.Contains(err.Error(), "magic") {
		t.Errorf("the stamp of no image: %v", err)
	}
	if err := os.Rename(dir+"/c.qcow2", path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the image is back", func() bool { _, err := s.Stamp(); return err == nil })
	wantContent(t, s, other)
}

// The stamp of a writable image moves with what is written, without a restart;
// a backing file that is changed below it has QEMU read it again.
func TestServer_stamp_of_a_writable_image(t *testing.T) {
	need(t, "qemu-img", "qemu-nbd", "qemu-io")
	dir := t.TempDir()
	base := raw(t, dir, content(1))
	s := serve(t, Options{Path: overlay(t, dir+"/a.qcow2", "qcow2", base, "raw"), Writable: true})
	first := stamp(t, s)
	run(t, "qemu-io", "-f", "raw", "-c", "write -P 0x55 64k 64k", "-c", "flush", s.URI())
	second := stamp(t, s)
	if second == first || s.Restarts() != 0 {
		t.Errorf("a write: stamp %v, then %v, %d restarts", first, second, s.Restarts())
	}
	writeFile(t, base, content(2))
	if third := stamp(t, s); third == second || s.Restarts() != 1 {
		t.Errorf("a change below: stamp %v, then %v, %d restarts", second, third, s.Restarts())
	}
	want := content(2)
	for i := range 64 << 10 {
		want[64<<10+i] = 0x55
	}
	wantContent(t, s, want)
}

func TestServer_close_does_not_hang(t *testing.T) {
	need(t, "nbdcopy", "qemu-img", "qemu-nbd")
	path := convert(t, content(1), filepath.Join(t.TempDir(), "a.qcow2"), "qcow2")
	s := serve(t, Options{Path: path})
	pid := s.pid(t)
	kill(t, pid, syscall.SIGSTOP)
	start := time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > stopReadOnly+killTimeout {
		t.Errorf("it took %v", d)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("the child is still there")
	}
	if _, err := s.Stamp(); err == nil {
		t.Error("a stamp after Close")
	}
}

// Nothing of many servers stays: neither descriptors nor goroutines.
func TestServer_leaks_nothing(t *testing.T) {
	need(t, "qemu-img", "qemu-nbd")
	runtimeDir(t)
	dir := t.TempDir()
	path := overlay(t, dir+"/a.qcow2", "qcow2", raw(t, dir, content(1)), "raw")
	convert(t, content(1), dir+"/b.vmdk", "vmdk", "-o", "subformat=twoGbMaxExtentFlat")
	bad := writeFile(t, dir+"/bad.qcow2", nil)
	once := func() {
		for _, p := range []string{path, dir + "/b.vmdk"} {
			s := serve(t, Options{Path: p})
			stamp(t, s)
			kill(t, s.pid(t), syscall.SIGKILL)
			eventually(t, "a restart", func() bool { return s.Restarts() == 1 })
			s.pid(t)
			s.Close()
		}
		refused(t, Options{Path: bad}, "magic")
	}
	once()
	files, goroutines := descriptors(t), runtime.NumGoroutine()
	for range 3 {
		once()
	}
	eventually(t, "no more goroutines and descriptors than before", func() bool {
		return runtime.NumGoroutine() <= goroutines && descriptors(t) <= files
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestMain serves an image instead of testing when it is told so: it is the
// daemon of the tests that need one of its own.
func TestMain(m *testing.M) {
	path := os.Getenv("QEMUNBD_TEST_SERVE")
	if path == "" {
		os.Exit(m.Run())
	}
	os.Unsetenv("QEMUNBD_TEST_SERVE")
	s, err := Start(contextOf(), Options{Path: path})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	s.mu.Lock()
	fmt.Println(s.now.child.cmd.Process.Pid, s.URI())
	s.mu.Unlock()
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Close()
	os.Exit(0)
}

// daemon starts a process of its own that serves path, and returns the first
// line that it prints.
func daemon(t *testing.T, path string, cred *syscall.Credential) (*exec.Cmd, string) {
	t.Helper()
	exe := filepath.Join(openDir(t), "daemon")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "QEMUNBD_TEST_SERVE="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

func TestServer_daemon_killed(t *testing.T) {
	need(t, "qemu-img", "qemu-nbd")
	dir := runtimeDir(t)
	path := convert(t, content(1), filepath.Join(t.TempDir(), "a.qcow2"), "qcow2")
	cmd, line := daemon(t, path, nil)
	pid, err := strconv.Atoi(strings.Fields(line)[0])
	if err != nil {
		t.Fatal(line)
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Fatal(err)
	}
	kill(t, cmd.Process.Pid, syscall.SIGKILL)
	eventually(t, "the child is gone", func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	if left, _ := filepath.Glob(dir + "/*/" + childName); len(left) > 0 {
		t.Errorf("sockets left behind: %q", left)
	}
	// The directory goes when the next one is made.
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 1 {
		t.Fatalf("%q", left)
	}
	s := serve(t, Options{Path: path})
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 1 || left[0] != filepath.Dir(s.dir.socket()) {
		t.Errorf("%q", left)
	}
}

// A daemon that is not root goes by mode bits.
func TestOwner_of_others_without_root(t *testing.T) {
	needRoot(t)
	need(t, "qemu-img", "qemu-nbd")
	dir := openDir(t)
	base := raw(t, dir, content(1))
	const other = 54329
	for _, row := range []struct {
		name     string
		uid, gid int
		mode     os.FileMode
		ok       bool
	}{
		{"for all", 0, 0, 0o644, true},
		{"the owner's", attacker, 0, 0o444, true},
		{"the daemon's", other, other, 0o400, false},
		{"the daemon's group's", 0, other, 0o640, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if err := os.Chown(base, row.uid, row.gid); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(base, row.mode); err != nil {
				t.Fatal(err)
			}
			image := backed(t, openDir(t)+"/a.qcow2", base, "raw")
			owned(t, image)
			t.Setenv("XDG_RUNTIME_DIR", "")
			t.Setenv("TMPDIR", "/tmp")
			cmd, line := daemon(t, image, &syscall.Credential{Uid: other, Gid: other})
			if ok := !strings.HasPrefix(line, "error"); ok != row.ok {
				t.Errorf("it said %q", line)
			} else if !ok && !strings.Contains(line, ErrRefused.Error()) {
				t.Errorf("it said %q", line)
			}
			_ = cmd.Stdin
		})
	}
}
