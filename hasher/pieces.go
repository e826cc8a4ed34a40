package hasher

import (
	"errors"
	"io"
)

// pieces gives the bytes of a job in order, a piece at a time, to the worker
// that hashes them.
//
// What is in the source's cache is looked at in place where that can be had, and
// else read.
//
// Where a part has to be waited for, it is read ahead of its turn if the source has
// queues, else in large pieces.
type pieces struct {
	j   *job
	w   *worker
	pos int64 // what next gives, bytes
	end int64 // of the job

	piece int64 // bytes that are hashed at a time

	// empty says that the last piece had only zeros. More of them are likely,
	// and are found with less of the cache.
	empty bool

	cached int64 // bytes from first to end that need not be waited for

	ahead *readAhead // nil: each read is made when its turn comes
	first int64      // where cached counts from
}

// pieces returns the pieces of the job. They have to be closed.
func (j *job) pieces(w *worker) *pieces {
	bs := int64(j.im.spec.BlockSize)
	r := &pieces{j: j, w: w, pos: j.lo * bs, end: min(j.hi*bs, j.size), piece: j.im.pieceBytes}
	r.open()
	return r
}

func (r *pieces) open() {
	r.first, r.ahead, r.cached = r.pos, nil, 0
	im := r.j.im
	if im.scan != nil {
		r.cached = im.scan.Cached(r.pos, r.end-r.pos)
	}
	if r.cached < r.end-r.pos {
		r.ahead = im.readAhead(r.pos, r.end)
	}
	if r.ahead != nil {
		r.j.queued = !im.remote
	}
}

func (r *pieces) close() {
	switch {
	case r.ahead == nil:
	case r.pos < min(r.ahead.asked, r.end):
		// It has to wait for reads that nobody wants any more.
		r.w.leave()
		r.ahead.close()
		r.w.enter()
	default:
		r.ahead.close()
	}
}

// seek goes on at pos.
func (r *pieces) seek(pos int64) {
	r.close()
	r.pos = pos
	r.open()
}

// next reads a piece that ends at limit or before, moves pos behind it, and
// returns it. It is valid until the next call. With an error it is what should
// have been read.
func (r *pieces) next(limit int64) (p []byte, err error) {
	off := r.pos
	if r.ahead != nil {
		p, err = r.nextQueued()
	} else {
		p, err = r.nextRead(limit)
	}
	r.pos = off + int64(len(p))
	return p, err
}

// inPlace returns how many bytes from pos on, whole pieces and blocks, need not be
// read.
func (r *pieces) inPlace() int64 {
	im := r.j.im
	if im.maps == nil || r.ahead != nil || r.cached < r.end-r.first {
		return 0
	}
	n, bs := im.mappedBytes, int64(im.spec.BlockSize)
	if bs <= r.piece && r.w.pool.hasLargeBuffers() {
		n = max(n/2, r.piece) // these are resident too
	}
	n = min(n, r.end-r.pos)
	n -= n % max(bs, r.piece)
	if bs > r.piece && !r.faultable(n) {
		return 0 // a copy of a block would take too much memory
	}
	return n
}

// step is how many of n bytes are hashed at a time in place, which takes no memory
// there.
func (r *pieces) step(n int64) int64 {
	spec := r.j.im.spec
	if int64(spec.BlockSize) > r.piece {
		return n // inPlace gives no other
	}
	whole := min(n, max(stepBytes, spec.wholeBytes()))
	if !r.faultable(whole) {
		return r.piece // which is copied, at least in part
	}
	return whole
}

// faultable reports whether the worker may hash n bytes where a load can fault.
func (r *pieces) faultable(n int64) bool {
	return r.w.hasher(r.j.im.spec).faultable(int(n)) == int(n)
}

func (r *pieces) nextRead(limit int64) ([]byte, error) {
	im := r.j.im
	size := r.piece
	if int64(im.spec.BlockSize) > size {
		size = waitedBytes // a read has its price
	}
	if r.empty {
		size = min(size, max(pieceBytes, int64(im.spec.BlockSize)))
	}
	if r.cached == 0 {
		size = waitedBytes // all of it has to be waited for
	}
	p := r.w.buffer(int(min(size, limit-r.pos)))
	n, err := 0, ErrWouldWait
	switch {
	case r.cached == 0:
	case r.cached == r.end-r.first:
		if n, err = im.scan.ScanAt(p, r.pos, false); errors.Is(err, ErrWouldWait) {
			r.cached-- // not any more
		}
	default:
		n, err = im.scanNow(p, r.pos)
	}
	return p, r.j.readRest(r.w, p, r.pos, n, err)
}

func (r *pieces) nextQueued() ([]byte, error) {
	r.ahead.submit(r.pos)
	p := r.ahead.slot(r.pos, r.piece)
	request := r.j.im.queuedBytes
	var failed error
	for n := int64(0); n < int64(len(p)); n += request {
		if err := r.await(p[n:min(n+request, int64(len(p)))]); failed == nil {
			failed = err
		}
	}
	return p, failed
}

// await waits for the next request of the queue, which reads p.
func (r *pieces) await(p []byte) error {
	n, err := 0, error(nil)
	// It does not wait for the read, but may have to for leave to send others.
	if r.w.hold(func() { n, err = r.ahead.queue.Next(false) }) {
		r.w.enter()
	}
	if errors.Is(err, ErrWouldWait) {
		r.w.leave()
		n, err = r.ahead.queue.Next(true)
		r.w.enter()
	}
	return r.j.whole(p, n, err)
}

// readFull reads p at off, all of it or with an error. The worker gives up
// its place while it waits.
func (j *job) readFull(w *worker, p []byte, off int64) error {
	n, err := j.im.scanNow(p, off)
	return j.readRest(w, p, off, n, err)
}

// scanNow reads for a pass over the image what can be had without waiting.
func (im *Image) scanNow(p []byte, off int64) (int, error) {
	if im.scan == nil || im.scan.Cached(off, int64(len(p))) < int64(len(p)) {
		return 0, ErrWouldWait
	}
	return im.scan.ScanAt(p, off, false)
}

// readRest reads what a read without waiting, which returned n and err, has
// left.
func (j *job) readRest(w *worker, p []byte, off int64, n int, err error) error {
	if errors.Is(err, ErrWouldWait) {
		w.leave()
		n, err = j.im.scanRest(p, off, n)
		w.enter()
	}
	return j.whole(p, n, err)
}

// whole returns the error of a read of p that returned n and err.
func (j *job) whole(p []byte, n int, err error) error {
	j.read += int64(n)
	if n == len(p) || err == nil && broken(ruleFullReads) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// scanRest reads what scanNow has left, and returns how much there is in all.
func (im *Image) scanRest(p []byte, off int64, n int) (int, error) {
	read := im.src.ReadAt
	if im.scan != nil {
		read = func(p []byte, off int64) (int, error) { return im.scan.ScanAt(p, off, true) }
	}
	more, err := read(p[n:], off+int64(n))
	return n + more, err
}
