package integration

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lockProgram takes a lock on a file, by kind and by the name of its type in
// fcntl(2), and waits for it as long as the third argument says, in seconds; 0
// is not at all. It says how that ended, and keeps the lock until its input
// ends. It is Python since that lets a signal interrupt a system call.
const lockProgram = `
import errno, fcntl, os, signal, struct, sys
path, kind, typ, wait = sys.argv[1], sys.argv[2], getattr(fcntl, sys.argv[3]), float(sys.argv[4])
f = os.open(path, os.O_RDWR)
class Interrupted(Exception): pass
def interrupted(*_): raise Interrupted
signal.signal(signal.SIGALRM, interrupted)
try:
    if wait: signal.setitimer(signal.ITIMER_REAL, wait)
    if kind == "flock":
        op = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX}[typ]
        fcntl.flock(f, op if wait else op | fcntl.LOCK_NB)
    else:
        lock = struct.pack("hhqqi4x", typ, os.SEEK_SET, 100, 50, 0)
        wants = {"posix": (fcntl.F_SETLK, fcntl.F_SETLKW), "ofd": (fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW)}[kind]
        fcntl.fcntl(f, wants[wait > 0], lock)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("locked", flush=True)
except Interrupted: print("interrupted", flush=True)
except OSError as e: print(errno.errorcode[e.errno], flush=True)
sys.stdin.read()
`

// A locker is a process that runs lockProgram.
type locker struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.Closer
	said  *bufio.Reader
}

// newLocker starts one, on the image of d.
func newLocker(t testing.TB, d *diskMount, kind, typ, wait string) *locker {
	t.Helper()
	cmd := exec.Command("python3", "-c", lockProgram, d.image(), kind, typ, wait)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &locker{t, cmd, stdin, bufio.NewReader(stdout)}
	t.Cleanup(l.end)
	return l
}

// wants fails the test unless this is what the process says next.
func (l *locker) wants(what, word string) {
	l.t.Helper()
	said := make(chan string, 1)
	go func() {
		line, _ := l.said.ReadString('\n')
		said <- strings.TrimSpace(line)
	}()
	select {
	case got := <-said:
		if got != word {
			l.t.Errorf("%s: %q, want %q", what, got, word)
		}
	case <-time.After(patience):
		l.t.Fatalf("%s: no answer after %v, want %q", what, patience, word)
	}
}

// end ends the process, and with it its lock.
func (l *locker) end() {
	l.t.Helper()
	l.stdin.Close()
	l.waitEnd()
}

func (l *locker) waitEnd() {
	l.t.Helper()
	ended := make(chan struct{})
	go func() { l.cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		l.t.Fatalf("process %d does not end", l.cmd.Process.Pid)
	}
}

var lockKinds = []string{"posix", "ofd", "flock"}

// Two who open the image through the mount see each other's locks. The second
// is this process, and the first is another.
func TestLock_between_openers(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	d := writableDisk(t, random(12, ioSize))
	for _, kind := range lockKinds {
		for _, row := range []struct {
			first  string
			second int16
			want   unix.Errno
		}{
			{"F_WRLCK", unix.F_WRLCK, unix.EAGAIN},
			{"F_WRLCK", unix.F_RDLCK, unix.EAGAIN},
			{"F_RDLCK", unix.F_WRLCK, unix.EAGAIN},
			{"F_RDLCK", unix.F_RDLCK, 0},
		} {
			what := fmt.Sprintf("%s: %d after %s", kind, row.second, row.first)
			first := newLocker(t, d, kind, row.first, "0")
			first.wants(what, "locked")
			f := d.open(os.O_RDWR)
			wantErrno(t, what, tryLock(f, kind, row.second), row.want)
			first.end()
			// The kernel tells of the end of a file's last user a little later.
			err := tryLock(f, kind, row.second)
			for i := 0; i < 500 && err == unix.EAGAIN; i++ {
				time.Sleep(10 * time.Millisecond)
				err = tryLock(f, kind, row.second)
			}
			wantErrno(t, what+", which has ended", err, 0)
			f.Close()
		}
	}
}

// tryLock takes a lock of the bytes that lockProgram locks, or of all by
// flock(2), without waiting.
func tryLock(f *os.File, kind string, typ int16) error {
	if kind == "flock" {
		how := map[int16]int{unix.F_RDLCK: unix.LOCK_SH, unix.F_WRLCK: unix.LOCK_EX}[typ]
		return unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	}
	lock := unix.Flock_t{Type: typ, Start: 100, Len: 50}
	cmd := map[string]int{"posix": unix.F_SETLK, "ofd": unix.F_OFD_SETLK}[kind]
	return unix.FcntlFlock(f.Fd(), cmd, &lock)
}

// Who waits for a lock gets it when it is free, leaves when a signal comes, and
// can be killed.
func TestLock_wait(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	d := writableDisk(t, random(13, ioSize))
	for _, kind := range lockKinds {
		holder := newLocker(t, d, kind, "F_WRLCK", "0")
		holder.wants(kind+": hold", "locked")
		newLocker(t, d, kind, "F_WRLCK", "0.1").wants(kind+": wait, with an alarm", "interrupted")

		killed := newLocker(t, d, kind, "F_WRLCK", "1000")
		patient := newLocker(t, d, kind, "F_WRLCK", "1000")
		awaitSyscall(t, killed.cmd.Process.Pid, "fuse")
		killed.cmd.Process.Signal(syscall.SIGKILL)
		killed.waitEnd()
		holder.end()
		patient.wants(kind+": wait until it is free", "locked")
		patient.end()
	}
}

// awaitSyscall returns when a process sleeps in a kernel function of that part
// of a name.
func awaitSyscall(t testing.TB, pid int, function string) {
	t.Helper()
	var in []byte
	for range 500 {
		in, _ = os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
		if strings.Contains(string(in), function) || strings.Contains(string(in), "request_wait_answer") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d does not wait in %s but in %s", pid, function, in)
}

// QEMU's programs keep each other from the image by their own locks, through
// the mount, and are kept from the backing file of a writable mount.
func TestLock_qemu(t *testing.T) {
	t.Parallel()
	need(t, "qemu-io", "qemu-img")
	d := writableDisk(t, random(14, 20*blockSize))
	convert := []string{"qemu-img", "convert", "-f", "raw", "-O", "raw", d.image(), filepath.Join(scratch(t), "copy")}

	writer := exec.Command("qemu-io", "-f", "raw", d.image())
	stdin, err := writer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	// Its answer says that it has the image open.
	io.WriteString(stdin, "length\n")
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Errorf("qemu-io says %q, %v", line, err)
	}
	r := run(t, convert...)
	if r.Status == 0 || !strings.Contains(r.Stderr, `Failed to get shared "write" lock`) {
		t.Errorf("convert an image that is being written: %+v, want a refusal", r)
	}
	stdin.Close()
	writer.Wait()
	if r := run(t, convert...); r.Status != 0 {
		t.Errorf("convert an image that nobody writes: %+v", r)
	}
	same(t, "copy", readFile(t, convert[len(convert)-1]), readFile(t, d.backing))

	write := []string{"qemu-io", "-f", "raw", "-c", "write 0 4k", d.backing}
	r = run(t, write...)
	if r.Status == 0 || !strings.Contains(r.Stderr, `Failed to get "write" lock`) {
		t.Errorf("write the backing file of a writable mount: %+v, want a refusal", r)
	}
	d.check("after all")
	d.unmount()
	if r := run(t, write...); r.Status != 0 {
		t.Errorf("write the backing file after the end of the mount: %+v", r)
	}
}

// awaitFile returns when there is a file at path.
func awaitFile(t testing.TB, path string) {
	t.Helper()
	for range 3000 {
		if err := unix.Access(path, unix.F_OK); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s does not come", path)
}
