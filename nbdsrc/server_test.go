//go:build cgo

package nbdsrc

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A server is an NBD server's process of a test, on a unix socket.
type server struct {
	t      testing.TB
	socket string
	argv   []string
	cmd    *exec.Cmd
	output *logged
	ready  func() bool // nil: when somebody listens at the socket
}

// need skips the test without a tool, or fails where all are to be there.
func need(t testing.TB, tool string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// nbdkit starts nbdkit with arguments after those that name the socket.
func nbdkit(t testing.TB, args ...string) *server {
	t.Helper()
	s := &server{t: t, socket: filepath.Join(shortDir(t), "s")}
	s.argv = append([]string{"nbdkit", "-f", "--exit-with-parent", "-U", s.socket}, args...)
	s.start()
	return s
}

// qemuNBD serves a raw file with qemu-nbd.
func qemuNBD(t testing.TB, file string, args ...string) *server {
	t.Helper()
	s := &server{t: t, socket: filepath.Join(shortDir(t), "s")}
	s.argv = append([]string{"qemu-nbd", "-t", "-f", "raw", "-k", s.socket}, append(args, file)...)
	s.start()
	return s
}

// shortDir returns a new directory whose name leaves room for a socket's.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbdsrc-")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *server) start() {
	s.t.Helper()
	need(s.t, s.argv[0])
	os.Remove(s.socket)
	s.output = new(logged)
	s.cmd = exec.Command(s.argv[0], s.argv[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	var err error
	onParent(func() { err = s.cmd.Start() })
	check(s.t, err)
	exited := make(chan struct{})
	cmd := s.cmd
	go func() {
		cmd.Wait()
		close(exited)
	}()
	s.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGCONT)
		cmd.Process.Kill()
		<-exited
	})
	until(s.t, "the server listens", func() bool {
		select {
		case <-exited:
			s.t.Fatalf("%s: %s", strings.Join(s.argv, " "), s.output)
		default:
		}
		if s.ready != nil {
			return s.ready()
		}
		// Not by connecting: exitlast and qemu-nbd would count that.
		return listens(s.socket)
	})
}

// listens reports whether a unix socket has a listener, from /proc/net/unix:
// the flag __SO_ACCEPTCON.
func listens(socket string) bool {
	table, _ := os.ReadFile("/proc/net/unix")
	for _, line := range strings.Split(string(table), "\n") {
		f := strings.Fields(line)
		if len(f) == 8 && f[7] == socket && f[3] == "00010000" {
			return true
		}
	}
	return false
}

// kill ends the server at once, as a crash does.
func (s *server) kill() {
	s.t.Helper()
	check(s.t, s.cmd.Process.Kill())
	until(s.t, "the server is gone", func() bool { return !listens(s.socket) })
}

// stop has the server hang.
func (s *server) stop() {
	s.t.Helper()
	check(s.t, s.cmd.Process.Signal(syscall.SIGSTOP))
	until(s.t, "the server stands still", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid))
		check(s.t, err)
		for _, stat := range stats {
			line, _ := os.ReadFile(stat)
			if !bytes.Contains(line, []byte(") T ")) {
				return false
			}
		}
		return true
	})
}

func (s *server) carryOn()    { s.cmd.Process.Signal(syscall.SIGCONT) }
func (s *server) uri() string { return "nbd+unix:///?socket=" + s.socket }

// open opens the server's default export, and closes it with the test.
func (s *server) open(o Options) *Export {
	s.t.Helper()
	e, err := Open(s.t.Context(), s.uri(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { e.Close() })
	return e
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// until waits for something that another process or goroutine does.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out until %s", what)
		}
	}
}

// pattern is the content of nbdkit-pattern-plugin: each 8 bytes hold their
// own offset, big endian.
func pattern(p []byte, off int64) {
	for i := range p {
		at := off + int64(i)
		p[i] = byte(uint64(at&^7) >> (56 - 8*(at&7)))
	}
}

// diskFile writes a file of a test.
func diskFile(t testing.TB, content []byte) string {
	t.Helper()
	path := filepath.Join(shortDir(t), "disk")
	check(t, os.WriteFile(path, content, 0o600))
	return path
}

// logged collects log lines.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// parent runs functions on a thread that lasts: the one that starts a server is
// its parent to --exit-with-parent.
var parent = make(chan func())

func onParent(f func()) {
	done := make(chan struct{})
	parent <- func() {
		f()
		close(done)
	}
	<-done
}

// TestMain checks that no descriptor and no goroutine is left when all is over.
func TestMain(m *testing.M) {
	go func() {
		runtime.LockOSThread()
		for f := range parent {
			f()
		}
	}()
	// The runtime opens an eventfd of its own when something waits first.
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close()
	}
	fds, goroutines := leftovers()
	code := m.Run()
	fuzzing := flag.Lookup("test.fuzz").Value.String() != "" // waits for signals
	if code == 0 && !fuzzing && !settled(fds, goroutines) {
		now, g := leftovers()
		buf := make([]byte, 1<<20)
		os.Stderr.WriteString("left: " + strings.Join(now, " ") + "\n")
		if g > goroutines {
			os.Stderr.Write(buf[:runtime.Stack(buf, true)])
		}
		code = 1
	}
	os.Exit(code)
}

// settled waits until there are no more than at the beginning.
func settled(fds []string, goroutines int) bool {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if now, g := leftovers(); len(now) <= len(fds) && g <= goroutines {
			return true
		}
	}
	return false
}

// leftovers returns the sockets and eventfds that are open, and the number of
// goroutines.
func leftovers() (fds []string, goroutines int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && (strings.HasPrefix(to, "socket:") || strings.Contains(to, "[eventfd]")) {
			fds = append(fds, e.Name()+"="+to)
		}
	}
	return fds, runtime.NumGoroutine()
}

// deaf returns the address of a TCP port that accepts and says nothing.
func deaf(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	var mu sync.Mutex
	var held []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			mu.Lock()
			held = append(held, c)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range held {
			c.Close()
		}
	})
	return l.Addr().String()
}
