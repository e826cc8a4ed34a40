package hasher

// readAhead has the bytes of a range read by a queue, ahead of their turn, into a
// buffer that it goes round in. One goroutine at a time may use it.
type readAhead struct {
	im    *Image
	queue ReadQueue
	buf   []byte
	first int64 // where the range begins, and the buffer
	asked int64 // what is below was submitted
	end   int64 // of the range
}

// readAhead returns one for [off, end), which has to be closed, or nil where the
// source has no queue for it.
func (im *Image) readAhead(off, end int64) *readAhead {
	if im.queues == nil {
		return nil
	}
	q := im.queues.Queue()
	if q == nil {
		return nil
	}
	buf := im.pool.takeBuffer(int(im.aheadBytes))
	return &readAhead{im: im, queue: q, buf: buf, first: off, asked: off, end: end}
}

// submit has read what there is room for when nobody looks at what is below pos.
func (a *readAhead) submit(pos int64) {
	for a.asked < min(a.end, pos+int64(len(a.buf))) {
		a.queue.Submit(a.slot(a.asked, a.im.queuedBytes), a.asked)
		a.asked += a.im.queuedBytes
	}
}

// slot returns the part of the buffer that up to n bytes at off go to: a multiple of
// what is read at a time, of which the buffer is a multiple.
func (a *readAhead) slot(off, n int64) []byte {
	return a.buf[(off-a.first)%int64(len(a.buf)):][:min(n, a.end-off)]
}

// close waits for reads that are left.
func (a *readAhead) close() {
	a.queue.Close()
	a.im.pool.giveBuffer(a.buf)
}
