package integration

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A server is an NBD server of a test at a unix socket, which can be killed,
// stalled and started again.
type server struct {
	t      testing.TB
	socket string
	argv   []string
	run    *running
}

// nbdkit starts nbdkit with these arguments.
func nbdkit(t testing.TB, args ...string) *server {
	t.Helper()
	s := newServer(t, "nbdkit")
	s.argv = append([]string{"nbdkit", "--foreground", "--unix", s.socket}, args...)
	s.start()
	return s
}

// qemuNBD starts qemu-nbd, to run until it is ended, with these arguments.
func qemuNBD(t testing.TB, args ...string) *server {
	t.Helper()
	s := newServer(t, "qemu-nbd")
	s.argv = append([]string{"qemu-nbd", "--persistent", "--socket", s.socket}, args...)
	s.start()
	return s
}

func newServer(t testing.TB, tool string) *server {
	t.Helper()
	need(t, tool)
	return &server{t: t, socket: filepath.Join(scratch(t), "s")}
}

func (s *server) start() {
	s.t.Helper()
	os.Remove(s.socket) // of one that was killed
	r := startCommand(s.t, s.argv...)
	s.run = r
	s.t.Cleanup(r.stop)
	// Not by connecting: exitlast and qemu-nbd would count that.
	eventually(s.t, "the server listens", func() bool {
		if r.ended() {
			s.t.Fatalf("%q: %+v", s.argv, r.result())
		}
		return listens(s.socket)
	})
}

// restart kills the server and starts it again with the arguments that it has
// by now.
func (s *server) restart() {
	s.t.Helper()
	s.run.stop()
	s.start()
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.run.cmd.Process.Signal(sig); err != nil {
		s.t.Error(err)
	}
}

// stall stops the server, and returns when none of its threads runs any more.
func (s *server) stall() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	eventually(s.t, "all threads of the server are stopped", func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.run.cmd.Process.Pid))
		for _, path := range tasks {
			stat, _ := os.ReadFile(path)
			if !strings.Contains(string(stat), ") T ") {
				return false
			}
		}
		return len(tasks) > 0
	})
}

// uri is that of the default export.
func (s *server) uri() string { return s.export("") }

// export returns the URI of an export.
func (s *server) export(name string) string {
	return "nbd+unix:///" + url.PathEscape(name) + "?socket=" + s.socket
}

// write writes to the server beside the mount.
func (s *server) write(data []byte, off int64) {
	s.t.Helper()
	need(s.t, "qemu-io")
	path := filepath.Join(scratch(s.t), "data")
	writeImage(s.t, path, data)
	command := fmt.Sprintf("write -q -s %s %d %d", path, off, len(data))
	output(s.t, "qemu-io", "-f", "raw", "-c", command, s.uri())
}

// content returns what another client reads from the server.
func (s *server) content() []byte {
	s.t.Helper()
	return copyOut(s.t, s.uri())
}

// copyOut returns the content of an export, as nbdcopy reads it.
func copyOut(t testing.TB, uri string) []byte {
	t.Helper()
	need(t, "nbdcopy")
	path := filepath.Join(scratch(t), "copy")
	output(t, "nbdcopy", uri, path)
	return []byte(readFile(t, path))
}

// nbdMap returns the map of an export, as nbdinfo prints it.
func nbdMap(t testing.TB, uri string) string {
	t.Helper()
	need(t, "nbdinfo")
	return output(t, "nbdinfo", "--map", uri)
}

// listens reports whether a unix socket has a listener, from /proc/net/unix:
// the flag __SO_ACCEPTCON.
func listens(socket string) bool {
	table, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) == 8 && f[7] == socket && f[3] == "00010000" {
			return true
		}
	}
	return false
}

// eventually waits for what another process does.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// builtWithNBD finds out once whether the program was built with NBD.
var builtWithNBD = sync.OnceValue(func() bool {
	out, _ := exec.Command(program, "sum", "nbd+unix:///?socket=/nonexistent").CombinedOutput()
	return !strings.Contains(string(out), notBuilt)
})

// notBuilt is what a program without NBD says.
const notBuilt = "built without NBD support: build it with CGO_ENABLED=1 and libnbd's development files"

// needNBD skips the test, or in CI fails it, where the program was built
// without NBD.
func needNBD(t testing.TB) {
	t.Helper()
	if !builtWithNBD() {
		missing(t, "the program was built without NBD: apt install gcc libnbd-dev")
	}
}

// Lines of a log that tell of a lost server.
const (
	connectionLost = `level=WARN msg="lost the connection to the NBD server, reconnecting" image=\S+ export=\S+ cause=`
	notConnected   = `level=WARN msg="cannot reconnect to the NBD server yet" image=\S+ export=\S+ cause=`
	readLost       = `level=ERROR msg="cannot read" .*image=\S+ offset=\d+ length=\d+ cause=.*connection lost`
	requestLost    = `level=ERROR msg="request failed" .*image=\S+ op=.* err=.*connection lost`
)

// lostServer are the lines that are to be expected when the server is away.
var lostServer = []string{connectionLost, notConnected, readLost, requestLost}

// children returns the qemu-nbd processes that a process has started.
func children(t testing.TB, parent int) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if name, by := processName(pid); name == "qemu-nbd" && by == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processName returns the name of a process and its parent. The name is empty
// for one that has ended.
func processName(pid int) (name string, parent int) {
	// The name stands in parentheses, proc_pid_stat(5).
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), "(")
	end := strings.LastIndex(rest, ") ")
	if end < 0 {
		return "", 0
	}
	var state string
	if n, err := fmt.Sscan(rest[end+2:], &state, &parent); n < 2 || err != nil || state == "Z" {
		return "", 0
	}
	return rest[:end], parent
}

// hold keeps a file open for the length of a test.
func hold(t testing.TB, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
