package nbdsrc

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// unknownMinimum is what requests are aligned to where the server did
	// not say what it needs: the NBD protocol, "Block size constraints".
	unknownMinimum = 512

	// pieceBytes is what one request reads or writes at most, so that what is
	// longer is served in parallel, and a reply finds its way into a
	// processor's cache. qemu-nbd takes several times as long for 1 MiB.
	pieceBytes = 512 << 10

	// maxPieceBytes bounds the size that a server may prefer to that: each
	// worker that hashes has two of them under way.
	maxPieceBytes = 4 << 20
)

// A session is the connections to an export from the time that the first of
// them was made to when any of them fails, for that says that the server may
// be another one by now.
type session struct {
	info
	epoch uint64 // counts the sessions of an Export, from 1
	since time.Time
	piece int64 // length of a request for data at most: a multiple of align
	align int64 // of requests for data

	replied  atomic.Int64 // see conn
	writes   writes
	restarts uint64 // of the private server, before which the session began at the latest

	shared *conn                                          // by everybody
	lost   func(s *session, cause error, since time.Time) // called when any connection fails, before its requests do
	over   context.Context                                // done when the session is
	end    context.CancelCauseFunc

	// joining lets lanes be added up to the end, and none after it. It guards
	// them.
	joining sync.Mutex
	lanes   []*lane
	running sync.WaitGroup // the shared connection, and the goroutine that adds lanes
}

// newSession returns a session whose shared connection is first, and does not run
// yet.
func newSession(first *conn, epoch uint64, lost func(s *session, cause error, since time.Time)) *session {
	s := &session{info: first.info, epoch: epoch, since: time.Now(), shared: first, lost: lost}
	s.align = max(1, s.minimum)
	if s.minimum == 0 {
		s.align = unknownMinimum
	}
	first.replied = &s.replied
	s.piece = s.info.piece(s.align)
	s.over, s.end = context.WithCancelCause(context.Background())
	return s
}

// piece returns how many bytes a request for data has at most, a multiple of align
// and if possible of what the server prefers.
func (i *info) piece(align int64) int64 {
	piece := int64(pieceBytes)
	if i.preferred > piece && i.preferred <= maxPieceBytes {
		piece = i.preferred
	}
	if i.maximum > 0 {
		piece = min(piece, i.maximum)
	}
	if unit := i.preferred; unit > 0 && unit <= piece {
		piece -= piece % unit
	}
	return max(piece-piece%align, align)
}

// run drives the shared connection until the session is over.
func (s *session) run() { s.shared.run(s.fail) }

// fail ends the session for a connection that has failed.
func (s *session) fail(cause error, since time.Time) {
	s.lost(s, cause, since)
	s.finish(cause)
}

// finish ends all connections. It does not wait.
func (s *session) finish(cause error) {
	s.joining.Lock()
	defer s.joining.Unlock()
	s.end(cause)
	for _, l := range s.lanes {
		l.conn.end(cause)
		if !l.taken {
			s.running.Go(func() { l.flight.land(cause) })
		}
	}
	s.lanes = nil
	s.shared.end(cause)
}

// widen makes more connections, up to n in all. They are lanes, since a pass over
// the image is what takes time. What stands in the way of one is no failure: the
// server may be at its limit.
func (s *session) widen(t *target, n int, extents bool, timeout time.Duration, log *slog.Logger) {
	for made := 1; made < n; made++ {
		c, err := dial(s.over, t, extents, timeout)
		if err == nil && c.info != s.info {
			c.free()
			log.Debug("another connection shows another export")
			return
		}
		if err != nil {
			if s.over.Err() == nil {
				log.Debug("no further connection", "connections", made, "cause", err)
			}
			return
		}
		if !s.addLane(c) {
			c.free()
			return
		}
	}
}

// connections returns how many there are.
func (s *session) connections() int {
	s.joining.Lock()
	defer s.joining.Unlock()
	return 1 + len(s.lanes)
}

// transfer reads p at off, or writes it, in as many requests as it takes. The
// range is aligned, but for an end at the size of the export. It returns how
// many bytes from the beginning are done for sure.
func (s *session) transfer(op int, p []byte, off int64, t times) (n int, err error) {
	var few [4]*request
	rs := few[:0]
	for at := int64(0); at < int64(len(p)); {
		length := min(s.piece-(off+at)%s.piece, int64(len(p))-at)
		r := newTransfer(op, p[at:at+length], off+at)
		r.times = t
		r.fua = op == opWrite && s.fua && !s.flush
		rs = append(rs, r)
		s.shared.submit(r)
		at += length
	}
	return collect(rs)
}

// collect waits for requests, which follow each other, and returns how many
// bytes were done before the first error, and that error, or one that says
// that a request's outcome is not known.
func collect(rs []*request) (n int, err error) {
	for _, r := range rs {
		length := int(r.length)
		e := r.wait()
		switch {
		case e == nil && err == nil:
			n += length
		case err == nil || isSent(e):
			err = e
		}
	}
	return n, err
}
