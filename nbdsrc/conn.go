package nbdsrc

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An info is what the server said of the export. Sizes are bytes; those of
// requests are 0 where the server did not tell.
type info struct {
	size                        int64
	minimum, preferred, maximum int64

	readOnly, flush, fua, zero, multiConn, extents bool
}

// farewell bounds how long the end of a connection is said goodbye to.
const farewell = 100 * time.Millisecond

// A conn is one connection. Once it is connected one goroutine at a time uses
// the handle: that of run, which others wake when they have queued a request,
// or who has the lane that the connection is.
type conn struct {
	info info
	h    *handle
	wake int          // eventfd
	peer int          // of our own, for the socket; -1 before it is connected
	load atomic.Int32 // requests that are not done, for tests

	// replied is when a reply came last on any connection of the session, by
	// processStart; nil before it belongs to one.
	replied *atomic.Int64

	// mu guards what follows, and keeps wake and peer open while they are used.
	// It is never held across a call of C, and no other lock is taken under it.
	mu       sync.Mutex
	queue    []*request // not yet handed to C
	sleeping bool       // run is, or soon will be, waiting in C
	cause    error      // why it is to end; set once

	ended chan struct{} // closed, under mu, when all was let go of
}

// newConn returns a connection that is not connected.
func newConn() (*conn, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	h, err := newHandle(wake)
	if err != nil {
		unix.Close(wake)
		return nil, err
	}
	return &conn{h: h, wake: wake, peer: -1, ended: make(chan struct{})}, nil
}

// free lets go of handle and buffers, and finishes what is still queued.
func (c *conn) free() {
	c.mu.Lock()
	close(c.ended)
	unix.Close(c.wake)
	if c.peer >= 0 {
		unix.Close(c.peer)
	}
	c.mu.Unlock()
	c.h.free()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.queue {
		r.finish(&lostError{c.cause, false})
	}
	c.queue = nil
}

// dial connects to an export. It gives up when ctx ends, and after timeout.
func dial(ctx context.Context, t *target, extents bool, timeout time.Duration) (*conn, error) {
	if err := t.checkTLS(); err != nil {
		return nil, err
	}
	c, err := newConn()
	if err != nil {
		return nil, err
	}
	// The resolver blocks at its own pace and cannot be interrupted. When it
	// has to be left behind, what it uses is freed when it is through.
	deadline := time.Now().Add(timeout)
	begun := make(chan state, 1)
	go func() { begun <- c.h.connect(t.String(), extents) }()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	leave := func(err error) (*conn, error) {
		go func() {
			<-begun
			c.free()
		}()
		return nil, err
	}
	select {
	case s := <-begun:
		if err := c.negotiate(ctx, s, t, deadline, timeout); err != nil {
			c.free()
			return nil, err
		}
		c.info = c.h.info()
		c.peer, err = unix.FcntlInt(uintptr(c.h.socket()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			c.free()
			return nil, fmt.Errorf("duplicate the socket: %w", err)
		}
		keepAlive(c.peer, timeout)
		return c, nil
	case <-ctx.Done():
		return leave(ctx.Err())
	case <-timer.C:
		return leave(&timeoutError{"look up of " + t.host, timeout})
	}
}

// keepAlive has the kernel find out within about that time that the other end of a
// TCP connection is gone without a word, also while nothing is asked of it.
func keepAlive(socket int, timeout time.Duration) {
	const probes = 4
	seconds := func(d time.Duration) int { return max(1, int(d/time.Second)) }
	for _, option := range []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(timeout / 2)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(timeout / 2 / probes)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, probes},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, milliseconds(timeout)},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
	} {
		// A unix socket has none of it, and needs none.
		_ = unix.SetsockoptInt(socket, option.level, option.name, option.value)
	}
}

// negotiate takes a connection that was begun to where it takes requests.
func (c *conn) negotiate(ctx context.Context, s state, t *target, deadline time.Time, timeout time.Duration) error {
	defer context.AfterFunc(ctx, c.wakeUp)()
	for {
		switch s {
		case stateReady:
			return nil
		case stateFailed:
			return c.h.failure().explain(t)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return &timeoutError{"negotiation", timeout}
		}
		s = c.h.wait(milliseconds(left))
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// milliseconds returns d for poll(2), rounded up lest it wake too early, time
// and again.
func milliseconds(d time.Duration) int {
	return int(min(max(0, d+time.Millisecond-1), time.Hour) / time.Millisecond)
}

func (c *conn) wakeUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked()
}

func (c *conn) wakeLocked() {
	select {
	case <-c.ended:
		return // the number may be another file's by now
	default:
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// It fails only when the counter is full, and then it wakes as well.
	_, _ = unix.Write(c.wake, one[:])
}

// submit queues requests, and takes care that each is finished. Their buffers
// must not be used until then.
func (c *conn) submit(rs ...*request) {
	for _, r := range rs {
		if len(r.buf) > 0 {
			r.pin.Pin(&r.buf[0])
		}
	}
	c.mu.Lock()
	cause := c.cause
	if cause == nil {
		c.load.Add(int32(len(rs)))
		c.queue = append(c.queue, rs...)
		if c.sleeping {
			c.sleeping = false
			c.wakeLocked()
		}
	}
	c.mu.Unlock()
	if cause != nil {
		for _, r := range rs {
			r.finish(&lostError{cause, false})
		}
	}
}

// hungUp reports whether the server has closed the connection, which shows
// before run has come to the end of what was received.
func (c *conn) hungUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ended:
		return true
	default:
	}
	fds := []unix.PollFd{{Fd: int32(c.peer), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// queued reports whether there are requests that C has not been handed.
func (c *conn) queued() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) > 0
}

// end has run finish all requests with an error, and end, soon.
func (c *conn) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = cause
		c.wakeLocked()
	}
}

// run sends requests and takes replies until the connection fails or end is
// called. Then it calls down, with the time since which the server is known
// not to answer, and down calls end: whoever is refused must find the session
// over already, or he would come back at once.
func (c *conn) run(down func(cause error, since time.Time)) {
	f := newFlight(c)
	for {
		if cause, since := f.turn(-1); cause != nil {
			down(cause, since)
			f.land(cause)
			return
		}
	}
}

// A flight is what the goroutine that uses the handle knows of the requests
// that C has.
type flight struct {
	c     *conn
	slots [maxInFlight]*request
	free  [maxInFlight]uint32 // a stack of the slots not in use
	nfree int
}

func newFlight(c *conn) *flight {
	f := &flight{c: c, nfree: maxInFlight}
	for i := range f.free {
		f.free[i] = uint32(i)
	}
	return f
}

// turn sends what is queued, waits until a request is done, for wait
// milliseconds at most unless that is negative, or until woken, and finishes
// what is done. When the connection is to end it returns why, and since when.
func (f *flight) turn(wait int) (cause error, since time.Time) {
	n, err := f.take()
	if err != nil {
		return err, time.Now()
	}
	limit := f.timeout()
	if wait >= 0 && (limit < 0 || wait < limit) {
		limit = wait
	}
	ok := f.c.h.turn(n, limit)
	switch cause := f.reap(); {
	case !ok:
		return f.c.h.failure(), time.Now()
	case cause != nil:
		return cause, time.Now()
	}
	if r := f.oldest(); r != nil && !time.Now().Before(r.deadline) {
		if r, deadline := f.first(); !time.Now().Before(deadline) {
			return &timeoutError{"request", r.deadline.Sub(r.start)}, r.start
		}
	}
	return nil, time.Time{}
}

// take moves requests from the queue to the next turn.
func (f *flight) take() (n int, err error) {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return 0, c.cause
	}
	for n < len(c.queue) && f.nfree > 0 {
		f.nfree--
		slot := f.free[f.nfree]
		f.slots[slot] = c.queue[n]
		c.h.put(n, slot, c.queue[n])
		n++
	}
	rest := copy(c.queue, c.queue[n:])
	clear(c.queue[rest:])
	c.queue = c.queue[:rest]
	c.sleeping = true
	return n, nil
}

// slowness is how many times as long as its timeout a request that is patient
// waits at most.
const slowness = 10

// deadline returns when the server is given up over a request. One that is patient
// waits on while others are answered: so many of them are queued that a slow server
// may need longer than the timeout to come to it.
func (f *flight) deadline(r *request) time.Time {
	timeout := r.deadline.Sub(r.start)
	if !r.patient || f.c.replied == nil || timeout >= unlimited {
		return r.deadline
	}
	d := processStart.Add(time.Duration(f.c.replied.Load())).Add(timeout)
	if last := r.start.Add(slowness * timeout); d.After(last) {
		d = last
	}
	if d.Before(r.deadline) {
		d = r.deadline
	}
	return d
}

// processStart is what replied counts from: a time that fits an atomic, and does not
// jump.
var processStart = time.Now()

// oldest returns the request in flight whose own deadline comes first.
func (f *flight) oldest() (first *request) {
	for _, r := range f.slots {
		if r != nil && (first == nil || r.deadline.Before(first.deadline)) {
			first = r
		}
	}
	return first
}

// first returns the request in flight over which the server is given up first, and
// when. There is one.
func (f *flight) first() (first *request, at time.Time) {
	for _, r := range f.slots {
		if r == nil {
			continue
		}
		if d := f.deadline(r); first == nil || d.Before(at) {
			first, at = r, d
		}
	}
	return first, at
}

// timeout returns for how many milliseconds the next turn may wait.
func (f *flight) timeout() int {
	r := f.oldest()
	if r == nil {
		return -1
	}
	left := time.Until(r.deadline)
	if left <= 0 {
		_, at := f.first()
		left = time.Until(at)
	}
	return milliseconds(left)
}

// reap finishes the requests that the last turn found done. It returns why the
// connection is to end, if one of them says so.
func (f *flight) reap() (cause error) {
	c := f.c
	c.mu.Lock()
	c.sleeping = false
	c.mu.Unlock()
	done := c.h.done()
	if done > 0 && c.replied != nil {
		c.replied.Store(int64(time.Since(processStart)))
	}
	for i := range done {
		slot, errno, pairs := c.h.result(i)
		r := f.slots[slot]
		var err error
		switch {
		case errno == syscall.ENOTCONN:
			continue // the connection has failed: see land
		case errno == syscall.ESHUTDOWN:
			r.refused, cause = true, errShutdown
			continue // it is left to land too
		case errno != 0:
			err = serverError(errno)
		case len(pairs) > 0:
			r.pairs = append(r.pairs[:0], pairs...)
		}
		f.slots[slot] = nil
		f.free[f.nfree] = slot
		f.nfree++
		c.load.Add(-1)
		r.finish(err)
	}
	return cause
}

// land lets go of the connection, and finishes what is left.
func (f *flight) land(cause error) {
	c := f.c
	if cause == errEnded && f.oldest() == nil {
		c.h.disconnect()
		for limit := time.Now().Add(farewell); time.Now().Before(limit); {
			if !c.h.turn(0, milliseconds(time.Until(limit))) {
				break
			}
		}
	}
	c.free()
	for _, r := range f.slots {
		if r != nil {
			r.finish(&lostError{cause, !r.refused})
		}
	}
}
