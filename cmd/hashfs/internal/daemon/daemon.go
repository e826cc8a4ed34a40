// Package daemon puts a program into the background once it is ready.
//
// A Go program cannot fork, so Start runs the same command line again, in a
// process group of its own, away from the terminal, with a pipe. The two ends
// talk in JSON objects: warnings, and then either that all is ready or the
// error and the exit status. The caller of Start thus ends with what its
// daemon says, and a daemon that dies without a word is told apart from one
// that is ready.
//
// Until Ready the daemon keeps the standard error of its parent, so that a
// crash is seen; afterwards it holds nothing of its parent's.
//
// Tested by a test binary that starts itself.
package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// marker is the environment variable that makes a process the daemon.
const marker = "HASHFS_DAEMON_PIPE"

// pipeFD is the daemon's end of the pipe: the first of cmd.ExtraFiles.
const pipeFD = 3

type message struct {
	Warning string `json:"warning,omitempty"`
	Error   string `json:"error,omitempty"`
	Status  int    `json:"status,omitempty"` // exit status, with Error
	Ready   bool   `json:"ready,omitempty"`
}

// An Error is what the daemon failed with.
type Error struct {
	Message string
	Status  int // exit status
}

func (e *Error) Error() string { return e.Message }

// ErrInterrupted: the start was broken off by a signal to the parent.
var ErrInterrupted = errors.New("interrupted")

// Start runs this program's command line again as a daemon and returns when
// that is ready, with nil, or has failed, with an *Error. warn is called for
// each warning on the way. SIGINT and SIGTERM are passed on to the daemon
// while it starts, the second of them ends it.
func Start(warn func(string)) error {
	// What a script left open, the file of its flock(1) for example, would
	// stay open in the daemon. Kernels before 5.11 cannot do this; there it
	// does.
	unix.CloseRange(pipeFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0] // by which it may know how it was called
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	result := make(chan error, 1)
	go func() { result <- listen(r, warn) }()
	interrupted := false
	for {
		select {
		case <-signals:
			if interrupted {
				// It may hang in a file system that does not answer.
				cmd.Process.Kill()
				return ErrInterrupted
			}
			interrupted = true
			cmd.Process.Signal(unix.SIGTERM)
		case err := <-result:
			return conclude(cmd, err, interrupted)
		}
	}
}

// listen reads messages until one that ends the start. io.EOF: there was none.
func listen(r io.Reader, warn func(string)) error {
	in := json.NewDecoder(r)
	for {
		var m message
		switch err := in.Decode(&m); {
		case err != nil:
			return err
		case m.Ready:
			return nil
		case m.Error != "":
			return &Error{m.Error, m.Status}
		default:
			warn(m.Warning)
		}
	}
}

func conclude(cmd *exec.Cmd, err error, interrupted bool) error {
	if err == nil && !interrupted {
		return cmd.Process.Release()
	}
	end := cmd.Wait()
	var failure *Error
	switch {
	case interrupted:
		return ErrInterrupted
	case errors.As(err, &failure):
		return failure
	case end != nil:
		return fmt.Errorf("the daemon ended before it was ready: %w", end)
	}
	return errors.New("the daemon ended before it was ready")
}

// A Child is the daemon's side. It is used by one goroutine.
type Child struct {
	pipe *os.File
	out  *json.Encoder
}

// Started returns the daemon's side when this process was run by Start. It
// is called once, early: it takes the marker away, so that no other process
// finds it.
func Started() (*Child, bool) {
	if os.Getenv(marker) == "" {
		return nil, false
	}
	os.Unsetenv(marker)
	// It was started as /proc/self/exe, and would be called "exe" by ps, and
	// by whoever tells who holds the lock of an image.
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
	unix.CloseOnExec(pipeFD)
	pipe := os.NewFile(pipeFD, "pipe to the parent")
	unix.Umask(0o077)
	// The terminal may go away; that is no reason for the daemon to.
	signal.Ignore(unix.SIGHUP)
	return &Child{pipe, json.NewEncoder(pipe)}, true
}

// Warn has the parent show a warning.
func (c *Child) Warn(text string) { c.out.Encode(message{Warning: text}) }

// Fail has the parent end with this error and exit status.
func (c *Child) Fail(text string, status int) {
	c.out.Encode(message{Error: text, Status: status})
	c.pipe.Close()
}

// Ready has the parent end with success, and lets go of its working
// directory and of its standard error, which becomes log, or nothing when
// that is nil. An error means that nobody was there to hear.
func (c *Child) Ready(log *os.File) error {
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if log == nil {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer null.Close()
		log = null
	}
	if err := unix.Dup3(int(log.Fd()), 2, 0); err != nil {
		return err
	}
	defer c.pipe.Close()
	return c.out.Encode(message{Ready: true})
}
