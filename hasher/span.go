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

// has reports whether block b is in the set, and for how many of the n blocks
// from there on the answer is the same.
func (ss spans) has(b, n int64) (bool, int64) {
	for _, s := range ss {
		if b < s.lo {
			return false, min(n, s.lo-b)
		}
		if b < s.hi {
			return true, min(n, s.hi-b)
		}
	}
	return false, n
}
