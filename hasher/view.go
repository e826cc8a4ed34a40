package hasher

import (
	"context"
	"errors"
	"sync"
)

// A moment is what an image was at one generation. Handles opened at the same
// generation share it. The overlay holds its blocks that were overwritten
// since; the others are as in the image.
//
// The image's mutex guards all but the constants.
type moment struct {
	im         *Image // constants
	since      uint64 // jobs with a lower number began before the moment
	generation uint64
	size       int64
	blocks     int64
	tailDigest func() []byte // of a short last block of zeros

	handles  int
	ended    error // why it can no longer be shown; nil while it can
	overlay  overlay
	reserved int64 // of overlay.bytes, reserved in the cache
	checksum []byte
	task     *taskFor[[]byte]
}

// A View is a handle on the image as it was when the view was opened. Its
// methods may be called from several goroutines at once.
type View struct {
	im *Image

	// mu guards the rest. It comes before the image's.
	mu     sync.Mutex
	moment *moment
	handed bool // something of the moment was returned to the caller
	closed bool
}

// OpenView returns a view of the image as it is now. It hashes nothing; it
// waits, a hundredth of a second or so, if the source was changed from outside
// just now. Views cost memory while the image is written: close them.
func (im *Image) OpenView(ctx context.Context) (*View, error) {
	if err := im.settle(ctx); err != nil {
		return nil, err
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.closed {
		return nil, ErrClosed
	}
	return &View{im: im, moment: im.momentLocked()}, nil
}

// momentLocked returns the present moment, with one handle more.
func (im *Image) momentLocked() *moment {
	for _, m := range im.moments {
		if im.lasting() && m.generation == im.generation || broken(ruleNewMoment) {
			m.handles++
			return m
		}
	}
	m := &moment{
		im: im, since: im.jobSeq + 1, generation: im.generation, size: im.size, blocks: im.blocks,
		handles: 1, overlay: overlay{digest: int(im.digestSize)},
	}
	m.tailDigest = sync.OnceValue(func() []byte {
		return im.shortZeroDigest(m.size % int64(im.spec.BlockSize))
	})
	im.moments = append(im.moments, m)
	return m
}

// lasting reports whether what is found of the image may be kept for others.
func (im *Image) lasting() bool { return !im.volatile && len(im.doubtful) == 0 }

// releaseLocked gives up a handle on a moment.
func (m *moment) releaseLocked() {
	m.handles--
	if m.handles == 0 && m.ended == nil {
		m.endLocked(ErrClosed)
	}
}

// endLocked gives up what the moment holds; it can be shown no longer.
func (m *moment) endLocked(why error) {
	m.ended = why
	for i, o := range m.im.moments {
		if o == m {
			m.im.moments = append(m.im.moments[:i], m.im.moments[i+1:]...)
			break
		}
	}
	m.overlay = overlay{}
	m.im.cache.Release(m.reserved)
	m.reserved = 0
}

// endMomentsLocked ends all moments of the image.
func (im *Image) endMomentsLocked(why error) {
	for len(im.moments) > 0 {
		im.moments[len(im.moments)-1].endLocked(why)
	}
}

// Close gives up the view. It may be called more than once.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.closed = true
	v.im.mu.Lock()
	defer v.im.mu.Unlock()
	v.moment.releaseLocked()
}

// Size returns the length of the image in bytes, at the view's moment.
func (v *View) Size() int64 { return v.get().size }

// Blocks returns the length of the image in blocks, at the view's moment.
func (v *View) Blocks() int64 { return v.get().blocks }

func (v *View) get() *moment {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.moment
}

// show calls f with the moment of the view, and again with another moment, a
// few times, if the image was changed from outside while nothing of the view
// had been returned to anybody. A view whose image was resized is stale.
func (v *View) show(ctx context.Context, f func(*moment) error) error {
	for range settleTries {
		m, err := v.showable(ctx)
		if err != nil {
			return err
		}
		err = f(m)
		if err == nil || errors.Is(err, errOutside) {
			// The last look before the answer goes out.
			if err = v.im.look(ctx); err == nil {
				err = v.handOut(m)
			}
		}
		if !errors.Is(err, errOutside) {
			return err
		}
	}
	return ErrBusy
}

// handOut marks the view as one that has returned something, unless its
// moment has ended.
func (v *View) handOut(m *moment) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.im.mu.Lock()
	defer v.im.mu.Unlock()
	if m.ended != nil {
		return m.ended
	}
	v.handed = true
	return nil
}

// showable returns the view's moment, or a new one in place of one that ended
// by a change from outside before anybody had seen anything of it.
func (v *View) showable(ctx context.Context) (*moment, error) {
	if err := v.im.settle(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.im.mu.Lock()
	defer v.im.mu.Unlock()
	if v.closed || v.im.closed {
		return nil, ErrClosed
	}
	m := v.moment
	if m.ended == nil {
		return m, nil
	}
	if m.ended != errOutside || v.handed || m.size != v.im.size {
		return nil, m.ended
	}
	m.releaseLocked()
	v.moment = v.im.momentLocked()
	return v.moment, nil
}

// ReadDigests fills dst with the digests of the blocks from first on, as many
// as fit: len(dst) must be a multiple of the digest's size and all the blocks
// must exist. It computes those that are not known and no others.
//
// Errors are ErrStale, ErrBusy, a *ReadError for a block that cannot be read,
// and the context's. dst is then partly filled.
func (v *View) ReadDigests(ctx context.Context, dst []byte, first int64) error {
	return v.show(ctx, func(m *moment) error {
		n := int64(len(dst)) / m.im.digestSize
		w := m.walk(first, first+n, false)
		defer w.close(false)
		for out := dst; w.pos < w.end; {
			r, err := w.next(ctx)
			if err != nil {
				return err
			}
			out = out[copy(out, r.digests):]
			if r.zeros > 0 {
				out = out[m.copyZeroDigests(out, w.pos-r.zeros, r.zeros):]
			}
		}
		return nil
	})
}

// copyZeroDigests writes the digests of n blocks of zeros from b on.
func (m *moment) copyZeroDigests(dst []byte, b, n int64) int {
	whole := n
	if m.shortTail(b + n) {
		whole--
	}
	at := 0
	for range whole {
		at += copy(dst[at:], m.im.zeroDigest())
	}
	if whole < n {
		at += copy(dst[at:], m.tailDigest())
	}
	return at
}

// shortTail reports whether the block before end is a short last one.
func (m *moment) shortTail(end int64) bool {
	return end == m.blocks && m.size%int64(m.im.spec.BlockSize) != 0
}

// Checksum returns the blkhash of the image. It computes what is not known,
// together with all who ask for the same; each can leave when its ctx ends.
// Errors are those of ReadDigests.
func (v *View) Checksum(ctx context.Context) ([]byte, error) {
	var sum []byte
	err := v.show(ctx, func(m *moment) (err error) {
		sum, err = m.sum(ctx)
		return err
	})
	return sum, err
}

func (m *moment) sum(ctx context.Context) ([]byte, error) {
	m.im.mu.Lock()
	if m.checksum == nil && m.im.final.sum != nil && m.im.lasting() && m.im.final.generation == m.generation {
		m.checksum = m.im.final.sum
	}
	sum, err := m.checksum, m.ended
	m.im.mu.Unlock()
	if sum != nil || err != nil {
		return sum, err
	}
	return share(ctx, m.im, &m.task, "checksum", m.size, m.compute)
}

// compute is the work of the checksum: one pass over the digests.
func (m *moment) compute(ctx context.Context, t *task) ([]byte, error) {
	outer := &outerHash{m.im.spec.Algorithm.New(), m.im.zeroBatch, m.im.digestSize}
	first, err := m.resume(outer)
	if err != nil {
		return nil, err
	}
	resumable := m.im.spec.Algorithm.Resumable()
	w := m.walk(first, m.blocks, true)
	defer w.close(true)
	for w.pos < w.end {
		t.doneBytes.Store(w.pos * int64(m.im.spec.BlockSize))
		r, err := w.next(ctx)
		if err != nil {
			return nil, err
		}
		outer.Write(r.digests)
		if r.zeros > 0 {
			whole := r.zeros
			if m.shortTail(w.pos) {
				whole--
			}
			outer.addZeros(whole)
			if whole < r.zeros {
				outer.Write(m.tailDigest())
			}
		} else if resumable {
			if err := m.leaveCheckpoint(outer, w.pos); err != nil {
				return nil, err
			}
		}
	}
	sum := outer.finish(m.size)
	m.im.mu.Lock()
	defer m.im.mu.Unlock()
	if m.ended != nil {
		return nil, m.ended
	}
	m.checksum = sum
	if m.generation == m.im.generation && m.im.lasting() {
		m.im.final = finalSum{m.generation, sum}
	}
	return sum, nil
}

// resume puts the outer hash behind the furthest checkpoint that holds for
// the moment, and returns the first block that it lacks. A checkpoint speaks
// of the image as it is: of the moment too if no block below was overwritten
// since.
func (m *moment) resume(outer *outerHash) (int64, error) {
	m.im.mu.Lock()
	if m.ended != nil {
		m.im.mu.Unlock()
		return 0, m.ended
	}
	limit := m.blocks
	if !m.overlay.emptyBelow(limit) && !broken(ruleResumeBelow) {
		limit = m.overlay.low
	}
	p, ok := m.im.checkpoints.below(limit)
	m.im.mu.Unlock()
	if !ok {
		return 0, nil
	}
	return p.blocks, restoreState(outer.Hash, p.state)
}

// leaveCheckpoint keeps the state of the outer hash after some blocks for
// later checksums, if the image still begins with these blocks.
func (m *moment) leaveCheckpoint(outer *outerHash, blocks int64) error {
	wanted := func() bool {
		return m.ended == nil && m.im.lasting() && m.im.checkpoints.wants(blocks) &&
			(m.overlay.emptyBelow(blocks) || broken(rulePublishBelow))
	}
	m.im.mu.Lock()
	ok := wanted()
	m.im.mu.Unlock()
	if !ok {
		return nil
	}
	state, err := saveState(outer.Hash)
	if err != nil {
		return err
	}
	m.im.mu.Lock()
	defer m.im.mu.Unlock()
	if wanted() {
		m.im.checkpoints.add(checkpoint{blocks, state})
	}
	return nil
}
