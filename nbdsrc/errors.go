package nbdsrc

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"hashfs/hasher"
)

// Errors to be tested with errors.Is.
var (
	// ErrNotBuilt: the program was built without cgo, and so without libnbd.
	ErrNotBuilt = errors.New("built without NBD support: build it with CGO_ENABLED=1 and libnbd's development files")

	// ErrNotLoaded: libnbd is not installed, too old, or cannot be loaded.
	ErrNotLoaded = errors.New("cannot load libnbd: install version 1.14 or later (Debian's package libnbd0)")

	// ErrLost: the connection to the server failed before an answer came.
	ErrLost = errors.New("connection lost")
)

// errEnded ends a connection that is no longer needed.
var errEnded = errors.New("closed")

// errHungUp is the end of a connection that nobody has come upon by reading.
var errHungUp = errors.New("the server closed the connection")

// errShutdown is the answer of a server that ends as soon as its clients have left.
var errShutdown = errors.New("the server is being shut down")

// A connError is why libnbd could not connect or stay connected.
type connError struct {
	message string
	errno   syscall.Errno // 0: not known
}

func (e *connError) Error() string {
	// "nbd_aio_connect_uri: " says which function failed, to programmers.
	if name, rest, ok := strings.Cut(e.message, ": "); ok && strings.HasPrefix(name, "nbd_") {
		return rest
	}
	return e.message
}

func (e *connError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// explain says what is wrong with a new connection, and the way out, where the
// number tells.
func (e *connError) explain(t *target) error {
	server := t.host
	if t.unix != "" {
		server = "the socket " + t.unix
	}
	switch e.errno {
	case syscall.ECONNREFUSED:
		return fmt.Errorf("no server listens at %s: %w", server, e.errno)
	case syscall.ENOENT: // from connect(2), or for NBD_REP_ERR_UNKNOWN
		if t.unix != "" {
			if _, err := os.Stat(t.unix); err != nil {
				return fmt.Errorf("there is no socket %s: is the server running: %w", t.unix, e.errno)
			}
		}
		return fmt.Errorf("the server has no export named %q: nbdinfo --list shows those that it has: %w", t.export, e.errno)
	case syscall.ENOTSUP: // for NBD_REP_ERR_TLS_REQD, or a refusal of TLS
		if t.tls {
			return fmt.Errorf("the server does not offer TLS: %s would go without", strings.Replace(t.scheme(), "nbds", "nbd", 1))
		}
		return fmt.Errorf("the server requires TLS: use %s", strings.Replace(t.scheme(), "nbd", "nbds", 1))
	}
	return e
}

// A timeoutError is not a context's, nor does it wrap one: those mean that
// trying again at once may help.
type timeoutError struct {
	what  string
	after time.Duration
}

func (e *timeoutError) Error() string {
	return fmt.Sprintf("%s: no answer from the server within %v", e.what, e.after.Round(time.Millisecond))
}

// A lostError is the end of a request whose connection failed.
type lostError struct {
	cause error
	sent  bool // the server may have seen it
}

func (e *lostError) Error() string { return fmt.Sprintf("%v: %v", ErrLost, e.cause) }

// Unwrap leaves the cause out: its number is about the connection, and would
// be taken for the image's.
func (e *lostError) Unwrap() []error { return []error{ErrLost, hasher.ErrUnavailable} }

// isSent reports whether err is of a request that the server may have seen and
// did not answer.
func isSent(err error) bool {
	e, ok := errors.AsType[*lostError](err)
	return ok && e.sent
}

// serverError returns the error for a number that the server answered. Only
// numbers that mean to a user of the image what they mean to the server are
// kept; what else is wrong with a request of ours is an I/O error to him.
func serverError(errno syscall.Errno) error {
	switch errno {
	case syscall.EIO, syscall.ENOSPC, syscall.ENOMEM:
		return &answer{errno, errno}
	}
	return &answer{errno, syscall.EIO}
}

// An answer is an error that the server gave for a request.
type answer struct {
	errno syscall.Errno // as the server said
	as    syscall.Errno // what it is to the user
}

func (e *answer) Error() string { return "the server answered: " + e.errno.Error() }
func (e *answer) Unwrap() error { return e.as }

// unsupported reports whether the server does not know the command.
func unsupported(err error) bool {
	a, ok := errors.AsType[*answer](err)
	return ok && a.errno == syscall.ENOTSUP
}
