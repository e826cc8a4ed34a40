package hasher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// tickGranularity covers the clock of file systems that stamp with the
	// kernel's tick: 10 ms at the slowest, taken twice.
	tickGranularity = 20 * time.Millisecond

	// secondGranularity covers those that keep whole seconds, FAT even ones.
	secondGranularity = 2 * time.Second

	// settleTries is how often a reader tries to find the image at rest.
	settleTries = 3
)

// unsettled returns how long after now the stamp will have been taken for
// granted: a change within the clock's granularity of the last one may leave
// the stamp as it is. The change time decides, since users cannot set it.
func (s Stamp) unsettled(now time.Time) time.Duration {
	granularity := tickGranularity
	if s.CTime%1e9 == 0 && s.MTime%1e9 == 0 {
		granularity = secondGranularity
	}
	age := now.Sub(time.Unix(0, s.CTime))
	if age.Abs() > granularity {
		// A change time far ahead is a clock that was set back: a change
		// made now would bring another.
		return 0
	}
	return granularity - age
}

// sameImage reports whether two stamps are of one file, or one connection to a
// server, which no write of our own changes.
func (s Stamp) sameImage(o Stamp) bool { return s.Dev == o.Dev && s.Inode == o.Inode }

// check looks whether the source was changed by somebody else since the last
// look, and forgets everything if so. While writes of our own are under way
// the stamp says only whether the image is another one; the last of them takes
// a new stamp.
func (im *Image) check() error {
	if im.stamped == nil || broken(ruleCheckStamp) {
		return nil
	}
	im.checking.Lock()
	defer im.checking.Unlock()
	im.mu.Lock()
	seq, idle := im.writeSeq, im.writes == 0
	im.mu.Unlock()
	s, err := im.stamped.Stamp()
	if err != nil {
		return fmt.Errorf("stamp: %w", err)
	}
	im.noteReplaced()
	im.mu.Lock()
	defer im.mu.Unlock()
	// A write that was under way at the look may have moved the stamp after it,
	// and have ended by now: what was seen then is not yet of its doing.
	still := idle && im.writes == 0 && im.writeSeq == seq
	if !s.sameImage(im.stamp) || still && s != im.stamp {
		im.forgetLocked(s, "changed from outside")
	}
	return nil
}

// look is check for somebody who may leave: a remote source can keep a check
// waiting, and those behind it.
func (im *Image) look(ctx context.Context) error {
	if !im.remote {
		return im.check()
	}
	_, err := await(ctx, func() (struct{}, error) { return struct{}{}, im.check() })
	return err
}

// lookAlone is look for a write. While others of ours are under way the stamp would
// say only whether the image is another one, and a file that is held open for writing
// stays the one it is.
func (im *Image) lookAlone(ctx context.Context) error {
	im.mu.Lock()
	others := im.writes > 0
	im.mu.Unlock()
	if others && !im.remote {
		return nil
	}
	return im.look(ctx)
}

// noteReplaced says once that the source's name does not lead to it any more.
func (im *Image) noteReplaced() {
	if im.named != nil && im.named.Replaced() && !im.warned.Swap(true) {
		im.log.Warn("the image's file was renamed or deleted: it is kept, and what is written is not in the file that has its name now, if any")
	}
}

// settle returns once the stamp is one that every later change would alter.
func (im *Image) settle(ctx context.Context) error {
	for range settleTries {
		if err := im.look(ctx); err != nil {
			return err
		}
		im.mu.Lock()
		s, done := im.stamp, im.settled || im.stamped == nil || im.writes > 0 || broken(ruleSettle)
		closed := im.closed
		im.mu.Unlock()
		if closed {
			return ErrClosed
		}
		if done {
			return nil
		}
		if err := sleep(ctx, s.unsettled(time.Now())); err != nil {
			return err
		}
		if err := im.awaitWriters(ctx); err != nil {
			return err
		}
		// The second look: equal to the first, and old by now.
		if err := im.look(ctx); err != nil {
			return err
		}
		im.mu.Lock()
		if im.stamp == s {
			im.settled = true
		}
		done = im.settled
		im.mu.Unlock()
		if done {
			return nil
		}
	}
	return ErrBusy
}

// awaitWriters waits for other writers, or until ctx ends.
func (im *Image) awaitWriters(ctx context.Context) error {
	if broken(ruleAwaitWriters) {
		return nil
	}
	_, err := await(ctx, func() (struct{}, error) {
		return struct{}{}, im.stamped.AwaitWriters()
	})
	return err
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errOutside ends moments when the image changed from outside. A view that
// has handed nothing out yet takes another moment; others are stale.
var errOutside = fmt.Errorf("%w: the image was changed from outside", ErrStale)

// forgetLocked drops all that is known: the source may not be what it was.
func (im *Image) forgetLocked(s Stamp, why string) {
	im.era++
	im.generation++
	im.settled = false
	im.stamp = s
	im.modTime = s.ModTime()
	if size := im.src.Size(); size != im.size {
		im.size = size
		im.blocks = im.spec.blocks(size)
		im.resizes++
	}
	im.table.Reset(im.blocks)
	im.checkpoints = checkpoints{distance: im.checkpointBlocks}
	im.final = finalSum{}
	clear(im.plain)
	clear(im.complained)
	im.endMomentsLocked(errOutside)
	for _, j := range im.jobs {
		j.spoiled.add(span{j.lo, j.hi})
	}
	im.log.Info("digests are forgotten", "reason", why, "size", im.size)
}

// beginWriteLocked and endWrite bracket the I/O of a mutation, so that the
// change of the stamp that it makes is known to be our own.
func (im *Image) beginWriteLocked() {
	im.writes++
	im.writeSeq++
}

// endWrite takes a new stamp when the last of the writes under way ends.
func (im *Image) endWrite() {
	im.mu.Lock()
	defer im.mu.Unlock()
	for im.writes == 1 && im.stamped != nil {
		seq := im.writeSeq
		im.mu.Unlock()
		s, err := im.stamped.Stamp()
		im.noteReplaced()
		im.mu.Lock()
		if im.writeSeq != seq {
			continue // another write may have begun and ended meanwhile
		}
		if err == nil && s.Size == im.size && s.sameImage(im.stamp) {
			// Nobody else writes under our lock, so the stamp is as good as
			// an old one.
			im.stamp, im.settled = s, true
			break
		}
		im.forgetLocked(s, "changed while it was written")
		break
	}
	im.writes--
	im.modTime = time.Now()
}

// atEnd reports whether a read that came to off and ended with err is one
// that simply came to the end of the image.
func (im *Image) atEnd(off int64, err error) bool {
	if !errors.Is(err, io.EOF) {
		return false
	}
	if im.check() != nil {
		return false
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	return off >= im.size
}
