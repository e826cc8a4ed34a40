package nbdsrc

import (
	"errors"
	"io"
)

// ReadAt follows io.ReaderAt. A read whose connection is lost is sent again
// over the next, if there is one soon; all in all it takes no longer than the
// timeout.
func (e *Export) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, e.failed("read", off, int64(len(p)), errNegative)
	}
	t := e.patience()
	for {
		s, err := e.live(t)
		if err != nil {
			return 0, e.failed("read", off, int64(len(p)), err)
		}
		n, err := s.read(p, off, t)
		if err == nil || err == io.EOF {
			return n, err
		}
		if !errors.Is(err, ErrLost) {
			return n, e.failed("read", off+int64(n), int64(len(p)-n), err)
		}
	}
}

var errNegative = errors.New("negative offset")

// read reads what of [off, off+len(p)) is within the export, and io.EOF tells
// that this is not all. What a request has to take along for the sake of
// alignment goes to a buffer of its own.
func (s *session) read(p []byte, off int64, t times) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if off >= s.size {
		return 0, io.EOF
	}
	if int64(len(p)) > s.size-off {
		p = p[:s.size-off]
		defer func() {
			if err == nil {
				err = io.EOF
			}
		}()
	}
	for n < len(p) && err == nil {
		var k int
		at := off + int64(n)
		switch rest := int64(len(p) - n); {
		case at%s.align != 0 || rest < s.align && at+rest != s.size:
			k, err = s.readWithin(p[n:], at, t)
		case at+rest == s.size:
			k, err = s.transfer(opRead, p[n:], at, t)
		default:
			k, err = s.transfer(opRead, p[n:][:rest-rest%s.align], at, t)
		}
		n += k
	}
	return n, err
}

// readWithin reads what of p lies in the unit of alignment that off is in.
func (s *session) readWithin(p []byte, off int64, t times) (n int, err error) {
	unit, from, err := s.unit(off, t)
	return copy(p, unit[from:]), err
}

// unit reads the unit of alignment that off is in, and returns it with the
// index of off. It is cut at the end of the export. After an error it is empty.
func (s *session) unit(off int64, t times) (unit []byte, from int64, err error) {
	from = off % s.align
	unit = make([]byte, min(s.align, s.size-(off-from)))
	if _, err := s.transfer(opRead, unit, off-from, t); err != nil {
		return nil, 0, err
	}
	return unit, from, nil
}
