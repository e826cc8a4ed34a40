package nbdsrc

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"hashfs/hasher"
)

// zeros is what is written where a server cannot make zeros itself.
var zeros [4 * pieceBytes]byte

// errBeyond is for what no caller that knows the size would ask.
var errBeyond = errors.New("beyond the end of the export")

// zeroSpan is how much one request zeroes at most, in bytes: much enough that
// a whole device takes few, and little enough that a server that writes the
// zeros one by one is through within the timeout.
const zeroSpan = 64 << 20

// WriteAt follows io.WriterAt. What is not aligned as the server needs it is
// read, changed and written, which other writers of this Export see as one.
// An error that is hasher.ErrUnknownOutcome says that the server may have written
// any part of it, or may do so yet; after any other it will not.
func (e *Export) WriteAt(p []byte, off int64) (n int, err error) {
	if err := e.refuseWriting("write", off, int64(len(p))); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, e.failed("write", off, int64(len(p)), errNegative)
	}
	s, err := e.live(e.patience())
	if err == nil {
		n, err = e.write(s, p, off)
	}
	if err != nil {
		err = e.failed("write", off+int64(n), int64(len(p)-n), e.outcome(s, err))
	}
	return n, err
}

// write splits a range at units of alignment: whole ones are written as they
// are, and those at the ends, if they are not whole, by writeWithin.
func (e *Export) write(s *session, p []byte, off int64) (n int, err error) {
	if int64(len(p)) > s.size-off {
		return 0, errBeyond
	}
	for n < len(p) && err == nil {
		var k int
		at := off + int64(n)
		rest := int64(len(p) - n)
		if at+rest != s.size {
			rest -= rest % s.align
		}
		if at%s.align != 0 || rest == 0 {
			k, err = e.writeWithin(s, p[n:], at)
		} else {
			unlock := e.ranges.lock(at, at+rest, false)
			k, err = s.write(p[n:][:rest], at, e.patience())
			unlock()
		}
		n += k
	}
	return n, err
}

// writeWithin writes what of p lies in the unit of alignment that off is in.
func (e *Export) writeWithin(s *session, p []byte, off int64) (int, error) {
	start := off - off%s.align
	defer e.ranges.lock(start, start+s.align, true)()
	unit, from, err := s.unit(off, e.patience())
	if err != nil {
		if lost, ok := errors.AsType[*lostError](err); ok {
			err = &lostError{lost.cause, false} // it was a read
		}
		return 0, err
	}
	k := copy(unit[from:], p)
	if _, err = s.write(unit, start, e.patience()); err != nil {
		k = 0
	}
	return k, err
}

// write is transfer for writing.
func (s *session) write(p []byte, off int64, t times) (n int, err error) {
	number := s.writes.begin()
	n, err = s.transfer(opWrite, p, off, t)
	s.writes.end(number, n > 0)
	return n, err
}

// Flush has the server make durable what it has answered for. A server that
// knows no flush has nothing to make durable, or does so with each write, which
// it is asked for where it can. When a session has ended since the last Flush
// with writes that were answered and not flushed, it fails, once: the server may
// have been another one since, without them.
func (e *Export) Flush() error {
	if err := e.refuseWriting("flush", 0, 0); err != nil {
		return err
	}
	t := e.patience()
	for {
		s, err := e.live(t)
		if err == nil {
			err = s.flushAll(t)
		}
		lost := e.lostWrites.Swap(false)
		switch {
		case lost && (err == nil || errors.Is(err, ErrLost)):
			err = errLostWrites
		case s != nil && errors.Is(err, ErrLost) && time.Now().Before(t.deadline):
			continue // nothing was lost with it
		}
		if err != nil {
			return fmt.Errorf("flush %s: %w", e.uri, err)
		}
		return nil
	}
}

// flushAll has all that was answered made durable. One connection does it for all, or
// there is only one.
func (s *session) flushAll(t times) error {
	if !s.flush {
		return nil
	}
	covered := s.writes.covered()
	err := s.command(&request{op: opFlush, times: t})
	if err == nil {
		s.writes.flush(covered)
	}
	return err
}

// errLostWrites: see Flush.
var errLostWrites = fmt.Errorf("the connection was lost since the last flush, and with it maybe what was written: %w", syscall.EIO)

// command sends a request that has no buffer, and waits for it.
func (s *session) command(r *request) error {
	r.done = make(chan struct{}, 1)
	s.shared.submit(r)
	<-r.done
	return r.err
}

// Zero makes [off, off+length) read as zeros, by NBD's write zeroes command;
// never by trim, which promises nothing. A server that does not know it is
// sent zeros, or, with punch, the answer is hasher.ErrNotSupported. After
// another error a part may be zeroed.
func (e *Export) Zero(off, length int64, punch bool) error {
	if err := e.refuseWriting("zero", off, length); err != nil {
		return err
	}
	s, err := e.live(e.patience())
	if err == nil {
		err = e.zero(s, off, length, punch)
	}
	if err != nil {
		return e.failed("zero", off, length, e.outcome(s, err))
	}
	return nil
}

func (e *Export) zero(s *session, off, length int64, punch bool) error {
	if off < 0 || length > s.size-off {
		return errBeyond
	}
	command := s.zero
	for end := off + length; off < end; {
		whole := end - off
		if end != s.size {
			whole -= whole % s.align
		}
		if off%s.align != 0 || whole == 0 || !command {
			if punch && !command {
				return hasher.ErrNotSupported
			}
			n, err := e.write(s, zeros[:min(end-off, int64(len(zeros)))], off)
			if err != nil {
				return err
			}
			off += int64(n)
			continue
		}
		n := min(zeroSpan-off%zeroSpan, whole)
		err := e.zeroWhole(s, off, n, punch)
		switch {
		case unsupported(err):
			command = false
		case err != nil:
			return err
		default:
			off += n
		}
	}
	return nil
}

// zeroWhole has the server zero whole units of alignment.
func (e *Export) zeroWhole(s *session, off, length int64, punch bool) error {
	defer e.ranges.lock(off, off+length, false)()
	number := s.writes.begin()
	err := s.command(&request{
		op: opZero, off: off, length: length, noHole: !punch, fua: s.fua && !s.flush, times: e.patience(),
	})
	s.writes.end(number, err == nil)
	return err
}

// Allocate is not possible by NBD.
func (e *Export) Allocate(off, length int64) error {
	return e.failed("allocate", off, length, hasher.ErrNotSupported)
}
