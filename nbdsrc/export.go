package nbdsrc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"hashfs/hasher"
)

var (
	_ hasher.Source         = (*Export)(nil)
	_ hasher.ExtentSource   = (*Export)(nil)
	_ hasher.WritableSource = (*Export)(nil)
	_ hasher.ZeroSource     = (*Export)(nil)
	_ hasher.StampedSource  = (*Export)(nil)
	_ hasher.RemoteSource   = (*Export)(nil)
	_ hasher.QueueSource    = (*Export)(nil)
)

const (
	defaultTimeout     = 30 * time.Second
	defaultConnections = 4
)

// Options say how an export is opened.
type Options struct {
	// Writable asks for writing; a read-only export is refused then.
	Writable bool

	// NoExtents takes the whole export for data, whatever the server says.
	NoExtents bool

	// Timeout bounds each request, and each try to connect: 30 s if it is 0.
	// A server that takes longer is given up and connected to again.
	Timeout time.Duration

	// Connections is how many connections are made at most, where the server
	// allows more than one: 4 if it is 0.
	Connections int

	Log  *slog.Logger // nil discards
	Name string       // of the image, in log lines

	// restarts, if the server is a process of ours, counts those that have ended.
	restarts func() uint64
}

// An Export is an export of an NBD server. See the package comment for what it
// promises.
type Export struct {
	uri     string // as given
	target  target
	o       Options
	log     *slog.Logger
	closing context.Context // done when Close was called
	close   context.CancelFunc

	size       atomic.Int64 // bytes, as of the last Stamp
	distrusted atomic.Bool  // block status was wrong once
	statusSpan atomic.Int64 // bytes that a block status request should ask for
	lostWrites atomic.Bool  // a session ended with writes that were not flushed, and no Flush has said so
	ranges     ranges       // being written, where a write may be unaligned

	// mu guards what follows. It is never held across I/O. A session's and a
	// connection's own locks come after it.
	mu      sync.Mutex
	session *session      // nil while there is no connection
	last    *session      // the present or last one, never nil
	outage  time.Time     // since when there is none
	cause   error         // why
	changed chan struct{} // closed, and made anew, when session changes

	background sync.WaitGroup // reconnects
	backoff    time.Duration  // of the goroutine that does, before its next try
	hurry      chan struct{}  // has it try soon; holds one
}

// Open connects to the export that an NBD URI names. ctx bounds the opening
// only, as does the timeout of o. The error is one line that says what to do.
func Open(ctx context.Context, uri string, o Options) (*Export, error) {
	if err := loadLibnbd(); err != nil {
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	t, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	if err := t.absolute(); err != nil {
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Connections <= 0 {
		o.Connections = defaultConnections
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Export{uri: uri, target: t, o: o, changed: make(chan struct{}), hurry: make(chan struct{}, 1)}
	e.log = o.Log.With("image", o.Name, "export", uri)
	e.ranges.freed.L = &e.ranges.mu
	e.statusSpan.Store(minStatusSpan)
	e.closing, e.close = context.WithCancel(context.Background())
	c, err := e.dial(ctx)
	if err != nil {
		e.close()
		return nil, fmt.Errorf("open %s: %w", uri, err)
	}
	e.size.Store(c.info.size)
	e.begin(c)
	return e, nil
}

// dial makes the first connection of a session.
func (e *Export) dial(ctx context.Context) (*conn, error) {
	c, err := dial(ctx, &e.target, !e.o.NoExtents, e.o.Timeout)
	if err != nil {
		return nil, err
	}
	switch {
	case e.o.Writable && c.info.readOnly:
		err = fmt.Errorf("the server allows no writing: %w", hasher.ErrReadOnly)
	case c.info.size < 0:
		err = errors.New("the server tells no size")
	}
	if err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

// begin begins a session with its first connection.
func (e *Export) begin(first *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing.Err() != nil {
		first.free()
		return
	}
	epoch := uint64(1)
	if e.last != nil {
		epoch = e.last.epoch + 1
	}
	s := newSession(first, epoch, e.lost)
	s.writes.lost = func() { e.lostWrites.Store(true) }
	if e.o.restarts != nil {
		s.restarts = e.o.restarts()
	}
	e.session, e.last = s, s
	s.running.Go(s.run)
	if s.multiConn && e.o.Connections > 1 {
		s.running.Go(func() {
			s.widen(&e.target, e.o.Connections, !e.o.NoExtents, e.o.Timeout, e.log)
		})
	}
	e.turnLocked()
}

// turnLocked wakes those who wait for a session, or for its end.
func (e *Export) turnLocked() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// lost is called when a connection of s has failed, before its requests do.
func (e *Export) lost(s *session, cause error, since time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.session != s {
		return
	}
	e.session, e.outage, e.cause = nil, since, cause
	s.writes.finish()
	e.turnLocked()
	if e.closing.Err() == nil {
		e.log.Warn("lost the connection to the NBD server, reconnecting", "cause", cause)
		e.background.Go(func() { e.reconnect(s) })
	}
}

const (
	// The first try to reconnect comes at once, the others at growing
	// distances: a server that restarts is back soon, and one that is gone, or
	// falls over the same request again and again, need not be asked all the
	// time, unless somebody waits for it. What has lasted for lastBackoff counts
	// as a good connection.
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 10 * time.Second
)

// reconnect tries until there is a connection again after the session s, or
// Close is called.
func (e *Export) reconnect(s *session) {
	s.running.Wait() // some servers take one client at a time
	if time.Since(s.since) > lastBackoff {
		e.backoff = 0
	}
	for logged := ""; ; {
		select {
		case <-time.After(e.backoff):
		case <-e.hurry:
			time.Sleep(min(e.backoff, firstBackoff))
			e.backoff = 0
		case <-e.closing.Done():
			return
		}
		e.backoff = min(max(2*e.backoff, firstBackoff), lastBackoff)
		c, err := e.dial(e.closing)
		switch {
		case err == nil:
			e.log.Info("reconnected to the NBD server", "size", c.info.size)
			e.begin(c)
			return
		case e.closing.Err() == nil && err.Error() != logged:
			logged = err.Error()
			e.log.Warn("cannot reconnect to the NBD server yet", "cause", err)
		}
	}
}

// patience returns the limits for a caller that came now.
func (e *Export) patience() times {
	now := time.Now()
	return times{now, now.Add(e.o.Timeout)}
}

// live returns the session. While there is none it waits for one, but for half
// of the timeout at most, counted from the beginning of the outage or from
// the start of the caller, whichever was first: so much is left for its
// request, and once an outage has lasted, callers fail at once.
func (e *Export) live(t times) (*session, error) {
	for asked := false; ; asked = true {
		e.mu.Lock()
		s, changed, outage, cause := e.session, e.changed, e.outage, e.cause
		e.mu.Unlock()
		if e.closing.Err() != nil {
			return nil, hasher.ErrClosed
		}
		if s != nil {
			return s, nil
		}
		if t.start.Before(outage) {
			outage = t.start
		}
		if !asked {
			e.hurryUp()
		}
		timer := time.NewTimer(time.Until(outage.Add(e.o.Timeout / 2)))
		select {
		case <-changed:
			timer.Stop()
		case <-timer.C:
			return nil, &lostError{cause, false}
		}
	}
}

// hurryUp says that somebody waits for a session.
func (e *Export) hurryUp() {
	select {
	case e.hurry <- struct{}{}:
	default:
	}
}

// renewed waits for a session after the one with that number, for as long as
// requests wait for one. The server is known to be another one, and up, so that
// it is tried at once.
func (e *Export) renewed(epoch uint64) error {
	e.hurryUp()
	limit := time.NewTimer(e.o.Timeout / 2)
	defer limit.Stop()
	cause := errors.New("not connected again yet")
	for {
		e.mu.Lock()
		s, changed := e.session, e.changed
		if e.cause != nil {
			cause = e.cause
		}
		e.mu.Unlock()
		if e.closing.Err() != nil {
			return fmt.Errorf("%s: %w", e.uri, hasher.ErrClosed)
		}
		if s != nil && s.epoch > epoch {
			return nil
		}
		select {
		case <-changed:
		case <-limit.C:
			return fmt.Errorf("%s: %w", e.uri, &lostError{cause, false})
		}
	}
}

// URI returns the URI as it was given.
func (e *Export) URI() string { return e.uri }

// Size returns the size of the export as of the last Stamp.
func (e *Export) Size() int64 { return e.size.Load() }

// info returns what the server says, or said last.
func (e *Export) info() info {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last.info
}

// MultiConn reports whether the server allows several connections.
func (e *Export) MultiConn() bool { return e.info().multiConn }

// ReadOnly reports whether the server allows no writing.
func (e *Export) ReadOnly() bool { return e.info().readOnly }

// Writable reports whether the export was opened for writing.
func (e *Export) Writable() bool { return e.o.Writable }

// HasExtents reports whether the server tells holes from data, and is trusted
// in it.
func (e *Export) HasExtents() bool { return e.info().extents && !e.distrusted.Load() }

// Connections returns how many connections there are at present.
func (e *Export) Connections() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.session == nil {
		return 0
	}
	return e.session.connections()
}

// stampTime is a change time that is as old as one can be, and does not look
// like that of a clock of whole seconds: NBD tells nothing about changes, so
// there is nothing to wait for.
const stampTime = 1

// Stamp returns a stamp that differs from those before a reconnect, and before
// the block status was found to be wrong: by Inode, which counts the sessions,
// and by Dev. Changes that others make to the export are not seen. MTime is
// when the session began. While the connection is lost, also if only the
// kernel knows yet, it waits for another as requests do: what the server has
// meanwhile, nobody can say. Its error says that there was none in time.
func (e *Export) Stamp() (hasher.Stamp, error) {
	t := e.patience()
	for {
		session, err := e.live(t)
		if err != nil {
			return hasher.Stamp{}, fmt.Errorf("%s: %w", e.uri, err)
		}
		if session.shared.hungUp() {
			e.lost(session, errHungUp, time.Now())
			continue
		}
		e.mu.Lock()
		current := e.session == session
		if current {
			e.size.Store(session.size)
		}
		e.mu.Unlock()
		if !current {
			continue
		}
		s := hasher.Stamp{
			Size:  session.size,
			MTime: session.since.UnixNano(),
			CTime: stampTime,
			Inode: session.epoch,
		}
		if e.distrusted.Load() {
			s.Dev = 1
		}
		return s, nil
	}
}

// AwaitWriters has nothing to wait for: NBD tells nothing of other writers.
func (e *Export) AwaitWriters() error { return nil }

// Remote reports true: a request may take as long as the timeout.
func (e *Export) Remote() bool { return true }

// Close ends all connections. It waits for the server a tenth of a second at
// most. Requests under way fail.
func (e *Export) Close() error {
	e.mu.Lock()
	if e.closing.Err() != nil {
		e.mu.Unlock()
		return hasher.ErrClosed
	}
	e.close()
	s := e.last
	e.turnLocked()
	e.mu.Unlock()
	s.finish(errEnded)
	s.running.Wait()
	e.background.Wait()
	return nil
}

// failed returns the error of an operation on a range.
func (e *Export) failed(op string, off, length int64, err error) error {
	return fmt.Errorf("%s %d bytes of %s at %d: %w", op, length, e.uri, off, err)
}

// refuseWriting returns the error of a write to an export that is not writable.
func (e *Export) refuseWriting(op string, off, length int64) error {
	if e.o.Writable {
		return nil
	}
	return e.failed(op, off, length, hasher.ErrReadOnly)
}

// outcome turns the error of a write of that session that was sent and not
// answered into one that says so.
func (e *Export) outcome(s *session, err error) error {
	if isSent(err) && !e.hasEnded(s) {
		return fmt.Errorf("%w: %w", err, hasher.ErrUnknownOutcome)
	}
	return err
}

// endPatience is for how long hasEnded waits: the connection to a process that is
// killed ends a little before it does.
const endPatience = 200 * time.Millisecond

// hasEnded reports whether the server of a session is known to do nothing any more.
func (e *Export) hasEnded(s *session) bool {
	if e.o.restarts == nil {
		return false
	}
	for limit := time.Now().Add(endPatience); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		if e.o.restarts() > s.restarts {
			return true
		}
	}
	return false
}
