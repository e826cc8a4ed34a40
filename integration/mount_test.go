package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// readyTime is how long a mount may take to become usable.
const readyTime = time.Minute

// endTime is how long a daemon may take to end once it was unmounted.
const endTime = 30 * time.Second

// A mounted is a mount of the program. Its cleanup unmounts it, and fails the
// test when that cannot be done or when the log holds what was not expected.
type mounted struct {
	t       testing.TB
	dir     string // the mount point, alone in its parent
	logFile string
	daemon  *os.Process
	ended   <-chan struct{} // closed when the daemon is gone; its status is known then
	status  int             // of a daemon in the foreground

	enter    []string // before a command that is to see the mount
	expected []*regexp.Regexp
	killed   bool // by the test: no end to be checked
	gone     bool // unmounted already
	ending   bool // by the test, in whatever way
}

// mountOptions are what mountWith does beyond what mount does.
type mountOptions struct {
	background bool     // let the program go into the background by itself
	via        []string // a command that runs the program, in the same process: setpriv, env
	enter      []string // a command to go where the mount is seen; %d is the daemon's number
	owner      int      // of the mount point
	env        []string // added to the environment
	point      string   // the mount point, if not a new directory
}

// mount mounts by hashfs mount --foreground with these flags and sources, and
// returns when the mount is usable.
func mount(t testing.TB, args ...string) *mounted {
	t.Helper()
	return mountWith(t, mountOptions{}, args...)
}

// mountBackground mounts as mount does, by a daemon that leaves its parent.
func mountBackground(t testing.TB, args ...string) *mounted {
	t.Helper()
	return mountWith(t, mountOptions{background: true}, args...)
}

func mountWith(t testing.TB, o mountOptions, args ...string) *mounted {
	t.Helper()
	if len(o.enter) == 0 {
		needFUSE(t)
	}
	dir := scratch(t)
	m := &mounted{t: t, dir: o.point, logFile: filepath.Join(dir, "log")}
	if m.dir == "" {
		m.dir = newPoint(t, o.owner)
	}
	// The daemon may be any user's.
	if err := os.WriteFile(m.logFile, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(m.logFile, 0o666); err != nil {
		t.Fatal(err)
	}
	argv := append(append([]string{}, o.via...), program, "mount")
	t.Cleanup(m.cleanup)
	if o.background {
		m.startBackground(o, append(append(argv, "--log-file", m.logFile), args...))
	} else {
		m.startForeground(o, dir, append(append(argv, "--foreground"), args...))
	}
	for _, word := range o.enter {
		m.enter = append(m.enter, strings.ReplaceAll(word, "%d", fmt.Sprint(m.daemon.Pid)))
	}
	return m
}

// newPoint returns a new directory to mount on, with a parent of its own.
func newPoint(t testing.TB, owner int) string {
	t.Helper()
	point := filepath.Join(scratch(t), "mnt")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if owner != 0 {
		if err := os.Chown(point, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	return point
}

// startForeground starts the daemon and waits for what it tells systemd.
func (m *mounted) startForeground(o mountOptions, dir string, argv []string) {
	t := m.t
	t.Helper()
	socket := filepath.Join(dir, "notify")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(m.logFile, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(argv[0], append(argv[1:], m.dir)...)
	cmd.Env = append(append(os.Environ(), "NOTIFY_SOCKET="+socket), o.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	m.daemon, m.ended = cmd.Process, ended
	go func() {
		cmd.Wait()
		m.status = exitStatus(cmd.ProcessState)
		close(ended)
	}()

	ready := make(chan string, 1)
	go func() {
		buf := make([]byte, 256)
		notify.SetReadDeadline(time.Now().Add(readyTime))
		n, err := notify.Read(buf)
		if err != nil {
			buf = []byte(err.Error())
			n = len(buf)
		}
		ready <- string(buf[:n])
	}()
	select {
	case said := <-ready:
		if said != "READY=1" {
			t.Fatalf("%q: not ready: %s; log:\n%s", cmd.Args, said, m.log())
		}
	case <-ended:
		m.gone, m.killed = true, true
		t.Fatalf("%q: ended with status %d before it was ready; log:\n%s", cmd.Args, m.status, m.log())
	}
}

// startBackground starts the program, and finds the daemon that it leaves.
func (m *mounted) startBackground(o mountOptions, argv []string) {
	t := m.t
	t.Helper()
	argv = append(argv, m.dir)
	r := call{argv: argv, env: o.env}.run(t)
	if r.Status != 0 || r.Stdout != "" {
		m.gone, m.killed = true, true
		t.Fatalf("%q: %+v", argv, r)
	}
	// What was said before the daemon's own log began counts too.
	if err := prepend(m.logFile, r.Stderr); err != nil {
		t.Fatal(err)
	}
	m.attach()
}

// attach finds the daemon of the mount, which is nobody's child.
func (m *mounted) attach() {
	t := m.t
	t.Helper()
	pids := processes(m.dir)
	if len(pids) != 1 {
		t.Fatalf("%s is mounted by the processes %v, want one", m.dir, pids)
	}
	daemon, err := os.FindProcess(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	m.daemon, m.ended = daemon, ended
	fd, err := unix.PidfdOpen(daemon.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer unix.Close(fd)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if n > 0 || err != nil && err != unix.EINTR {
				break
			}
		}
		close(ended)
	}()
}

// adopt takes over a mount that a test has made by itself, in the background,
// of which no log is kept.
func adopt(t testing.TB, point string) *mounted {
	t.Helper()
	m := &mounted{t: t, dir: point, logFile: os.DevNull}
	m.attach()
	t.Cleanup(m.cleanup)
	return m
}

func prepend(path, text string) error {
	if text == "" {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte(text), content...), 0o600)
}
