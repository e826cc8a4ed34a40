package integration

import (
	"crypto/sha256"
	"slices"

	"golang.org/x/sys/unix"
)

// A modelState is the image after some ops of each writer, and its digests.
type modelState struct {
	p      *plan
	own    [][]segment // of each writer
	done   []uint64    // ops of each writer
	bytes  []byte
	oracle *oracle
	dirty  map[int64]bool // blocks whose digest is to be computed again
}

// loadState takes over the model as it is.
func loadState(p *plan) (*modelState, error) {
	s := &modelState{p: p, done: make([]uint64, p.Writers), bytes: make([]byte, p.Size), dirty: map[int64]bool{}}
	m, err := openModel(p)
	if err != nil {
		return nil, err
	}
	for w := range p.Writers {
		s.own = append(s.own, p.segments(w))
		err := m.with(w, unix.LOCK_SH, func() {
			s.done[w] = m.ops[w]
			for _, g := range s.own[w] {
				copy(s.bytes[g.lo:g.hi], m.bytes[g.lo:g.hi])
			}
		})
		if err != nil {
			return nil, err
		}
	}
	s.oracle = newOracleOf(sha256.New, p.Bs, s.bytes)
	return s, nil
}

// advance does a writer's ops up to the one of number end.
func (s *modelState) advance(writer int, end uint64) {
	for ; s.done[writer] < end; s.done[writer]++ {
		o := s.p.op(writer, s.done[writer], s.own[writer])
		o.apply(s.bytes)
		for b := o.lo / s.p.Bs; b*s.p.Bs < o.hi; b++ {
			s.dirty[b] = true
		}
	}
}

// digests returns the oracle of the state. It is good until the next call.
func (s *modelState) digests() *oracle {
	for b := range s.dirty {
		s.oracle.put(b, digest(sha256.New, s.block(b)))
	}
	clear(s.dirty)
	return s.oracle
}

// block returns the bytes of a block.
func (s *modelState) block(b int64) []byte {
	return s.bytes[b*s.p.Bs : min((b+1)*s.p.Bs, s.p.Size)]
}

// maxMoments bounds the states that one view is compared with.
const maxMoments = 64

// moments returns the digests of all states from this one to that after
// started ops of each writer: a view may be of any of them when the ops were
// under way as it was opened. nil: they are too many.
func (s *modelState) moments(started []uint64) (all []*oracle) {
	n := uint64(1)
	for w, end := range started {
		// A writer's model may be an op ahead of what it has told.
		if end = max(end, s.done[w]); end-s.done[w] >= maxMoments {
			return nil
		}
		n *= end - s.done[w] + 1
	}
	if n > maxMoments {
		return nil
	}
	all = []*oracle{s.digests()}
	ops := [][]op{nil} // that lead to each of all
	for w, end := range started {
		for from := range len(all) {
			list := ops[from]
			for k := s.done[w]; k < end; k++ {
				list = append(slices.Clone(list), s.p.op(w, k, s.own[w]))
				all, ops = append(all, s.after(list)), append(ops, list)
			}
		}
	}
	return all
}

// after returns the digests of the state after some more ops. The order of
// those of different writers does not matter, since their bytes are different.
func (s *modelState) after(list []op) *oracle {
	o := *s.oracle
	o.blocks = slices.Clone(o.blocks)
	touched := map[int64][]byte{}
	for _, op := range list {
		content := make([]byte, op.hi-op.lo)
		if op.mode == 0 {
			op.content(content)
		}
		for b := op.lo / s.p.Bs; b*s.p.Bs < op.hi; b++ {
			if touched[b] == nil {
				touched[b] = slices.Clone(s.block(b))
			}
			start := b * s.p.Bs
			from := max(op.lo, start)
			copy(touched[b][from-start:], content[from-op.lo:])
		}
	}
	for b, content := range touched {
		o.put(b, digest(sha256.New, content))
	}
	return &o
}
