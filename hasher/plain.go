package hasher

import (
	"context"
	"errors"
	"hash"
	"io"
)

// plainSum is the plain digest of the whole image by one algorithm.
type plainSum struct {
	generation uint64
	sum        []byte // nil: not known
	task       *taskFor[[]byte]
}

// errMoved: the image changed under a pass over its bytes.
var errMoved = errors.New("the image changed")

// PlainSum returns the digest of all bytes of the image in order, as sha256sum
// and the like give it. It is remembered until the image changes. The bytes
// are needed in order, so a change during the work starts it again; ErrBusy
// after a few tries. Other errors are those of View.ReadDigests.
func (im *Image) PlainSum(ctx context.Context, a *Algorithm) ([]byte, error) {
	if err := im.settle(ctx); err != nil {
		return nil, err
	}
	im.mu.Lock()
	p := im.plain[a]
	if p == nil {
		p = &plainSum{}
		im.plain[a] = p
	}
	sum, size := p.sum, im.size
	if p.generation != im.generation || !im.lasting() {
		sum = nil
	}
	slot := &p.task
	if !im.lasting() {
		// Work that began before may have read what is no longer there.
		slot = new(*taskFor[[]byte])
	}
	im.mu.Unlock()
	if sum != nil {
		return sum, nil
	}
	return share(ctx, im, slot, "sums/"+a.Name(), size, func(ctx context.Context, t *task) ([]byte, error) {
		for range settleTries {
			if err := im.settle(ctx); err != nil {
				return nil, err
			}
			sum, err := []byte(nil), ErrClosed
			im.pool.do(func(w *worker) {
				w.leave() // until there is something to hash
				sum, err = im.plainPass(ctx, a, p, t, w)
			})
			if !errors.Is(err, errMoved) {
				return sum, err
			}
		}
		return nil, ErrBusy
	})
}

// PlainSums returns the algorithms whose plain digest of the present content
// is known.
func (im *Image) PlainSums() []*Algorithm {
	im.mu.Lock()
	defer im.mu.Unlock()
	var known []*Algorithm
	for _, a := range algorithms {
		if p := im.plain[a]; p != nil && p.sum != nil && p.generation == im.generation && im.lasting() {
			known = append(known, a)
		}
	}
	return known
}

// plainPass reads the image once, in order.
func (im *Image) plainPass(ctx context.Context, a *Algorithm, p *plainSum, t *task, w *worker) ([]byte, error) {
	im.mu.Lock()
	generation, size, writing := im.generation, im.size, im.writes > 0
	im.mu.Unlock()
	if writing {
		// Its end will move the generation: wait for that.
		if err := im.awaitWrites(ctx); err != nil {
			return nil, err
		}
		return nil, errMoved
	}
	pass := &plainReader{im, generation, size, a.New(), w, 0, t}
	for pass.off < size {
		zeros, data, err := im.nextData(ctx, pass.off, size)
		if err != nil {
			return nil, err
		}
		if err := pass.zeros(ctx, zeros); err != nil {
			return nil, err
		}
		if err := pass.data(ctx, data); err != nil {
			return nil, err
		}
	}
	if err := im.check(); err != nil {
		return nil, err
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.generation != generation {
		return nil, errMoved
	}
	p.sum, p.generation = pass.hash.Sum(nil), generation
	return p.sum, nil
}

// plainReader is a pass over the bytes of an image.
type plainReader struct {
	im         *Image
	generation uint64 // at the start
	size       int64  // bytes
	hash       hash.Hash
	worker     *worker
	off        int64 // where it is
	task       *task
}

// goOn moves the pass n bytes ahead, and tells why it should not go on.
func (r *plainReader) goOn(ctx context.Context, n int64) error {
	r.off += n
	r.task.doneBytes.Store(r.off)
	r.im.mu.Lock()
	defer r.im.mu.Unlock()
	if r.im.closed {
		return ErrClosed
	}
	if r.im.generation != r.generation {
		return errMoved
	}
	return ctx.Err()
}

// zeros adds n bytes that need not be read.
func (r *plainReader) zeros(ctx context.Context, n int64) error {
	const step = 64 * int64(len(zeroPiece))
	for n > 0 {
		k := min(n, step)
		r.worker.enter()
		writeZeros(r.hash, k)
		r.worker.leave()
		if err := r.goOn(ctx, k); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// data reads and adds n bytes.
func (r *plainReader) data(ctx context.Context, n int64) error {
	cached := r.im.scan != nil && r.im.scan.Cached(r.off, n) >= n
	if !cached {
		if ahead := r.im.readAhead(r.off, r.off+n); ahead != nil {
			defer ahead.close()
			return r.queued(ctx, ahead)
		}
	}
	for end := r.off + n; r.off < end; {
		p := r.worker.buffer(waitedBytes)[:min(end-r.off, waitedBytes)]
		got, err := r.im.scanNow(p, r.off)
		if errors.Is(err, ErrWouldWait) {
			got, err = r.im.scanRest(p, r.off, got)
		}
		if err := r.add(ctx, p, got, err); err != nil {
			return err
		}
	}
	return nil
}

// queued adds the bytes that are read ahead.
func (r *plainReader) queued(ctx context.Context, ahead *readAhead) error {
	for r.off < ahead.end {
		ahead.submit(r.off)
		p := ahead.slot(r.off, r.im.queuedBytes)
		got, err := ahead.queue.Next(true)
		if got == 0 && !errors.Is(err, ErrUnavailable) {
			// A queue need not tell how far it came.
			got, err = r.im.scanRest(p, r.off, 0)
		}
		if err := r.add(ctx, p, got, err); err != nil {
			return err
		}
	}
	return nil
}

// add adds what was read at off, which is p unless the read returned less or an
// error.
func (r *plainReader) add(ctx context.Context, p []byte, got int, err error) error {
	if got < len(p) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		failure := &ReadError{r.off + int64(got), int64(len(p) - got), err}
		// A file that was cut just now is no broken one.
		if r.im.check() == nil {
			if err := r.goOn(ctx, 0); err != nil {
				return err
			}
		}
		r.im.noteFailure(failure)
		return failure
	}
	r.worker.enter()
	r.hash.Write(p)
	r.worker.leave()
	return r.goOn(ctx, int64(len(p)))
}

// nextData returns how many bytes from off on are known to be zeros, and how
// many bytes of data follow them.
func (im *Image) nextData(ctx context.Context, off, size int64) (zeros, data int64, err error) {
	end := off
	err = im.Extents(ctx, off, size-off, func(e Extent) bool {
		if e.Zero() && data == 0 {
			zeros += e.Length
		} else if e.Zero() {
			return false
		} else {
			data += e.Length
		}
		end = e.End()
		return true
	})
	if ctx.Err() != nil {
		return 0, 0, ctx.Err()
	}
	if err != nil || end == off {
		return 0, size - off, nil // a source that cannot say has data
	}
	return zeros, data, nil
}

// awaitWrites waits until the writes that are under way now have ended.
func (im *Image) awaitWrites(ctx context.Context) error {
	im.mu.Lock()
	pending := append([]*mutation(nil), im.mutations...)
	im.mu.Unlock()
	for _, m := range pending {
		select {
		case <-m.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
