package integration

import (
	"encoding/json"
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

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
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

// info is what info.json holds.
type info struct {
	Name         string   `json:"name"`
	Source       string   `json:"source"`
	Format       string   `json:"format"`
	Size         int64    `json:"size"`
	BlockSize    int64    `json:"block_size"`
	Digest       string   `json:"digest"`
	Construction string   `json:"construction"`
	Algorithms   []string `json:"algorithms"`
	Writable     bool     `json:"writable"`
	CacheMode    string   `json:"cache_mode"`
	Epoch        string   `json:"epoch"`
	Generation   uint64   `json:"generation"`
	Blocks       struct {
		Total, Unknown, Zero, Data, Failed int64
	} `json:"blocks"`
	Cache struct {
		Bytes, Limit, Needed, Hits, Misses, Evictions int64
	} `json:"cache"`
	Work []struct {
		File        string
		Done, Total int64
		Started     time.Time
	} `json:"work"`
	LastError *struct {
		Offset, Length int64
		Message        string
		Time           time.Time
	} `json:"last_error"`
	Bad []int64 `json:"bad"`
}

// info returns the info.json of an image.
func (m *mounted) info(image string) info {
	m.t.Helper()
	var i info
	if err := json.Unmarshal([]byte(m.read(image, "info.json")), &i); err != nil {
		m.t.Fatalf("info.json: %v", err)
	}
	return i
}

// metrics returns what .hashfs/metrics holds, as Prometheus parses it.
func (m *mounted) metrics() map[string]*dto.MetricFamily {
	m.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(m.read(".hashfs", "metrics")))
	if err != nil {
		m.t.Fatalf("metrics: %v", err)
	}
	return families
}

// metric returns the value of one series, written as name{label="value"} with
// the labels in the order of their names.
func (m *mounted) metric(series string) float64 {
	m.t.Helper()
	for name, family := range m.metrics() {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if series == name && len(labels) == 0 || series == name+"{"+strings.Join(labels, ",")+"}" {
				return metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
	}
	m.t.Fatalf("metrics: no %s", series)
	return 0
}
