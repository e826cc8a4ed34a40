package qemunbd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	program = "qemu-nbd"

	// maxClients is how many connections qemu-nbd takes. Above 1 it offers
	// its clients multi-conn.
	maxClients = 16

	startTimeout = 30 * time.Second

	// How long a child may take to end by itself: a writable one writes back
	// what the page cache holds of the image.
	stopReadOnly = 2 * time.Second
	stopWritable = 30 * time.Second
	killTimeout  = 5 * time.Second

	maxLine = 4096 // bytes kept of a line of the child's

	// ownWarning is what QEMU says of backing=, for which --image-opts has no
	// other word. It may be read only after the child is ready.
	ownWarning = `warning: Use of "backing": "" is deprecated`
)

// ErrNotInstalled: there is no qemu-nbd on this system.
var ErrNotInstalled = errors.New("qemu-nbd is not installed: apt install qemu-utils")

// A child is a qemu-nbd with the chain that it serves.
type child struct {
	chain   *chain
	look    look // the chain's when it was started
	plan    *plan
	log     *slog.Logger
	cmd     *exec.Cmd
	started time.Time

	ready    atomic.Bool // its lines are logged from then on
	outdated atomic.Bool // ended by us since the chain was changed
	lastLine atomic.Pointer[string]

	done chan struct{} // closed when it has ended
	exit error         // why, to be read after done

	stopping sync.Mutex // one stop at a time
}

// launch starts a child for c, which it takes over, and returns when the child
// answers, and was checked. No client reaches it before: one that was cut off
// from the last child may be waiting.
func launch(ctx context.Context, c *chain, l look, o *Options, dir *socketDir) (_ *child, err error) {
	ch := &child{chain: c, look: l, log: o.Log, done: make(chan struct{})}
	defer func() {
		if err != nil {
			ch.stop()
			ch.close()
		}
	}()
	var snap *snapshot
	if o.Snapshot != "" {
		s, err := findSnapshot(c.top.file.file, o.Snapshot)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", show(o.Path), err)
		}
		snap = &s
	}
	if ch.plan, err = newPlan(c); err != nil {
		return nil, fmt.Errorf("open %s: %w", show(o.Path), err)
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", show(o.Path), ErrNotInstalled)
	}
	dir.bar()
	if err := ch.start(path, ch.plan.arguments(o, snap, dir.child())); err != nil {
		return nil, fmt.Errorf("open %s: start %s: %w", show(o.Path), program, err)
	}
	if err := ch.awaitReady(ctx, dir.child()); err != nil {
		if _, ok := errors.AsType[*exitError](err); ok {
			if conflict := c.findConflict(); conflict != nil {
				err = conflict
			}
		}
		return nil, fmt.Errorf("open %s: %w", show(o.Path), err)
	}
	if err := dir.admit(); err != nil {
		return nil, fmt.Errorf("open %s: %w", show(o.Path), err)
	}
	ch.ready.Store(true)
	return ch, nil
}

// start runs the program. The child gets SIGTERM when the thread that started
// it ends, so that thread is kept until the child has ended.
func (ch *child) start(path string, args []string) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	ch.cmd = &exec.Cmd{
		Path:       path,
		Args:       append([]string{program}, args...),
		Dir:        "/", // keeps no mount busy
		Env:        []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"},
		Stderr:     write,
		ExtraFiles: ch.plan.files,
		SysProcAttr: &syscall.SysProcAttr{
			// SIGTERM rather than SIGKILL: QEMU writes its tables back,
			// and removes the socket.
			Pdeathsig: syscall.SIGTERM,
			Setpgid:   true, // the terminal's Ctrl-C is for the daemon
		},
	}
	// What libraries have opened without close-on-exec, a mount's /dev/fuse
	// for one, must not live on in the child.
	_ = unix.CloseRange(firstFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := ch.cmd.Start()
		write.Close()
		started <- err
		if err != nil {
			read.Close()
			return
		}
		drained := make(chan struct{})
		go func() { defer close(drained); ch.readLines(read) }()
		err = ch.cmd.Wait()
		<-drained
		ch.ended(err)
	}()
	if err := <-started; err != nil {
		ch.cmd = nil
		return err
	}
	ch.started = time.Now()
	return nil
}

// readLines takes what the child says until it ends.
func (ch *child) readLines(r io.ReadCloser) {
	defer r.Close()
	b := bufio.NewReaderSize(r, maxLine)
	for {
		p, long, err := b.ReadLine()
		if line := ch.plan.explain(strings.TrimSpace(string(p))); line != "" {
			if ch.ready.Load() && !strings.HasPrefix(line, ownWarning) {
				ch.log.Warn("qemu-nbd says", "message", line)
			}
			if !strings.HasPrefix(line, "warning: ") {
				ch.lastLine.Store(&line)
			}
		}
		for long && err == nil {
			_, long, err = b.ReadLine()
		}
		if err != nil {
			return
		}
	}
}

func (ch *child) ended(err error) {
	if err := ch.plan.saveCID(ch.chain); err != nil {
		ch.log.Error("the descriptor keeps its old content ID", "cause", err)
	}
	why := "it ended"
	if err != nil {
		why = err.Error()
	}
	if line := ch.lastLine.Load(); line != nil {
		why = *line
	}
	ch.exit = &exitError{why}
	close(ch.done)
}

// An exitError is why a child ended: the last that it said, else its status.
type exitError struct{ why string }

func (e *exitError) Error() string { return program + ": " + e.why }

// awaitReady returns when the child has greeted a client, and holds no other
// files than it was given.
func (ch *child) awaitReady(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout,
		fmt.Errorf("%s did not answer within %v", program, startTimeout))
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		conn, err := greet(ctx, socket)
		if err == nil {
			defer leave(conn)
			return ch.checkFiles()
		}
		select {
		case <-ch.done:
			return ch.exit
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// greet connects and reads the magic numbers that an NBD server sends first.
func greet(ctx context.Context, socket string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	// The socket takes connections before the image is open.
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	greeting := make([]byte, 16)
	if _, err := io.ReadFull(conn, greeting); err != nil {
		conn.Close()
		return nil, err
	}
	if string(greeting) != "NBDMAGICIHAVEOPT" {
		conn.Close()
		return nil, errors.New("no NBD server")
	}
	return conn, nil
}

// leave ends a connection that was greeted as the protocol has it, since
// qemu-nbd would complain otherwise.
func leave(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second)) // courtesy only
	const flags, abort = "\x00\x00\x00\x01", "IHAVEOPT\x00\x00\x00\x02\x00\x00\x00\x00"
	if _, err := io.WriteString(conn, flags+abort); err == nil {
		_, _ = io.Copy(io.Discard, conn)
	}
}

// stop ends the child, if it runs, and waits until it has ended, but not
// forever: one that the kernel does not let go is left to it.
func (ch *child) stop() {
	if ch.cmd == nil {
		return
	}
	ch.stopping.Lock()
	defer ch.stopping.Unlock()
	patience := stopReadOnly
	if ch.chain.top.file.writable {
		patience = stopWritable
	}
	for _, step := range []struct {
		signal   os.Signal
		patience time.Duration
	}{{syscall.SIGTERM, patience}, {syscall.SIGKILL, killTimeout}} {
		_ = ch.cmd.Process.Signal(step.signal) // it may have ended
		select {
		case <-ch.done:
			return
		case <-time.After(step.patience):
			ch.log.Warn("qemu-nbd does not end", "signal", step.signal.String(), "waited", step.patience)
		}
	}
}

// close releases what a child that has ended was given.
func (ch *child) close() {
	if ch.plan != nil {
		ch.plan.close()
	}
	ch.chain.close()
}
