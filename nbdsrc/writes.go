package nbdsrc

import "sync"

// writes are the writes of one session, for what of them the server may not keep
// when the session ends. A flush covers those that were answered before it was sent.
type writes struct {
	lost func() // called, once or more, when what was answered may be lost

	mu      sync.Mutex
	begun   uint64              // counts them
	pending map[uint64]struct{} // by number: begun and not ended
	done    uint64              // the last that succeeded
	flushed uint64              // all up to this number are durable
	over    bool                // the session has ended
}

// begin notes a write that is to be sent, and returns its number for end.
func (w *writes) begin() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	if w.pending == nil {
		w.pending = map[uint64]struct{}{}
	}
	w.pending[w.begun] = struct{}{}
	return w.begun
}

// end notes whether a write was done, or a part of it: of one that failed its
// caller knows.
func (w *writes) end(number uint64, done bool) {
	w.mu.Lock()
	delete(w.pending, number)
	if done {
		w.done = max(w.done, number)
	}
	late := done && w.over
	w.mu.Unlock()
	if late {
		w.lost()
	}
}

// covered returns up to which number a flush that is sent now makes writes
// durable.
func (w *writes) covered() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	covered := w.begun
	for number := range w.pending {
		covered = min(covered, number-1)
	}
	return covered
}

// flush notes that a flush for which covered returned that number was done.
func (w *writes) flush(covered uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushed = max(w.flushed, covered)
}

// finish notes that the session has ended.
func (w *writes) finish() {
	w.mu.Lock()
	w.over = true
	unflushed := w.done > w.flushed
	w.mu.Unlock()
	if unflushed {
		w.lost()
	}
}
