package blockcache

import "math/bits"

// 32 states of two bits fill a word, the lowest bits for the lowest block.
const (
	statesPerWord = 32
	wordsPerRun   = RunBlocks / statesPerWord
	lowBits       = 0x5555555555555555
)

// pattern returns a word of 32 states s.
func pattern(s State) uint64 { return uint64(s) * lowBits }

// span returns the mask of the states [lo, hi) of a word, 0 <= lo < hi <= 32.
func span(lo, hi int64) uint64 {
	return ^uint64(0) >> (64 - 2*uint(hi-lo)) << (2 * uint(lo))
}

// stateLocked returns the state of a block.
func (t *Table) stateLocked(b int64) State {
	if k := t.kinds[b/RunBlocks]; k != mixed {
		return State(k)
	}
	return State(t.states[b/statesPerWord] >> (2 * uint(b%statesPerWord)) & 3)
}

// sameLocked returns how many blocks of a mixed run, from lo on and below hi,
// have the state s without a gap. For another kind it answers likewise.
func (t *Table) sameLocked(run, lo, hi int64, s State) int64 {
	if k := t.kinds[run]; k != mixed {
		if State(k) == s {
			return hi - lo
		}
		return 0
	}
	words := t.states[run*wordsPerRun : (run+1)*wordsPerRun]
	for b := lo; b < hi; {
		w, in := b/statesPerWord, b%statesPerWord
		diff := (words[w] ^ pattern(s)) >> (2 * uint(in))
		if diff != 0 {
			b += int64(bits.TrailingZeros64(diff)) / 2
			return min(b, hi) - lo
		}
		b = (w + 1) * statesPerWord
	}
	return hi - lo
}

// setRunLocked gives the blocks [lo, hi) of a run the state s.
func (t *Table) setRunLocked(run, lo, hi int64, s State) {
	whole := lo == 0 && hi == t.runBlocksLocked(run)
	if whole && s != Data {
		t.setWholeLocked(run, s)
		return
	}
	words := t.mixLocked(run)
	for b := lo; b < hi; {
		w, in := b/statesPerWord, b%statesPerWord
		end := min(hi-w*statesPerWord, statesPerWord)
		m := span(in, end)
		t.countLocked(words[w], m, -1)
		words[w] = words[w]&^m | pattern(s)&m
		b = w*statesPerWord + end
	}
	t.counts[s] += hi - lo
	if s == Zero && t.sameLocked(run, 0, t.runBlocksLocked(run), Zero) == t.runBlocksLocked(run) {
		t.setWholeLocked(run, Zero)
	}
}

// setWholeLocked gives all blocks of a run the state s, which is not Data.
func (t *Table) setWholeLocked(run int64, s State) {
	n := t.runBlocksLocked(run)
	if k := t.kinds[run]; k != mixed {
		t.counts[k] -= n
	} else {
		t.countRunLocked(run, -1)
	}
	t.counts[s] += n
	t.kinds[run] = uint8(s)
	if t.pages[run] != nil {
		t.dropPageLocked(run)
	}
}

// mixLocked makes a run mixed, and returns the words of its states.
func (t *Table) mixLocked(run int64) []uint64 {
	if t.states == nil {
		t.states = make([]uint64, int64(len(t.kinds))*wordsPerRun)
	}
	words := t.states[run*wordsPerRun : (run+1)*wordsPerRun]
	if k := t.kinds[run]; k != mixed {
		for i := range words {
			words[i] = pattern(State(k))
		}
		t.kinds[run] = mixed
	}
	return words
}

// countLocked adds sign times the states of a word under a mask to counts.
func (t *Table) countLocked(word, mask uint64, sign int64) {
	lo, hi := word&mask&lowBits, word&mask>>1&lowBits
	zero := int64(bits.OnesCount64(lo &^ hi))
	data := int64(bits.OnesCount64(hi &^ lo))
	failed := int64(bits.OnesCount64(hi & lo))
	t.counts[Zero] += sign * zero
	t.counts[Data] += sign * data
	t.counts[Failed] += sign * failed
	t.counts[Unknown] += sign * (int64(bits.OnesCount64(mask))/2 - zero - data - failed)
}

// countRunLocked adds sign times the states of a mixed run to counts.
func (t *Table) countRunLocked(run, sign int64) {
	n := t.runBlocksLocked(run)
	for w := int64(0); w*statesPerWord < n; w++ {
		t.countLocked(t.states[run*wordsPerRun+w], span(0, min(n-w*statesPerWord, statesPerWord)), sign)
	}
}

// dropDataLocked forgets the page of a run, which left the cache, and makes
// its data blocks unknown.
func (t *Table) dropDataLocked(run int64) {
	t.pages[run] = nil
	if t.kinds[run] != mixed {
		return
	}
	words := t.states[run*wordsPerRun : (run+1)*wordsPerRun]
	for i, w := range words {
		data := w >> 1 &^ w & lowBits
		n := int64(bits.OnesCount64(data))
		t.counts[Data] -= n
		t.counts[Unknown] += n
		words[i] = w &^ (data << 1)
	}
}
