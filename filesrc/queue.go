package filesrc

import (
	"errors"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

var _ hasher.QueueSource = (*File)(nil)

// queuedBytes is what a queue reads at a time. More of them would take memory and
// bring nothing: there is a queue for each of several workers.
const queuedBytes = 256 << 10

// A queue is a hasher.ReadQueue. It reads from storage past the page cache, and
// from the page cache what is there. What either cannot have is read by ScanAt.
type queue struct {
	f     *File
	h     *handle
	aio   *aio
	flags uint32       // of preadv2(2)
	reads []queuedRead // in order
	next  uint64       // the id of the next one
}

type queuedRead struct {
	id    uint64
	p     []byte
	off   int64
	state readState
}

type readState uint8

const (
	readWaits readState = iota // for others that are under way
	readUnderWay
	readDone
	readCached // to be read from the page cache when its turn comes
	readLeft   // to be waited for when its turn comes
)

// Queueing follows hasher.QueueSource.
func (f *File) Queueing() (request, ahead int64) { return queuedBytes, aioReads * queuedBytes }

// Queue returns a queue for reads of the file, or nil where it cannot be read past
// the page cache, or the machine has no room for more.
func (f *File) Queue() hasher.ReadQueue {
	h, err := f.acquire()
	if err != nil {
		return nil
	}
	if h.hasDirect() {
		if a, err := takeAIO(); err == nil {
			q := &queue{f: f, h: h, aio: a, reads: make([]queuedRead, 0, 2*aioReads)}
			if !h.caches.Load() {
				q.flags = rwfDontCache
			}
			return q
		}
	}
	f.release(h)
	return nil
}

// Submit follows hasher.ReadQueue.
func (q *queue) Submit(p []byte, off int64) {
	r := queuedRead{id: q.next, p: p, off: off, state: readLeft}
	q.next++
	switch cached := q.f.Cached(off, int64(len(p))); {
	case cached >= int64(len(p)):
		r.state = readCached
	case cached == 0 && inUnits(p, off):
		r.state = readWaits
	}
	q.reads = append(q.reads, r)
}

// Next follows hasher.ReadQueue.
func (q *queue) Next(wait bool) (int, error) {
	q.turn(false)
	r := &q.reads[0]
	for r.state == readUnderWay || r.state == readWaits {
		if !wait {
			return 0, hasher.ErrWouldWait
		}
		q.turn(true)
	}
	n, err := len(r.p), error(nil)
	switch r.state {
	case readDone:
		q.drop(r)
	case readCached:
		n, err = q.f.ScanAt(r.p, r.off, false)
	default:
		err = hasher.ErrWouldWait
	}
	if errors.Is(err, hasher.ErrWouldWait) {
		r.state = readLeft
		if !wait {
			return 0, err
		}
		n, err = q.f.ScanAt(r.p, r.off, true)
	}
	q.reads = q.reads[1:]
	return n, err
}

// drop has the page cache forget what a read may have brought in where the kernel
// cannot be told not to: some files are read through it all the same.
func (q *queue) drop(r *queuedRead) {
	if q.flags == 0 {
		_ = unix.Fadvise(q.h.fd, r.off, int64(len(r.p)), unix.FADV_DONTNEED)
	}
}

// turn takes what is done, at least one read with wait, and sends others instead.
func (q *queue) turn(wait bool) {
	for _, e := range q.aio.done(wait) {
		r := &q.reads[e.id-q.reads[0].id]
		r.state = readLeft
		if e.result == int64(len(r.p)) {
			r.state = readDone
		}
	}
	var batch [aioReads]*queuedRead
	n := 0
	for i := range q.reads {
		if r := &q.reads[i]; r.state == readWaits && q.aio.under+n < aioReads {
			batch[n] = r
			n++
		}
	}
	sent, err := q.aio.send(q.h.direct, q.flags, batch[:n])
	if err == unix.EOPNOTSUPP && q.flags != 0 {
		q.h.caches.Store(true)
		q.flags = 0
		more, _ := q.aio.send(q.h.direct, q.flags, batch[sent:n])
		sent += more
	}
	for i, r := range batch[:n] {
		r.state = readUnderWay
		if i >= sent {
			r.state = readLeft
		}
	}
}

// Close follows hasher.ReadQueue.
func (q *queue) Close() {
	for q.aio.under > 0 {
		q.aio.done(true)
	}
	q.aio.giveBack()
	q.f.release(q.h)
}
