package hasher

import (
	"context"

	"hashfs/blockcache"
)

// A walker gives the digests of a range of blocks of a moment, in order, and
// has those that are not known computed ahead.
type walker struct {
	m    *moment
	im   *Image
	pos  int64 // the next block to give
	end  int64
	scan bool // a pass over the whole image

	ahead  int64  // the next block to look at for starting jobs
	queued bool   // the last job had a queue of local storage, or may have
	probed int64  // unknown blocks below this are data: extents were asked for
	jobs   []*job // joined, in order
	zeros  spans  // what the last probe found, for volatile images
	buf    []byte // what next returns
}

// digestRun is a run of blocks: zeros of them are zero, or else digests
// holds theirs.
type digestRun struct {
	zeros   int64
	digests []byte // valid until the next call
}

// walk returns a walker over the blocks [first, end).
func (m *moment) walk(first, end int64, scan bool) *walker {
	n := max(1, min(end-first, m.im.checkpointBlocks))
	return &walker{
		m: m, im: m.im, pos: first, end: end, scan: scan, ahead: first, probed: first,
		queued: m.im.queues != nil && !m.im.remote, buf: make([]byte, n*m.im.digestSize),
	}
}

// close leaves the jobs of the walker. They stop at once or after a while if
// nobody else waits for them.
func (w *walker) close(atOnce bool) {
	w.im.mu.Lock()
	defer w.im.mu.Unlock()
	for _, j := range w.jobs {
		j.leaveLocked(w.im, atOnce, j.stopLocked)
	}
	w.jobs = nil
}

// next returns the run of blocks at pos, and moves pos behind it. A
// *ReadError leaves pos at the block that could not be read.
func (w *walker) next(ctx context.Context) (digestRun, error) {
	for {
		w.im.mu.Lock()
		r, wait, err := w.stepLocked()
		w.im.mu.Unlock()
		if err != nil || wait == nil {
			return r, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return digestRun{}, ctx.Err()
		}
		w.im.park("walker")
	}
}

// stepLocked returns a run, or what to wait for before another step: the
// view's overlay answers first, then a job waited for, then the table.
func (w *walker) stepLocked() (digestRun, <-chan struct{}, error) {
	if w.m.ended != nil {
		return digestRun{}, nil, w.m.ended
	}
	w.leavePassedLocked()
	k, n := w.m.overlay.run(w.pos, w.end-w.pos)
	if k != heldNot && !w.brokenLocked() {
		r, err := w.heldLocked(k, n)
		return r, nil, err
	}
	if r, ok, err := w.resultLocked(n); ok {
		if err == nil && w.im.volatile && !w.scan {
			w.m.rememberLocked(w.pos, r)
		}
		return r, nil, err
	}
	if r, ok := w.knownLocked(n); ok {
		if w.im.volatile && !w.scan {
			w.m.rememberLocked(w.pos, r)
		}
		w.startLocked(w.depth())
		return r, nil, nil
	}
	w.startLocked(w.depth())
	if wait := w.coveredLocked(); wait != nil {
		return digestRun{}, wait, nil
	}
	// What was known or under way when the walk looked ahead is so no more.
	w.ahead = w.pos
	w.startLocked(w.unfinished() + 1)
	return digestRun{}, w.coveredLocked(), nil
}

// brokenLocked reports whether a test wants the table to win over the overlay.
func (w *walker) brokenLocked() bool {
	if !broken(ruleOverlayFirst) {
		return false
	}
	s, _ := w.im.table.Run(w.pos, 1)
	return s == blockcache.Zero || s == blockcache.Data
}

// fits bounds a number of blocks to what buf takes, and to the distance of
// checkpoints, so that runs of digests end where one may be left.
func (w *walker) fits(n int64) int64 {
	n = min(n, int64(len(w.buf))/w.im.digestSize)
	return min(n, w.im.checkpointBlocks-w.pos%w.im.checkpointBlocks)
}

// heldLocked gives n blocks from the overlay.
func (w *walker) heldLocked(k held, n int64) (digestRun, error) {
	switch k {
	case heldZero:
		w.pos += n
		return digestRun{zeros: n}, nil
	case heldFailed:
		return digestRun{}, w.im.readError(w.pos, w.m.size, errOldBlock)
	}
	n = w.fits(n)
	d := w.m.overlay.digests(w.buf[:0], w.pos, n)
	w.pos += n
	return digestRun{digests: d}, nil
}

// resultLocked gives blocks from the result of a job that the walker joined.
// They are the moment's own even if the table has lost or changed them since:
// the job ended unspoiled there while the moment was on, and a block that was
// overwritten after that would be in the overlay.
func (w *walker) resultLocked(n int64) (digestRun, bool, error) {
	for _, j := range w.jobs {
		if !j.finished || j.kinds == nil || w.pos < j.lo || w.pos >= j.hi {
			continue
		}
		kind, n := j.kind(w.pos, n)
		switch kind {
		case resultZero:
			w.pos += n
			return digestRun{zeros: n}, true, nil
		case resultData:
			n = w.fits(n)
			d := append(w.buf[:0], j.digests[(w.pos-j.lo)*w.im.digestSize:][:n*w.im.digestSize]...)
			w.pos += n
			return digestRun{digests: d}, true, nil
		case resultFailed:
			return digestRun{}, true, w.im.readError(w.pos, w.m.size, j.err)
		}
	}
	return digestRun{}, false, nil
}

// knownLocked gives blocks that the table knows.
func (w *walker) knownLocked(n int64) (digestRun, bool) {
	if w.im.volatile {
		if zero, n := w.zeros.has(w.pos, n); zero {
			w.pos += n
			return digestRun{zeros: n}, true
		}
		return digestRun{}, false
	}
	switch s, _ := w.im.table.Run(w.pos, 1); s {
	case blockcache.Zero:
		_, n := w.im.table.Run(w.pos, n)
		w.pos += n
		return digestRun{zeros: n}, true
	case blockcache.Data:
		// How far the run goes need not be known, and would take a look at all.
		n = w.im.table.Digests(w.buf[:w.fits(n)*w.im.digestSize], w.pos)
		w.pos += n
		return digestRun{digests: w.buf[:n*w.im.digestSize]}, n > 0
	}
	return digestRun{}, false
}

// leavePassedLocked leaves jobs that are behind, and learns from probes.
func (w *walker) leavePassedLocked() {
	keep := w.jobs[:0]
	for _, j := range w.jobs {
		if j.finished && j.probe {
			// What it skipped was known then. Taken for data later, it is
			// read: slower, never wrong.
			w.probed = max(w.probed, j.probedTo)
			if w.im.volatile {
				w.zeros = j.zeros
			}
			j.leaveLocked(w.im, true, j.stopLocked)
		} else if j.hi <= w.pos || j.finished && j.kinds == nil {
			if j.finished {
				w.queued = j.queued
			}
			j.leaveLocked(w.im, true, j.stopLocked)
		} else {
			keep = append(keep, j)
		}
	}
	clear(w.jobs[len(keep):])
	w.jobs = keep
}

// coveredLocked returns what ends when something is known of block pos: a
// mutation that writes it, or a job that reads it. A pass over the image waits
// for a few jobs at a time: to be woken after each costs more than to hash the
// digests of zeros.
func (w *walker) coveredLocked() <-chan struct{} {
	if m := w.im.writingLocked(span{w.pos, w.pos + 1}); m != nil {
		return m.done
	}
	for i, j := range w.jobs {
		if j.lo <= w.pos && w.pos < j.hi && !j.finished {
			if later := w.jobs[(i+len(w.jobs))/2]; w.scan && !later.finished {
				j = later
			}
			return j.done
		}
	}
	return nil
}

// startLocked looks ahead of pos and starts jobs for what is not known, or
// joins those of others, until depth are under way.
func (w *walker) startLocked(depth int) {
	w.ahead = max(w.ahead, w.pos)
	for w.ahead < w.end && w.unfinished() < depth {
		k, n := w.m.overlay.run(w.ahead, w.end-w.ahead)
		if k == heldNot && w.im.volatile {
			if zero, run := w.zeros.has(w.ahead, n); zero {
				w.ahead += run
			} else if !w.startOneLocked(span{w.ahead, w.ahead + run}) {
				return
			}
			continue
		}
		if k == heldNot {
			var s blockcache.State
			s, n = w.im.table.Run(w.ahead, n)
			if s == blockcache.Unknown || s == blockcache.Failed {
				if !w.startOneLocked(span{w.ahead, w.ahead + n}) {
					return
				}
				continue
			}
		}
		w.ahead += n
	}
}

// depth is how many jobs the walker keeps under way. Each takes memory for what it
// has to wait for.
func (w *walker) depth() int {
	jobs := w.im.pool.jobs
	if w.queued {
		return jobs + min(jobs, waitingQueues)
	}
	return jobs * depthPerJob
}

func (w *walker) unfinished() int {
	n := 0
	for _, j := range w.jobs {
		if !j.finished {
			n++
		}
	}
	return n
}

// startOneLocked sees to the first unknown blocks of s, which begins at
// ahead. It reports false if what comes after has to wait for the outcome.
func (w *walker) startOneLocked(s span) bool {
	if m := w.im.writingLocked(s); m != nil {
		if m.lo <= s.lo {
			w.ahead = min(m.hi, s.hi)
			return true
		}
		s.hi = m.lo
	}
	if j := w.im.jobOnLocked(s); j != nil {
		if j.lo > s.lo {
			s.hi = j.lo
		} else if w.joined(j) || w.mayJoin(j) && j.joinLocked() {
			if !w.joined(j) {
				w.jobs = append(w.jobs, j)
			}
			if j.probe {
				return false
			}
			w.ahead = min(j.hi, s.hi)
			return true
		}
	}
	probe := w.im.extents != nil && w.probed <= s.lo
	if !probe {
		if w.im.extents != nil {
			s.hi = min(s.hi, w.probed)
		}
		s.hi = min(s.hi, s.lo+w.jobBlocks(s.lo))
	}
	j := w.im.startJobLocked(s, probe, w.scan)
	j.joinLocked()
	w.jobs = append(w.jobs, j)
	if !probe {
		w.ahead = s.hi
	}
	return !probe
}

// jobBlocks returns how many blocks a job that begins at lo covers at most: fewer
// towards the end, so that the workers are done at about the same time.
func (w *walker) jobBlocks(lo int64) int64 {
	piece := max(1, w.im.pieceBytes/int64(w.im.spec.BlockSize))
	share := (w.end - lo) / int64(2*w.im.pool.jobs)
	return min(w.im.jobBlocks, max(share-share%piece, piece))
}

// mayJoin reports whether a job shows the walker's moment: where nobody tells
// of changes from outside, it must not have begun before.
func (w *walker) mayJoin(j *job) bool {
	return w.im.lasting() || j.seq >= w.m.since
}

func (w *walker) joined(j *job) bool {
	for _, o := range w.jobs {
		if o == j {
			return true
		}
	}
	return false
}
