package nbdsrc

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"hashfs/hasher"
)

const (
	// A block status request asks for a small range at first, and for a
	// larger one each time that the answer was short, up to what the
	// protocol's 32 bits hold: a hole of a terabyte takes few requests, and a
	// caller that stops after a few thousand extents has not had the server
	// find a million.
	minStatusSpan = 64 << 20
	maxStatusSpan = 1<<32 - 1<<20

	// fewExtents is what a short answer has at most, and manyExtents what
	// makes the next request ask for less.
	fewExtents  = 256
	manyExtents = 4096

	// statusAhead is how many requests of the largest span are under way, so
	// that a large hole does not wait for one answer after the other.
	statusAhead = 8

	// sampleBytes are read at both ends of an extent that is said to be zero:
	// of the first in each call, and of every sampleEvery-th after it.
	sampleBytes = 4096
	sampleEvery = 64
)

// Extents follows hasher.ExtentSource, by block status in the context
// base:allocation. Without it, and when it was found to be wrong, all is data.
//
// It is found to be wrong by samples: an extent that is said to be zero and is
// not, twice in a row. From then on the stamp is another, so that nothing is
// kept of what it said before.
func (e *Export) Extents(ctx context.Context, off, length int64, yield func(hasher.Extent) bool) error {
	if length <= 0 {
		return nil
	}
	w := statusWalk{e: e, ctx: ctx, pos: off, end: off + length, yield: yield}
	for more := true; more && w.pos < w.end; {
		if err := ctx.Err(); err != nil {
			return err
		}
		s, err := e.live(e.patience())
		if err == nil && (!s.extents || e.distrusted.Load() || w.pos >= s.size) {
			// Beyond the end, should there be a new one, is no zero either.
			yield(hasher.Extent{Offset: w.pos, Length: w.end - w.pos})
			return nil
		}
		if err == nil {
			more, err = w.next(s)
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("find extents of %s at %d: %w", e.uri, w.pos, err)
		}
		if err != nil {
			return ctx.Err()
		}
	}
	return nil
}

// A statusWalk is a call of Extents.
type statusWalk struct {
	e        *Export
	ctx      context.Context
	pos, end int64 // bytes still to be told of
	yield    func(hasher.Extent) bool

	zeros int // extents that were said to be zero
	tries int // how often samples at pos did not agree with the status
}

// next asks for the extents at pos, with some requests ahead if they are long,
// and yields them. It reports false when yield wants no more.
func (w *statusWalk) next(s *session) (more bool, err error) {
	span := w.e.statusSpan.Load()
	n := 1
	if span == maxStatusSpan {
		n = statusAhead
	}
	rs := w.ask(s, span, n)
	for _, r := range rs {
		if err := w.await(r); err != nil {
			return false, err
		}
		if r.off-r.off%s.align > w.pos {
			return true, nil // the answer before was short
		}
		w.adapt(s, r, span)
		if more, err := w.tell(s, r); !more || err != nil {
			return more, err
		}
		if w.e.distrusted.Load() {
			return true, nil
		}
	}
	return true, nil
}

// ask sends n requests for span bytes each, as far as there are so many.
func (w *statusWalk) ask(s *session, span int64, n int) (rs []*request) {
	for at := w.pos - w.pos%s.align; at < w.end && len(rs) < n; at += span {
		r := newRequest()
		r.op, r.off, r.times = opStatus, at, w.e.patience()
		r.length = min(span, w.end-at)
		if odd := r.length % s.align; odd != 0 {
			r.length += s.align - odd
		}
		if r.length = min(r.length, s.size-at); r.length <= 0 {
			break
		}
		s.shared.submit(r)
		rs = append(rs, r)
	}
	return rs
}

// await waits for an answer, or leaves it: no buffer hangs on it.
func (w *statusWalk) await(r *request) error {
	select {
	case <-r.done:
		return r.err
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// adapt chooses for how much the next request asks.
func (w *statusWalk) adapt(s *session, r *request, span int64) {
	told := int64(0)
	for i := 0; i < len(r.pairs); i += 2 {
		told += int64(r.pairs[i])
	}
	switch n := len(r.pairs) / 2; {
	case n > manyExtents:
		w.e.statusSpan.Store(max(span/8, minStatusSpan))
	case n <= fewExtents && told >= r.length && r.length == span:
		w.e.statusSpan.Store(min(span*8, maxStatusSpan))
	}
}

// tell yields the extents of an answer from pos on.
func (w *statusWalk) tell(s *session, r *request) (more bool, err error) {
	at, before := r.off, w.pos
	for i := 0; i < len(r.pairs) && w.pos < w.end; i += 2 {
		lo, hi := max(at, w.pos), min(at+int64(r.pairs[i]), w.end)
		at += int64(r.pairs[i])
		if hi <= lo {
			continue
		}
		x := hasher.Extent{Offset: lo, Length: hi - lo, Type: r.pairs[i+1] & (hasher.ExtentHole | hasher.ExtentZero)}
		if x.Zero() {
			if w.zeros%sampleEvery == 0 {
				ok, err := w.sample(s, &x)
				if !ok || err != nil {
					return true, err
				}
			}
			w.zeros++
		}
		w.pos, w.tries = hi, 0
		if !w.yield(x) {
			return false, nil
		}
	}
	if at <= r.off {
		return false, errors.New("the server told of no byte")
	}
	if w.pos == before && w.pos < r.off+s.align {
		// It ended within a unit, and would do so again: nobody can ask from
		// the middle of one. Its rest is read.
		x := hasher.Extent{Offset: w.pos, Length: min(r.off+s.align, w.end) - w.pos}
		w.pos = x.End()
		return w.yield(x), nil
	}
	return true, nil
}

// sample looks whether x reads as zeros at both ends. If not, it reports false,
// and the status has to be asked for again: maybe a write came between. If the
// next answer is no truer, the server is not trusted any more. What cannot be
// read is called data, and whoever reads it will learn why.
func (w *statusWalk) sample(s *session, x *hasher.Extent) (ok bool, err error) {
	n := min(sampleBytes, x.Length)
	for _, off := range []int64{x.Offset, x.End() - n} {
		var buf [sampleBytes]byte
		got, err := s.read(buf[:n], off, w.e.patience())
		if errors.Is(err, ErrLost) {
			return false, err
		}
		if err != nil || int64(got) < n {
			x.Type = 0
			return true, nil
		}
		if !bytes.Equal(buf[:n], zeros[:n]) {
			if w.tries++; w.tries > 1 {
				w.e.distrust(off)
			}
			return false, nil
		}
	}
	return true, nil
}

// distrust gives up on block status, and changes the stamp.
func (e *Export) distrust(off int64) {
	if !e.distrusted.Swap(true) {
		e.log.Warn("the NBD server calls data zero: its block status is ignored from now on, and everything is read", "offset", off)
	}
}
