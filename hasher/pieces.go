package hasher

import (
	"errors"
	"io"
)

// pieces gives the bytes of a job in order, a piece at a time, to the worker
// that hashes them.
//
// Where the bytes are at hand a piece is small. What has to be waited for is
// read in larger ones, or, if the source has queues, ahead of its turn.
type pieces struct {
	j   *job
	w   *worker
	pos int64 // what next gives, bytes
	end int64 // of the job

	piece int64 // bytes of a read, unless it has to be waited for

	queue ReadQueue // nil: each read is made when its turn comes
	first int64     // where the queue began
	asked int64     // what is below was submitted to it
}

// pieces returns the pieces of the job. They have to be closed.
func (j *job) pieces(w *worker) *pieces {
	bs := int64(j.im.spec.BlockSize)
	r := &pieces{j: j, w: w, pos: j.lo * bs, end: min(j.hi*bs, j.size), piece: j.im.pieceBytes}
	r.open()
	return r
}

func (r *pieces) open() {
	r.first, r.asked = r.pos, r.pos
	if r.j.im.queues != nil {
		r.queue = r.j.im.queues.Queue()
	}
}

func (r *pieces) close() {
	if r.queue != nil {
		r.queue.Close()
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
	if r.queue != nil {
		p, err = r.nextQueued()
	} else {
		p, err = r.nextRead(limit)
	}
	r.pos = off + int64(len(p))
	return p, err
}

func (r *pieces) nextRead(limit int64) ([]byte, error) {
	p := r.w.buffer(pieceBytes)[:min(r.piece, limit-r.pos)]
	n, err := r.j.readNow(p, r.pos)
	if n == 0 && errors.Is(err, ErrWouldWait) {
		p = r.w.buffer(waitedBytes)
		p = p[:min(int64(len(p)), limit-r.pos)]
	}
	return p, r.j.readRest(r.w, p, r.pos, n, err)
}

func (r *pieces) nextQueued() ([]byte, error) {
	buf := r.w.buffer(waitedBytes)
	slots := int64(len(buf)) / r.piece
	for r.asked < r.end && r.asked < r.pos+slots*r.piece {
		r.queue.Submit(r.slot(buf, r.asked), r.asked)
		r.asked += r.piece
	}
	p := r.slot(buf, r.pos)
	n, err := r.queue.Next(false)
	if errors.Is(err, ErrWouldWait) {
		r.w.leave()
		n, err = r.queue.Next(true)
		r.w.enter()
	}
	return p, r.j.whole(p, n, err)
}

// slot returns the part of the buffer that the piece at off goes to.
func (r *pieces) slot(buf []byte, off int64) []byte {
	i := (off - r.first) / r.piece % (int64(len(buf)) / r.piece)
	return buf[i*r.piece:][:min(r.piece, r.end-off)]
}

// readFull reads p at off, all of it or with an error. The worker gives up
// its place while it waits.
func (j *job) readFull(w *worker, p []byte, off int64) error {
	n, err := j.readNow(p, off)
	return j.readRest(w, p, off, n, err)
}

// readNow reads what can be had without waiting.
func (j *job) readNow(p []byte, off int64) (int, error) {
	if j.im.scan == nil {
		return 0, ErrWouldWait
	}
	return j.im.scan.ScanAt(p, off, false)
}

// readRest reads what readNow, which returned n and err, has left.
func (j *job) readRest(w *worker, p []byte, off int64, n int, err error) error {
	if errors.Is(err, ErrWouldWait) {
		w.leave()
		var more int
		more, err = j.im.scanAt(p[n:], off+int64(n))
		n += more
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

// scanAt reads for a pass over the image.
func (im *Image) scanAt(p []byte, off int64) (int, error) {
	if im.scan != nil {
		return im.scan.ScanAt(p, off, true)
	}
	return im.src.ReadAt(p, off)
}
