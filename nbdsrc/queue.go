package nbdsrc

import (
	"errors"
	"time"

	"hashfs/hasher"
)

// queuePatience is for how long a reader keeps what he has from others before
// he lets go of it to wait for a reply: a server on the same machine that is
// short of processors takes as long as this, and costs less than the switch.
const queuePatience = time.Millisecond

// A queue is a hasher.ReadQueue. It has a lane if one is free, else it uses
// the connections that all share. What either cannot do, ReadAt does.
type queue struct {
	e     *Export
	s     *session // nil while there is no connection
	lane  *lane
	reads []queuedRead // in order
}

type queuedRead struct {
	p   []byte
	off int64
	r   *request // nil: not sent, or lost
}

// unlimited is the deadline of a request that its reader does not wait for yet.
const unlimited = 1 << 62

// Queue returns a queue for reads of the export.
func (e *Export) Queue() hasher.ReadQueue {
	e.mu.Lock()
	s := e.session
	e.mu.Unlock()
	q := &queue{e: e, s: s}
	if s != nil {
		q.lane = s.takeLane()
	}
	return q
}

// Queueing follows hasher.QueueSource. The server has another read to answer while
// the last one is hashed.
func (e *Export) Queueing() (request, ahead int64) {
	request = pieceBytes
	i := e.info()
	if n := i.preferred; n > pieceBytes && n == i.piece(max(1, i.minimum)) {
		request = n
	}
	return request, 2 * request
}

// Submit follows hasher.ReadQueue.
func (q *queue) Submit(p []byte, off int64) {
	read := queuedRead{p: p, off: off}
	if q.s != nil && q.s.takes(p, off) {
		read.r = newTransfer(opRead, p, off)
		read.r.start, read.r.patient = time.Now(), true
		if q.lane != nil {
			// The clock is set when its reader waits for it. Until then nobody
			// takes the reply, however soon the server has sent it.
			read.r.deadline = read.r.start.Add(unlimited)
			q.lane.conn.submit(read.r)
		} else {
			read.r.times = q.e.patience()
			q.s.shared.submit(read.r)
		}
	}
	q.reads = append(q.reads, read)
}

// takes reports whether a read can be one request, as it is.
func (s *session) takes(p []byte, off int64) bool {
	n := int64(len(p))
	return n > 0 && n <= s.piece && off >= 0 && off <= s.size-n && off%s.align == 0 && (n%s.align == 0 || off+n == s.size)
}

// Next follows hasher.ReadQueue. A read whose connection is lost is made again
// by ReadAt.
func (q *queue) Next(wait bool) (n int, err error) {
	read := &q.reads[0]
	if read.r != nil {
		if !q.await(read.r, q.e.patience(), wait) {
			return 0, hasher.ErrWouldWait
		}
		n, err = len(read.p), read.r.wait()
		read.r = nil
		if err == nil || !errors.Is(err, ErrLost) {
			q.pop()
			if err != nil {
				return 0, q.e.failed("read", read.off, int64(n), err)
			}
			return n, nil
		}
	}
	if !wait {
		return 0, hasher.ErrWouldWait
	}
	defer q.pop()
	return q.e.ReadAt(read.p, read.off)
}

func (q *queue) pop() { q.reads = q.reads[1:] }

// await waits for a request, and reports whether it is done.
func (q *queue) await(r *request, t times, wait bool) bool {
	if q.lane != nil {
		if !r.isDone() {
			r.times = t
		}
		if wait {
			return q.lane.await(r, -1)
		}
		return q.lane.await(r, queuePatience)
	}
	if wait || r.isDone() {
		return true
	}
	timer := time.NewTimer(queuePatience)
	defer timer.Stop()
	select {
	case <-r.done:
		r.done <- struct{}{} // for wait
		return true
	case <-timer.C:
		return false
	}
}

// Close follows hasher.ReadQueue.
func (q *queue) Close() {
	t := q.e.patience() // for all
	for _, read := range q.reads {
		if read.r != nil {
			q.await(read.r, t, true)
			_ = read.r.wait() // nobody wants it
		}
	}
	q.reads = nil
	if q.lane != nil {
		q.lane.giveBack()
	}
}
