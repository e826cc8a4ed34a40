//go:build cgo

package nbdsrc

import (
	"bytes"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

func TestWrites(t *testing.T) {
	lost := 0
	w := writes{lost: func() { lost++ }}
	covered := func(want uint64) {
		t.Helper()
		if n := w.covered(); n != want {
			t.Errorf("covered %d, want %d", n, want)
		}
	}
	ends := func(want int) {
		t.Helper()
		lost = 0
		w.finish()
		w.over = false
		if lost != want {
			t.Errorf("lost %d times, want %d", lost, want)
		}
	}
	ends(0)
	a, b := w.begin(), w.begin()
	covered(0)
	ends(0) // nothing was answered
	w.end(b, true)
	covered(0) // a is under way
	ends(1)
	w.end(a, false)
	covered(2)
	c := w.begin()
	w.flush(2)
	covered(2)
	ends(0)
	w.end(c, true)
	ends(1)
	w.flush(w.covered())
	ends(0)
	w.flush(2) // a slow one
	ends(0)
	d, e := w.begin(), w.begin()
	w.finish()
	if w.end(d, false); lost != 0 {
		t.Error("a failed write is lost")
	}
	if w.end(e, true); lost != 1 { // its answer came in time, its caller a little late
		t.Error("a write whose answer came last is not lost")
	}
}

// TestFlush_lostWrites: what was written and not flushed when a server died is not
// called durable by the next.
func TestFlush_lostWrites(t *testing.T) {
	s := nbdkit(t, "memory", "1M")
	e := s.open(Options{Writable: true})
	again := func() {
		t.Helper()
		s.kill()
		s.start()
		until(t, "it is connected again", func() bool { _, err := e.Stamp(); return err == nil })
	}
	lost := func(want bool) {
		t.Helper()
		if err := e.Flush(); (err != nil) != want || want && !errors.Is(err, syscall.EIO) {
			t.Errorf("flush: %v", err)
		}
		if err := e.Flush(); err != nil {
			t.Errorf("another flush: %v", err)
		}
	}
	again()
	lost(false) // nothing was written
	check2(t)(e.WriteAt([]byte{1}, 100))
	again()
	lost(true)
	check2(t)(e.WriteAt(make([]byte, 4096), 0))
	check(t, e.Flush())
	again()
	lost(false)
	check2(t)(e.WriteAt(make([]byte, 4096), 0))
	check(t, e.Flush())
	s.kill()
	s.start()
	lost(false) // it comes upon the loss itself
	check(t, e.Zero(0, 4096, false))
	again()
	again() // it is told later too
	lost(true)
}

// TestImage_killedOverWrites: of a write that our qemu-nbd died over it is known
// that it will not be done any more.
func TestImage_killedOverWrites(t *testing.T) {
	need(t, "qemu-nbd")
	need(t, "qemu-img")
	path := filepath.Join(shortDir(t), "a.qcow2")
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "64M")
	im, err := OpenImage(t.Context(), ImageOptions{Path: path, Format: "qcow2", Options: Options{Writable: true}})
	check(t, err)
	t.Cleanup(func() { im.Close() })
	p := bytes.Repeat([]byte{1}, 8<<20)
	for failed := 0; failed < 5; {
		pid := child(t, "qemu-nbd")
		go func() {
			time.Sleep(time.Millisecond)
			syscall.Kill(pid, syscall.SIGKILL)
		}()
		for {
			_, err := im.WriteAt(p, 0)
			if errors.Is(err, hasher.ErrUnknownOutcome) {
				t.Fatal(err)
			}
			if err != nil {
				failed++
				break
			}
		}
		until(t, "it is connected again", func() bool { _, err := im.Stamp(); return err == nil })
	}
}

// TestKeepAlive: a connection whose other end is gone without a word ends within
// the timeout, or so.
func TestKeepAlive(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	l.Close()
	cmd := exec.Command("nbdkit", "--foreground", "--ipaddr=127.0.0.1", "--port="+port, "memory", "1M")
	need(t, "nbdkit")
	onParent(func() { err = cmd.Start() })
	check(t, err)
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var e *Export
	until(t, "the server listens", func() bool {
		e, err = Open(t.Context(), "nbd://127.0.0.1:"+port, Options{Timeout: 8 * time.Second})
		return err == nil
	})
	defer e.Close()
	for name, want := range map[int]int{unix.TCP_KEEPIDLE: 4, unix.TCP_KEEPINTVL: 1, unix.TCP_KEEPCNT: 4, unix.TCP_USER_TIMEOUT: 8000} {
		if got, err := unix.GetsockoptInt(e.session.shared.peer, unix.IPPROTO_TCP, name); err != nil || got != want {
			t.Errorf("option %d is %d, %v; want %d", name, got, err, want)
		}
	}
	if on, err := unix.GetsockoptInt(e.session.shared.peer, unix.SOL_SOCKET, unix.SO_KEEPALIVE); err != nil || on == 0 {
		t.Errorf("keepalive is %d, %v", on, err)
	}
}

// TestQueue_slowServer: a server that needs longer than the timeout for all that is
// queued is no dead one.
func TestQueue_slowServer(t *testing.T) {
	const size = 16 << 20
	s := nbdkit(t, "--filter=noparallel", "--filter=delay", "file", diskFile(t, content(size)), "serialize=all-requests", "rdelay=100ms")
	var log logged
	e := s.open(Options{Timeout: time.Second, Log: log.logger()})
	checkSum(t, newImage(t, e), content(size))
	if strings.Contains(log.String(), "lost") {
		t.Error(log.String())
	}
}
