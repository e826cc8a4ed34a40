package hasher

import (
	"context"
	"errors"
	"sync/atomic"

	"hashfs/blockcache"
)

// A job reads a run of blocks and finds their digests, or, as a probe, asks
// the source where a run has no data. While it is under way it stands in the
// image's list, where mutations find and spoil it.
//
// A job publishes what it found in one critical section with its end, but for
// the blocks that were spoiled meanwhile.
type job struct {
	waiters
	im     *Image // constants
	seq    uint64
	era    uint64
	size   int64 // of the image, bytes
	lo, hi int64 // blocks
	probe  bool
	scan   bool
	done   chan struct{}

	stop    atomic.Bool // give up between pieces
	spoiled spans       // guarded by the image's mutex

	// The result, not changed once done is closed. kinds is nil if the job
	// gave up, else it has a resultKind a block; digests has a place a block.
	finished bool // with the image's mutex, for those who do not wait
	kinds    []resultKind
	digests  []byte
	err      error // why blocks failed
	read     int64 // bytes of data that were read
	queued   bool  // by a queue of local storage, at least in part
	zeros    spans // of a probe
	probedTo int64 // of a probe: all blocks below were asked about
}

type resultKind uint8

const (
	resultNone resultKind = iota // spoiled, or not tried
	resultZero
	resultData
	resultFailed
)

// probeExtents bounds the extents that one probe asks for.
const probeExtents = 4096

func (im *Image) startJobLocked(s span, probe, scan bool) *job {
	im.jobSeq++
	j := &job{
		im: im, seq: im.jobSeq, era: im.era, size: im.size, lo: s.lo, hi: s.hi, probe: probe, scan: scan,
		done: make(chan struct{}),
	}
	im.jobs = append(im.jobs, j)
	if probe {
		go j.run(nil)
	} else {
		im.pool.submit(j.run)
	}
	return j
}

// jobOnLocked returns the job under way that covers the lowest of the blocks.
func (im *Image) jobOnLocked(s span) *job {
	var first *job
	for _, j := range im.jobs {
		if (span{j.lo, j.hi}).overlaps(s) && (first == nil || j.lo < first.lo) {
			first = j
		}
	}
	return first
}

func (j *job) stopLocked() { j.stop.Store(true) }

// kind returns the result of block b, and for how many of the n blocks from
// there on it is the same.
func (j *job) kind(b, n int64) (resultKind, int64) {
	k, end := j.kinds[b-j.lo], min(b+n, j.hi)
	i := b + 1
	for i < end && j.kinds[i-j.lo] == k {
		i++
	}
	return k, i - b
}

// run is the job's work. A probe is cheap, and has a goroutine of its own; what
// hashes has a worker, or nil when the pool is closed.
func (j *job) run(w *worker) {
	switch {
	case j.stop.Load():
	case j.probe:
		j.ask()
	case w != nil:
		j.hash(w)
	}
	// Nothing is published that another has changed under the read.
	var err error
	check := func() { err = j.im.check() }
	if w != nil && j.im.remote {
		w.hold(check)
	} else {
		check()
	}
	j.im.park("job")
	j.finish(err)
}

// finish publishes what was found and not spoiled.
func (j *job) finish(stampErr error) {
	im := j.im
	im.mu.Lock()
	defer im.mu.Unlock()
	for i, o := range im.jobs {
		if o == j {
			im.jobs = append(im.jobs[:i], im.jobs[i+1:]...)
			break
		}
	}
	defer close(j.done)
	j.finished = true
	im.hashedBytes += j.read
	if j.era != im.era || stampErr != nil && (j.probe || j.kinds == nil) {
		j.kinds, j.zeros = nil, nil
		return
	}
	if stampErr != nil {
		// Whether the bytes are the image's cannot be known. Waiters are told,
		// lest they try again for as long as that is so.
		for i := range j.kinds {
			j.kinds[i] = resultFailed
		}
		j.err = stampErr
		return
	}
	if j.probe {
		j.publishZerosLocked()
		return
	}
	if j.kinds == nil {
		return
	}
	for b := j.lo; b < j.hi; {
		bad, n := j.spoiled.has(b, j.hi-b)
		if bad && !broken(rulePublishUnspoiled) {
			clear(j.kinds[b-j.lo:][:n])
		} else {
			j.publishLocked(b, b+n)
		}
		b += n
	}
}

// publishLocked puts the results of the blocks [b, end) into the table, but
// for those that are not to be kept.
func (j *job) publishLocked(b, end int64) {
	for at := b; at < end && len(j.im.complained) > 0; {
		k, n := j.kind(at, end-at)
		if k != resultFailed {
			j.im.goodLocked(at, n)
		}
		at += n
	}
	for b < end && j.im.volatile {
		// Only what failed is kept, for those who ask what is wrong.
		k, n := j.kind(b, end-b)
		if k == resultFailed {
			j.im.table.SetFailed(b, n)
		} else {
			j.im.table.Invalidate(b, n)
		}
		b += n
	}
	for b < end {
		doubtful, n := j.im.doubtful.has(b, end-b)
		if doubtful {
			b += n
			continue
		}
		k, n := j.kind(b, n)
		switch k {
		case resultZero:
			j.im.table.SetZero(b, n)
		case resultData:
			d := j.im.digestSize
			j.im.table.SetData(b, j.digests[(b-j.lo)*d:][:n*d], j.scan)
		case resultFailed:
			j.im.table.SetFailed(b, n)
		}
		b += n
	}
}

// publishZerosLocked marks the blocks of holes as zero, and takes out of
// zeros what was spoiled.
func (j *job) publishZerosLocked() {
	for _, bad := range j.spoiled {
		if !broken(ruleExtentIsRead) {
			j.zeros.remove(bad)
		}
	}
	if j.im.volatile {
		if j.im.table.Counts()[blockcache.Failed] > 0 {
			// What could not be read while it was no hole is good now.
			for _, z := range j.zeros {
				j.im.table.Invalidate(z.lo, z.hi-z.lo)
				j.im.goodLocked(z.lo, z.hi-z.lo)
			}
		}
		return
	}
	sure := append(spans(nil), j.zeros...)
	for _, doubtful := range j.im.doubtful {
		sure.remove(doubtful)
	}
	for _, z := range sure {
		j.im.table.SetZero(z.lo, z.hi-z.lo)
	}
}

// ask asks the source for its extents. A source that cannot say has data.
func (j *job) ask() {
	bs := int64(j.im.spec.BlockSize)
	end := min(j.hi*bs, j.size)
	left := j.im.probeExtents
	asked := j.lo * bs
	err := j.im.extents.Extents(context.Background(), asked, end-asked, func(e Extent) bool {
		asked = e.End()
		left--
		if e.Zero() {
			lo, hi := (e.Offset+bs-1)/bs, e.End()/bs
			if e.End() == j.size {
				hi = j.im.spec.blocks(j.size)
			}
			if lo < hi {
				j.zeros = append(j.zeros, span{lo, hi})
			}
		}
		return left > 0 && !j.stop.Load()
	})
	if err != nil || asked >= end {
		asked = j.hi * bs
	}
	j.probedTo = max(asked/bs, j.lo+1)
}

// hash reads and hashes the blocks, piece by piece.
func (j *job) hash(w *worker) {
	n := j.hi - j.lo
	j.kinds = make([]resultKind, n)
	j.digests = make([]byte, n*j.im.digestSize)
	r := j.pieces(w)
	defer r.close()
	for b := j.lo; b < j.hi; {
		if j.stop.Load() {
			j.kinds = nil
			return
		}
		if n := j.hashInPlace(r, b); n > 0 {
			b += n
			continue
		}
		if int64(j.im.spec.BlockSize) <= r.piece {
			b += j.hashPiece(r, b)
			continue
		}
		if !j.hashLong(r, b) {
			j.kinds = nil
			return
		}
		b++
	}
}

// hashInPlace hashes some blocks from lo on where they are in the source's cache,
// and returns how many: 0 where that cannot be had. What it has found until then
// is replaced by what is read.
func (j *job) hashInPlace(r *pieces, lo int64) int64 {
	length := r.inPlace()
	if length == 0 {
		return 0
	}
	step := r.step(length)
	err := j.im.maps.Map(r.pos, length, func(p []byte) {
		for b := lo; len(p) > 0 && !j.stop.Load(); {
			n := min(step, int64(len(p)))
			j.hashBlocks(r.w, b, p[:n], true)
			b += j.im.spec.blocks(n)
			p = p[n:]
		}
	})
	if err != nil && !broken(ruleLeftIsRead) {
		r.cached-- // not all of it any more
		return 0
	}
	j.read += length
	r.pos += length
	return j.im.spec.blocks(length)
}

// hashPiece reads some blocks from lo on with one read, and returns how many.
// If that fails it reads each by itself, so that one bad block does not take
// its neighbours along.
func (j *job) hashPiece(r *pieces, lo int64) int64 {
	bs := int64(j.im.spec.BlockSize)
	off := r.pos
	p, err := r.next(r.end)
	hi := lo + j.im.spec.blocks(int64(len(p)))
	switch {
	case err == nil:
		r.empty = !j.hashBlocks(r.w, lo, p, false)
	case errors.Is(err, ErrUnavailable):
		for b := lo; b < hi; b++ {
			j.kinds[b-j.lo] = resultFailed
		}
		j.err = err
		j.im.noteFailure(&ReadError{off, int64(len(p)), err})
	default:
		for b := lo; b < hi && !j.stop.Load(); b++ {
			block := p[(b-lo)*bs:]
			block = block[:min(bs, int64(len(block)))]
			if err := j.readFull(r.w, block, b*bs); err != nil {
				j.fail(b, err)
			} else {
				j.hashBlocks(r.w, b, block, false)
			}
		}
	}
	return hi - lo
}

func (j *job) fail(b int64, err error) {
	j.kinds[b-j.lo] = resultFailed
	j.err = err
	j.im.noteFailure(j.im.readError(b, j.size, err))
}

// hashBlocks finds the digests of the blocks from b on, whose bytes are p, and
// reports whether any is not of zeros. In place, a load of p can fault.
func (j *job) hashBlocks(w *worker, b int64, p []byte, inPlace bool) (found bool) {
	bs, d := j.im.spec.BlockSize, j.im.digestSize
	h := w.hasher(j.im.spec)
	for len(p) > 0 {
		// Data blocks in a row go to the hasher together.
		data := 0
		for data < len(p) && !IsZero(p[data:min(data+bs, len(p))]) {
			data += min(bs, len(p)-data)
		}
		i := b - j.lo
		if data == 0 {
			j.kinds[i] = resultZero
			p = p[min(bs, len(p)):]
			b++
			continue
		}
		found = true
		n := int64((data + bs - 1) / bs)
		sums, rest := j.digests[i*d:i*d:(i+n)*d], p[:data]
		if inPlace {
			whole := h.faultable(data)
			sums = h.AppendSums(sums, rest[:whole])
			rest = append(w.buffer(data - whole)[:0], rest[whole:]...)
		}
		h.AppendSums(sums, rest)
		for k := range n {
			j.kinds[i+k] = resultData
		}
		p = p[data:]
		b += n
	}
	return found
}

// hashLong reads and hashes a block that is longer than a piece. It reports
// false if the job was stopped meanwhile.
func (j *job) hashLong(r *pieces, b int64) bool {
	start := r.pos
	end := min(start+int64(j.im.spec.BlockSize), r.end)
	h := r.w.stream(j.im.spec.Algorithm)
	zero := true // so far; nothing was written to h then
	for r.pos < end {
		if j.stop.Load() {
			return false
		}
		at := r.pos
		p, err := r.next(end)
		if err != nil {
			j.fail(b, err)
			r.seek(end)
			return true
		}
		if zero && !IsZero(p) {
			zero = false
			writeZeros(h, at-start)
		}
		if !zero {
			h.Write(p)
		}
	}
	i, d := b-j.lo, j.im.digestSize
	if zero {
		j.kinds[i] = resultZero
	} else {
		j.kinds[i] = resultData
		h.Sum(j.digests[i*d : i*d])
	}
	return true
}

// readError returns the error of a block of an image of the given size.
func (im *Image) readError(b, size int64, err error) *ReadError {
	bs := int64(im.spec.BlockSize)
	return &ReadError{b * bs, min(bs, size-b*bs), err}
}

// errOldBlock is the cause for a view's block that could not be read before
// it was overwritten: what it was, nobody will know.
var errOldBlock = errors.New("the block could not be read before it was overwritten")
