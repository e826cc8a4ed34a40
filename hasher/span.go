package hasher

import "slices"

// span is a range of blocks, lo inclusive, hi exclusive.
type span struct{ lo, hi int64 }

func (s span) overlaps(o span) bool { return s.lo < o.hi && o.lo < s.hi }

// maxSpans bounds a spans; beyond it, neighbours are taken together.
const maxSpans = 64

// spans is a set of blocks: sorted spans that neither overlap nor touch.
type spans []span

// add puts s into the set. Past maxSpans the set grows by the blocks between
// its members, which suits its use here: a set of blocks not to be trusted.
func (ss *spans) add(s span) {
	i, _ := slices.BinarySearchFunc(*ss, s.lo, func(e span, lo int64) int {
		if e.hi < lo {
			return -1
		}
		return 1
	})
	j := i
	for j < len(*ss) && (*ss)[j].lo <= s.hi {
		s.lo = min(s.lo, (*ss)[j].lo)
		s.hi = max(s.hi, (*ss)[j].hi)
		j++
	}
	*ss = slices.Replace(*ss, i, j, s)
	if len(*ss) > maxSpans {
		*ss = spans{{(*ss)[0].lo, (*ss)[len(*ss)-1].hi}}
	}
}

// remove takes s out of the set.
func (ss *spans) remove(s span) {
	var rest spans
	for _, e := range *ss {
		if e.lo < min(e.hi, s.lo) {
			rest = append(rest, span{e.lo, min(e.hi, s.lo)})
		}
		if max(e.lo, s.hi) < e.hi {
			rest = append(rest, span{max(e.lo, s.hi), e.hi})
		}
	}
	*ss = rest
}

// has reports whether block b is in the set, and for how many of the n blocks
// from there on the answer is the same.
func (ss spans) has(b, n int64) (bool, int64) {
	i, _ := slices.BinarySearchFunc(ss, b, func(e span, b int64) int {
		if e.hi <= b {
			return -1
		}
		return 1
	})
	switch {
	case i == len(ss):
		return false, n
	case b < ss[i].lo:
		return false, min(n, ss[i].lo-b)
	}
	return true, min(n, ss[i].hi-b)
}
