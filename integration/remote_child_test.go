package integration

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childDied are the lines about a qemu-nbd that ended by itself.
var childDied = []string{
	`level=ERROR msg="qemu-nbd died and is started again" image=\S+ file=\S+ cause="qemu-nbd: signal: killed"`,
	`level=WARN msg="qemu-nbd says" image=\S+ file=\S+ message="option negotiation failed: `, // who came was cut off
	connectionLost, notConnected, readLost, requestLost,
}

// lostWrites is the line about what died with it.
const lostWrites = `level=ERROR msg="request failed" image=a op="flush image" err=".*the connection was lost since the last flush.*`

// mountImage mounts a qcow2 whose sockets are in a directory of its own.
func mountImage(t *testing.T, o mountOptions, args ...string) (m *mounted, sockets string) {
	t.Helper()
	sockets = scratch(t)
	o.env = append(o.env, "XDG_RUNTIME_DIR="+sockets)
	return mountWith(t, o, args...), sockets
}

func list(t testing.TB, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// killChild kills the only qemu-nbd of a mount, and waits until there is another.
func killChild(t testing.TB, m *mounted) {
	t.Helper()
	old := children(t, m.daemon.Pid)
	if len(old) != 1 {
		t.Fatalf("children %v", old)
	}
	syscall.Kill(old[0], syscall.SIGKILL)
	eventually(t, "another child", func() bool {
		now := children(t, m.daemon.Pid)
		return len(now) == 1 && now[0] != old[0]
	})
}

// A qemu-nbd that dies is started again, and nothing wrong comes of it.
func TestChild_killed(t *testing.T) {
	t.Parallel()
	needNBD(t)
	for _, writable := range []string{"--writable=false", "--writable=true"} {
		t.Run(writable, func(t *testing.T) {
			d := newDisk(t)
			image := d.convert(t, "a.qcow2", "qcow2")
			m, _ := mountImage(t, mountOptions{}, writable, image)
			m.expect(childDied...)
			o := newOracle(d.data)
			m.checkDigests("a", o)
			for range 3 {
				killChild(t, m)
				awaitImage(t, m, "a")
				m.checkDigests("a", o)
			}
			if writable == "--writable=true" {
				part := random(80, 1000)
				copy(d.data[mib:], part)
				writeAt(t, m.path("a", "image"), part, mib)
				m.checkDigests("a", newOracle(d.data))
			}
		})
	}
}

// What a killed qemu-nbd had not flushed may be gone. The digests tell.
func TestChild_killed_after_writes(t *testing.T) {
	// Not in parallel: each program that another test starts is forked first, with
	// our handles, and closes them, which flushes.
	needNBD(t)
	d := newDisk(t)
	image := d.convert(t, "a.qcow2", "qcow2")
	m, _ := mountImage(t, mountOptions{}, "--writable", image)
	m.expect(append(childDied, lostWrites)...)
	f := hold(t, m.path("a", "image"), os.O_RDWR)
	if _, err := f.WriteAt(random(81, mib), 0); err != nil {
		t.Fatal(err)
	}
	m.read("a", "checksum")
	killChild(t, m)
	awaitImage(t, m, "a")
	same(t, "checksum", m.read("a", "checksum"), newOracle([]byte(m.read("a", "image"))).checksum())
	if err := f.Close(); !errors.Is(err, syscall.EIO) { // as fsync would
		t.Errorf("close: %v", err)
	}
	m.unmount()
	raw := d.path("after.raw")
	output(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, raw)
	same(t, "a new sum", output(t, program, "sum", image), newOracle([]byte(readFile(t, raw))).sum()+"  "+image+"\n")
}

// However the daemon ends, its children end too, and no socket is left.
func TestChild_ends_with_the_daemon(t *testing.T) {
	t.Parallel()
	needNBD(t)
	d := newDisk(t)
	a, b := d.convert(t, "a.qcow2", "qcow2"), d.convert(t, "b.vmdk", "vmdk")
	for _, row := range []struct {
		name       string
		background bool
		end        func(m *mounted)
		left       int // directories, for the next to remove
	}{
		{"unmounted", false, (*mounted).unmount, 0},
		{"unmounted, in the background", true, (*mounted).unmount, 0},
		{"SIGTERM", false, func(m *mounted) { m.signal(syscall.SIGTERM); m.waitEnd() }, 0},
		{"SIGKILL", false, (*mounted).kill, 2},
		{"SIGKILL, in the background", true, (*mounted).kill, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			m, sockets := mountImage(t, mountOptions{background: row.background}, "--writable", a, b)
			m.read("a", "checksum")
			pids := children(t, m.daemon.Pid)
			if len(pids) != 2 {
				t.Fatalf("children %v", pids)
			}
			for _, dir := range list(t, sockets, "*") {
				if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
					t.Errorf("%s: %v, %v", dir, info.Mode(), err)
				}
			}
			row.end(m)
			for _, pid := range pids {
				eventually(t, "the child has ended", func() bool { name, _ := processName(pid); return name != "qemu-nbd" })
			}
			if left := list(t, sockets, "*"); len(left) != row.left {
				t.Errorf("left of sockets: %q", left)
			}
			for _, path := range list(t, sockets, "*/*") {
				if info, err := os.Stat(path); err == nil {
					t.Errorf("left: %s, %v", path, info.Mode())
				}
			}
			r := call{argv: []string{program, "sum", a}, env: []string{"XDG_RUNTIME_DIR=" + sockets}}.run(t)
			if r.Status != 0 || r.Stderr != "" || !strings.HasPrefix(r.Stdout, newOracle(d.data).sum()) {
				t.Errorf("the next start: %+v", r)
			}
			if left := list(t, sockets, "*"); len(left) > 0 {
				t.Errorf("left after the next start: %q", left)
			}
		})
	}
}

// What was written is in the image's file when it was closed, however the mount
// ends, and the image is free when umount returns.
func TestChild_written_when_closed(t *testing.T) {
	t.Parallel()
	needNBD(t)
	d := newDisk(t)
	image := d.convert(t, "a.qcow2", "qcow2")
	for i := range uint64(8) {
		m, _ := mountImage(t, mountOptions{background: i%2 == 0}, "--writable", image)
		part := random(85+i, mib)
		copy(d.data, part)
		writeAt(t, m.path("a", "image"), part, 0)
		// Its copy has it, whatever qemu-nbd has not done yet.
		same(t, "the sum of a copy", output(t, program, "sum", d.copyOf(t, image)), newOracle(d.data).sum()+"  "+image+".copy\n")
		m.gone = true
		if r := run(t, program, "umount", m.dir); r != (result{}) {
			t.Fatalf("umount: %+v", r)
		}
		same(t, "the sum at once", output(t, program, "sum", image), newOracle(d.data).sum()+"  "+image+"\n")
	}
}

// copyOf copies a qcow2 with its suffix kept by format=.
func (d *disk) copyOf(t *testing.T, image string) string {
	t.Helper()
	writeImage(t, image+".copy", []byte(readFile(t, image)))
	return image + ".copy,format=qcow2"
}

// A signal that the program handles does not end a close, which cannot be tried
// again; but neither does a server that hangs hold whoever is to end for ever.
func TestChild_close_and_signals(t *testing.T) {
	// Not in parallel, as the next.
	needNBD(t)
	d := newDisk(t)
	image := d.convert(t, "a.qcow2", "qcow2")
	m, _ := mountImage(t, mountOptions{}, "--writable", image)
	pids := children(t, m.daemon.Pid)
	if len(pids) != 1 {
		t.Fatalf("children %v", pids)
	}
	signalChild := func(sig syscall.Signal) {
		if err := syscall.Kill(pids[0], sig); err != nil {
			t.Error(err) // not Fatal: a timer calls it too
		}
	}
	for i, row := range []struct {
		name        string
		hangs       time.Duration // from the signal on
		want        error
		least, most time.Duration
	}{
		{"for a while", 500 * time.Millisecond, nil, 500 * time.Millisecond, 4 * time.Second},
		{"for long", 30 * time.Second, syscall.EINTR, 4 * time.Second, 20 * time.Second},
	} {
		part := random(uint64(93+i), mib)
		fd, err := syscall.Open(m.path("a", "image"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := syscall.Pwrite(fd, part, 0); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
		signalChild(syscall.SIGSTOP)
		thread, closed := make(chan int), make(chan error)
		go func() {
			runtime.LockOSThread()
			thread <- syscall.Gettid()
			closed <- syscall.Close(fd)
		}()
		tid := <-thread
		time.Sleep(100 * time.Millisecond) // it is in close by then
		start := time.Now()
		if err := unix.Tgkill(os.Getpid(), tid, syscall.SIGURG); err != nil {
			t.Fatal(err)
		}
		again := time.AfterFunc(row.hangs, func() { signalChild(syscall.SIGCONT) })
		if err := <-closed; err != row.want {
			t.Errorf("a server that hangs %s: close: %v, want %v", row.name, err, row.want)
		}
		if took := time.Since(start); took < row.least || took > row.most {
			t.Errorf("a server that hangs %s: close took %v after the signal, want %v to %v", row.name, took, row.least, row.most)
		}
		again.Stop()
		signalChild(syscall.SIGCONT)
		copy(d.data, part)
	}
	same(t, "checksum", m.read("a", "checksum"), newOracle(d.data).checksum())
	m.unmount()
	same(t, "the sum at last", output(t, program, "sum", image), newOracle(d.data).sum()+"  "+image+"\n")
}

// When a qemu-nbd takes with it what was not flushed, each handle's next fsync says
// so, once.
func TestChild_lost_writes(t *testing.T) {
	// Not in parallel: each program that another test starts is forked first, with
	// our handles, and closes them, which flushes.
	needNBD(t)
	d := newDisk(t)
	m, _ := mountImage(t, mountOptions{}, "--writable", d.convert(t, "a.qcow2", "qcow2"))
	m.expect(append(childDied, lostWrites)...)
	a, b := hold(t, m.path("a", "image"), os.O_RDWR), hold(t, m.path("a", "image"), os.O_RDWR)
	kill := func() {
		killChild(t, m)
		awaitImage(t, m, "a")
	}
	sync := func(f *os.File, want error) {
		t.Helper()
		if err := f.Sync(); !errors.Is(err, want) {
			t.Errorf("fsync: %v, want %v", err, want)
		}
	}
	for _, f := range []*os.File{a, b} {
		if _, err := f.WriteAt(random(82, 1000), 5000); err != nil {
			t.Fatal(err)
		}
	}
	sync(a, nil)
	sync(b, nil)
	kill() // all was flushed
	sync(a, nil)
	if _, err := b.WriteAt(random(83, 1000), 5000); err != nil {
		t.Fatal(err)
	}
	kill()
	sync(a, syscall.EIO)
	sync(a, nil)
	sync(b, syscall.EIO)
	sync(b, nil)
	c := hold(t, m.path("a", "image"), os.O_RDWR)
	sync(c, nil)
}
