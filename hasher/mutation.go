package hasher

import (
	"context"
	"errors"

	"hashfs/blockcache"
)

// maxCapture is how many bytes of old data one mutation hashes for the views
// that need them, all together. Views that need more, as when a whole device is
// discarded, end.
const maxCapture = 64 << 20

// maxCapturing is how many mutations of an image read and hash old data at a time,
// so that who has many writes under way does not fill the pool's queue with them.
const maxCapturing = 16

// maxCaptureBlocks is how many old digests one mutation copies for a view, so
// that the critical section that does it stays below a tenth of a second.
const maxCaptureBlocks = 1 << 20

// A mutation is a write, or anything else that changes bytes, under way.
type mutation struct {
	lo, hi  int64         // the blocks it touches, whole or in part
	era     uint64        // of the image, when it came
	left    int64         // of maxCapture; below 0 it is used up
	done    chan struct{} // closed when it has ended
	barrier bool          // excludes all other mutations; changes nothing

	// Guarded by the image's mutex.
	writing bool // its I/O has begun: what its blocks hold is not known
	mixed   bool // another wrote some of its blocks at the same time
}

// writingLocked returns the mutation whose I/O is under way that covers the
// lowest of the blocks.
func (im *Image) writingLocked(s span) *mutation {
	if broken(ruleWaitMutation) {
		return nil
	}
	var first *mutation
	for _, m := range im.mutations {
		if m.writing && (span{m.lo, m.hi}).overlaps(s) && (first == nil || m.lo < first.lo) {
			first = m
		}
	}
	return first
}

// mutate runs write, which changes bytes in [off, off+length) and no others,
// such that no view sees anything of it. Its steps are those of the package
// comment. With zeroes, the success of write guarantees that the range reads
// as zeros. ctx counts until write is called.
//
// The range must lie within the image; if it does not, or not any more,
// errRange is returned.
func (im *Image) mutate(ctx context.Context, off, length int64, zeroes bool, write func() error) error {
	m, err := im.prepare(ctx, off, length)
	if err != nil {
		return err
	}
	im.park("mutation")
	err = write()
	im.park("mutation")
	im.endWrite()
	im.mu.Lock()
	defer im.mu.Unlock()
	if broken(ruleMarkBefore) {
		im.table.Invalidate(m.lo, min(m.hi, im.blocks)-m.lo)
	}
	if zeroes && err == nil && m.era == im.era && (!m.mixed || broken(ruleZeroAlone)) {
		im.markZeroLocked(off, length)
	}
	if errors.Is(err, ErrUnknownOutcome) && !broken(ruleDoubt) {
		im.doubtLocked(m)
	}
	im.generation++
	im.removeLocked(m)
	return err
}

// doubtLocked keeps account of the blocks whose content nobody knows, since a write
// of them may be done yet, even after others that came later: what is read of them
// is not kept until somebody who knows better says so, by Invalidate.
func (im *Image) doubtLocked(m *mutation) {
	im.doubtful.add(span{m.lo, m.hi})
	bs := int64(im.spec.BlockSize)
	im.log.Warn("a write was not answered, and may be done yet: no digest is kept until invalidate names its blocks",
		"offset", m.lo*bs, "length", min(m.hi*bs, im.size)-m.lo*bs)
}

// errRange: the image has not, or no longer, the bytes to be changed.
var errRange = errors.New("range is not within the image")

// prepare takes a mutation to where its I/O may begin.
func (im *Image) prepare(ctx context.Context, off, length int64) (*mutation, error) {
	if err := im.lookAlone(ctx); err != nil {
		return nil, err
	}
	m, err := im.enter(off, length)
	if err != nil {
		return nil, err
	}
	if err = im.awaitBarrier(ctx, m); err == nil {
		for begun := false; err == nil && !begun; {
			if err = im.capture(ctx, m); err != nil {
				break
			}
			im.mu.Lock()
			if im.era != m.era {
				err = errRange // maybe; the caller looks again
			} else {
				begun = im.beginLocked(m)
			}
			im.mu.Unlock()
		}
	}
	if err != nil {
		im.mu.Lock()
		defer im.mu.Unlock()
		im.removeLocked(m)
		return nil, err
	}
	return m, nil
}

// enter puts a mutation at the end of the list.
func (im *Image) enter(off, length int64) (*mutation, error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.closed {
		return nil, ErrClosed
	}
	if off+length > im.size {
		return nil, errRange
	}
	bs := int64(im.spec.BlockSize)
	m := &mutation{lo: off / bs, hi: (off + length + bs - 1) / bs, era: im.era, left: im.maxCapture, done: make(chan struct{})}
	im.mutations = append(im.mutations, m)
	return m, nil
}

func (im *Image) removeLocked(m *mutation) {
	for i, o := range im.mutations {
		if o == m {
			im.mutations = append(im.mutations[:i], im.mutations[i+1:]...)
			break
		}
	}
	m.writing = false
	close(m.done)
}

// awaitBarrier waits until no earlier barrier stands in the way of m, or, if
// m is one, no earlier mutation at all.
func (im *Image) awaitBarrier(ctx context.Context, m *mutation) error {
	for {
		im.mu.Lock()
		o := im.beforeLocked(m)
		im.mu.Unlock()
		if o == nil {
			return nil
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (im *Image) beforeLocked(m *mutation) *mutation {
	for _, o := range im.mutations {
		if o == m {
			return nil
		}
		if o.barrier || m.barrier {
			return o
		}
	}
	return nil
}

// capture sees to it that all views know what the blocks of m are, as far as
// that needs reading: it hashes those that are in no overlay and not in the
// table. When it returns, the table may have lost some of them again.
func (im *Image) capture(ctx context.Context, m *mutation) error {
	if broken(ruleCapture) {
		return nil
	}
	im.mu.Lock()
	moments := append([]*moment(nil), im.moments...)
	im.mu.Unlock()
	for _, v := range moments {
		if err := v.captureRange(ctx, span{m.lo, m.hi}, &m.left); err != nil {
			return err
		}
	}
	return nil
}

// captureRange fills the overlay with those of the blocks that nobody knows,
// until left bytes of data have been read; then the moment ends.
func (m *moment) captureRange(ctx context.Context, s span, left *int64) error {
	for b := s.lo; b < s.hi; {
		m.im.mu.Lock()
		if m.ended != nil {
			m.im.mu.Unlock()
			return nil
		}
		state := blockcache.Unknown
		k, n := m.overlay.run(b, s.hi-b)
		if k == heldNot {
			state, n = m.im.table.Run(b, n)
		}
		m.im.mu.Unlock()
		if k == heldNot && (state == blockcache.Unknown || state == blockcache.Failed) {
			if err := m.captureUnknown(ctx, span{b, b + n}, left); err != nil {
				return err
			}
		}
		b += n
	}
	return nil
}

// captureUnknown reads and hashes blocks and puts them into the overlay.
func (m *moment) captureUnknown(ctx context.Context, s span, left *int64) error {
	if *left < 0 {
		// The moments before this one have used it up.
		m.im.mu.Lock()
		defer m.im.mu.Unlock()
		if m.ended == nil {
			m.endLocked(errMemory)
		}
		return nil
	}
	select {
	case m.im.capturing <- struct{}{}:
		defer func() { <-m.im.capturing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	w := m.walk(s.lo, s.hi, false)
	defer w.close(false)
	for w.pos < w.end {
		b := w.pos
		r, err := w.next(ctx)
		var failed *ReadError
		if errors.As(err, &failed) {
			w.pos++
		} else if ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			return nil // the moment has ended, and needs nothing more
		}
		if r.zeros == 0 {
			*left -= (w.pos - b) * int64(m.im.spec.BlockSize)
		}
		m.im.mu.Lock()
		m.keepLocked(b, w.pos, r, failed != nil)
		if *left < 0 && m.ended == nil {
			m.endLocked(errMemory)
		}
		m.im.mu.Unlock()
	}
	return nil
}

// keepLocked puts what was found of the blocks [b, end) into the overlay,
// unless another did so meanwhile.
func (m *moment) keepLocked(b, end int64, r digestRun, failed bool) {
	if m.ended != nil {
		return
	}
	d := m.im.digestSize
	for i := b; i < end; {
		k, n := m.overlay.run(i, end-i)
		switch {
		case k != heldNot:
		case failed:
			if broken(rulePermanentFailure) {
				m.overlay.setZero(i, n)
				break
			}
			m.overlay.setFailed(i)
			n = 1
		case r.zeros > 0:
			m.overlay.setZero(i, n)
		default:
			m.overlay.setData(i, r.digests[(i-b)*d:(i-b+n)*d])
		}
		i += n
	}
	m.accountLocked()
}

// rememberLocked keeps the run that ends at block end for the views of the
// moment, if there is memory for it: nobody else would.
func (m *moment) rememberLocked(end int64, r digestRun) {
	n := r.zeros + int64(len(r.digests))/m.im.digestSize
	cost := int64(len(r.digests)) + overlayGroupBytes*(n/overlayBlocks+2)
	if m.overlay.bytes+cost > m.reserved {
		if !m.im.cache.Reserve(cost) {
			return
		}
		m.reserved += cost
	}
	m.keepLocked(end-n, end, r, false)
}

// accountLocked sets memory aside for the overlay. Where there is none, the
// oldest moments end, this one maybe among them.
func (m *moment) accountLocked() {
	for m.ended == nil && m.overlay.bytes > m.reserved {
		more := m.overlay.bytes - m.reserved
		if m.im.cache.Reserve(more) {
			m.reserved += more
			return
		}
		m.im.moments[0].endLocked(errMemory)
	}
}

// beginLocked is the one critical section in which a mutation comes into
// force: overlays are filled, the blocks made unknown, checkpoints beyond
// dropped, reads spoiled. It reports false, and leaves the rest as it is, if
// some view still lacks a block that nobody knows.
func (im *Image) beginLocked(m *mutation) bool {
	s := span{m.lo, m.hi}
	if s.hi-s.lo > maxCaptureBlocks {
		im.endCostlyLocked(s)
	}
	if !broken(ruleFillOverlays) {
		for _, v := range append([]*moment(nil), im.moments...) {
			if v.ended != nil {
				continue
			}
			buf := make([]byte, min(s.hi-s.lo, im.checkpointBlocks)*im.digestSize)
			got := v.overlay.fill(s, im.table, buf)
			v.accountLocked()
			if v.ended == nil && got < s.hi && !broken(ruleCaptureAgain) && !broken(ruleCapture) {
				return false
			}
		}
	}
	if broken(ruleOneSection) {
		im.mu.Unlock()
		im.park("one section")
		im.mu.Lock()
	}
	im.changeLocked(s)
	for _, o := range im.mutations {
		if o.writing && s.overlaps(span{o.lo, o.hi}) {
			o.mixed, m.mixed = true, true
		}
	}
	m.writing = true
	im.beginWriteLocked()
	return true
}

// changeLocked makes known that blocks are about to change, or have changed.
func (im *Image) changeLocked(s span) {
	if !broken(ruleMarkUnknown) && !broken(ruleMarkBefore) {
		im.table.Invalidate(s.lo, s.hi-s.lo)
	}
	im.goodLocked(s.lo, s.hi-s.lo)
	if !broken(ruleDropCheckpoint) {
		im.checkpoints.drop(s.lo)
	}
	if !broken(ruleSpoilReads) {
		for _, j := range im.jobs {
			if s.overlaps(span{j.lo, j.hi}) {
				j.spoiled.add(s)
			}
		}
	}
	im.generation++
}

// lackLocked reports whether the overlay lacks any of the blocks.
func (m *moment) lackLocked(s span) bool {
	for b := s.lo; b < s.hi; {
		k, n := m.overlay.run(b, s.hi-b)
		if k == heldNot {
			return true
		}
		b += n
	}
	return false
}

// endCostlyLocked ends the moments for which more digests would have to be
// copied than one critical section may. Runs of zeros cost next to nothing.
func (im *Image) endCostlyLocked(s span) {
	data := int64(0)
	for b := s.lo; b < s.hi; {
		state, n := im.table.Run(b, s.hi-b)
		if state == blockcache.Data {
			data += n
		}
		b += n
	}
	if data > maxCaptureBlocks {
		im.endMomentsLocked(errMemory)
	}
}

// errMemory ends moments that have become too expensive to keep.
var errMemory = errors.Join(ErrStale, errors.New("more was overwritten than can be kept for it"))

// markZeroLocked marks the blocks that lie whole in a range of bytes, which
// reads as zeros now, and will until another write is asked for.
func (im *Image) markZeroLocked(off, length int64) {
	bs := int64(im.spec.BlockSize)
	s := span{(off + bs - 1) / bs, (off + length) / bs}
	if off+length == im.size {
		s.hi = im.blocks
	}
	s.hi = min(s.hi, im.blocks)
	if s.lo >= s.hi || im.volatile {
		return
	}
	sure := spans{s}
	for _, doubtful := range im.doubtful {
		sure.remove(doubtful)
	}
	for _, z := range sure {
		im.table.SetZero(z.lo, z.hi-z.lo)
	}
}
