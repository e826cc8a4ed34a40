package nbdsrc

import (
	"slices"
	"sync"
)

// ranges keeps writes apart that must not overlap: one that reads a unit of
// alignment, changes a part and writes it back would undo what another wrote
// to it meanwhile. Writes of whole units may overlap each other; what that
// leaves is their callers' affair.
type ranges struct {
	// mu guards held. It is not held while a range is.
	mu    sync.Mutex
	freed sync.Cond // a range was let go of
	held  []*lockedRange
}

type lockedRange struct {
	lo, hi int64 // bytes, hi not included
	alone  bool
}

// lock waits until [lo, hi) can be written, alone or beside others that are
// not alone, and returns what lets go of it.
func (r *ranges) lock(lo, hi int64, alone bool) (unlock func()) {
	l := &lockedRange{lo, hi, alone}
	r.mu.Lock()
	defer r.mu.Unlock()
	for slices.ContainsFunc(r.held, l.excludes) {
		r.freed.Wait()
	}
	r.held = append(r.held, l)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		i := slices.Index(r.held, l)
		r.held = slices.Delete(r.held, i, i+1)
		r.freed.Broadcast()
	}
}

func (l *lockedRange) excludes(o *lockedRange) bool {
	return (l.alone || o.alone) && l.lo < o.hi && o.lo < l.hi
}
