package nbdsrc

import (
	"runtime"
	"sync"
	"time"
)

// A request is one command of the protocol. Its result is there once done was
// received from.
type request struct {
	op     int
	fua    bool // of opWrite
	noHole bool // of opZero
	off    int64
	length int64  // at most 2^32-1
	buf    []byte // of opRead and opWrite: pinned while under way

	times
	pin  runtime.Pinner
	done chan struct{} // of capacity 1

	patient bool // waits on while others are answered
	refused bool // the server did not do it, and will not
	err     error
	pairs   []uint32 // of opStatus: length and type of consecutive extents
}

// times are the limits of a caller's patience.
type times struct {
	start    time.Time // when it came
	deadline time.Time // when the server is given up
}

// requests are used again, but for those of opStatus: their caller may leave
// before they are done. No other has a caller that leaves, since C uses its
// buffer until then.
var requests = sync.Pool{New: func() any { return newRequest() }}

func newRequest() *request { return &request{done: make(chan struct{}, 1)} }

// newTransfer returns a request that reads or writes p at off.
func newTransfer(op int, p []byte, off int64) *request {
	r := requests.Get().(*request)
	r.op, r.buf, r.off, r.length = op, p, off, int64(len(p))
	return r
}

// finish gives the buffer back and wakes the caller.
func (r *request) finish(err error) {
	r.pin.Unpin()
	r.err = err
	r.done <- struct{}{}
}

// isDone reports whether wait would return at once.
func (r *request) isDone() bool { return len(r.done) > 0 }

// wait waits for a request that no caller leaves, and lets go of it.
func (r *request) wait() error {
	<-r.done
	err := r.err
	*r = request{done: r.done}
	requests.Put(r)
	return err
}
