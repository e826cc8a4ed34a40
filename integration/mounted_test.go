package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// path returns the path of a file of the mount.
func (m *mounted) path(elem ...string) string {
	return filepath.Join(append([]string{m.dir}, elem...)...)
}

// read returns the content of a file of the mount.
func (m *mounted) read(elem ...string) string {
	m.t.Helper()
	return readFile(m.t, m.path(elem...))
}

// expect lets lines that match these patterns into the log: all but those of
// the level INFO are otherwise failures.
func (m *mounted) expect(patterns ...string) {
	for _, p := range patterns {
		m.expected = append(m.expected, regexp.MustCompile(p))
	}
}

// log returns what the daemon has logged up to now.
func (m *mounted) log() string {
	content, err := os.ReadFile(m.logFile)
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// kill ends the daemon by SIGKILL, and leaves the dead mount.
func (m *mounted) kill() {
	m.t.Helper()
	m.killed = true
	m.daemon.Kill()
	m.waitEnd()
}

// signal sends the daemon a signal.
func (m *mounted) signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.daemon.Signal(s); err != nil {
		m.t.Error(err)
	}
}

// unmount unmounts and waits for the daemon's end. It fails the test when the
// mount is in use.
func (m *mounted) unmount() {
	m.t.Helper()
	m.gone = true
	argv := append(append([]string{}, m.enter...), program, "umount", m.dir)
	// A client that was killed lets go of its files a little later.
	var r result
	for range 20 {
		if r = run(m.t, argv...); r.Status == 0 || !strings.Contains(r.Stderr, "busy") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if r.Status != 0 || r.Stderr != "" {
		m.t.Errorf("umount: %+v", r)
		if r.Status != 0 && len(m.enter) == 0 {
			unix.Unmount(m.dir, unix.MNT_FORCE) // aborts the connection
			unix.Unmount(m.dir, unix.MNT_DETACH)
		}
	}
	m.waitEnd()
}

// waitEnd waits for the daemon's end, and ends it if it does not come.
func (m *mounted) waitEnd() {
	m.t.Helper()
	m.ending = true
	select {
	case <-m.ended:
		return
	case <-time.After(endTime):
	}
	m.t.Errorf("the daemon %d has not ended after %v", m.daemon.Pid, endTime)
	m.daemon.Signal(syscall.SIGQUIT) // for its goroutines in the log
	select {
	case <-m.ended:
	case <-time.After(5 * time.Second):
		m.daemon.Kill()
		select {
		case <-m.ended:
		case <-time.After(5 * time.Second):
		}
	}
}

func (m *mounted) cleanup() {
	if m.daemon == nil {
		return
	}
	if !m.gone && len(m.enter) == 0 && len(mountsBelow(m.dir)) == 0 {
		if !m.ending {
			m.t.Errorf("%s was unmounted by somebody else", m.dir)
		}
		m.gone = true
		m.waitEnd()
	}
	if !m.gone {
		m.unmount()
	}
	for range mountsBelow(m.dir) {
		m.t.Errorf("%s is still mounted", m.dir)
		unix.Unmount(m.dir, unix.MNT_DETACH)
	}
	select {
	case <-m.ended:
		if m.status != 0 && !m.killed {
			m.t.Errorf("the daemon's exit status is %d", m.status)
		}
	default:
		m.t.Errorf("the daemon %d is still there", m.daemon.Pid)
		m.daemon.Kill()
	}
	m.checkLog()
}

// checkLog fails the test for each line that was not expected.
func (m *mounted) checkLog() {
	var bad []string
	for line := range strings.Lines(m.log()) {
		if strings.Contains(line, " level=INFO ") {
			continue
		}
		known := false
		for _, p := range m.expected {
			known = known || p.MatchString(strings.TrimSuffix(line, "\n"))
		}
		if !known {
			bad = append(bad, line)
		}
	}
	if len(bad) > 0 {
		m.t.Errorf("unexpected in the daemon's log:\n%s", strings.Join(bad, ""))
	}
}

// readFile reads a file of a mount, with a hard timeout.
func readFile(t testing.TB, path string) string {
	t.Helper()
	type answer struct {
		content []byte
		err     error
	}
	done := make(chan answer, 1)
	go func() {
		content, err := os.ReadFile(path)
		done <- answer{content, err}
	}()
	select {
	case a := <-done:
		if a.err != nil {
			t.Fatal(a.err)
		}
		return string(a.content)
	case <-time.After(patience):
		t.Fatalf("read %s: not done after %v", path, patience)
	}
	return ""
}
