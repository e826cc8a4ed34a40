package hasher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// memSource is a source in memory whose operations take time, in two halves,
// so that others can come between: like a disk, it may be read half written.
// It can fail, and can be changed behind the image's back.
type memSource struct {
	park func(where string) // never nil

	mu      sync.Mutex
	data    []byte
	hole    []bool // by block of holeBlock bytes; a hole's bytes are zero
	bad     map[int64]bool
	failing bool // the next write stops half way
	late    bool // the next write is done some time after it has failed
	short   bool // the next read ends early, without an error
	loses   bool // the next flush fails, and loses what was written somewhere
	atOnce  bool // changes by somebody else are not torn
	lates   sync.WaitGroup
	noZero  bool // Zero is not supported
	stamp   Stamp
	reads   int64 // bytes
	calls   int   // of ReadAt
	asked   int   // calls of Extents

	changing bool // somebody else's write is under way
	// written is called with mu held when a write or zero has ended, whole
	// or not.
	written func(off, n int64)
}

const holeBlock = 32

func newMemSource(size int) *memSource {
	m := &memSource{
		data: make([]byte, size), hole: make([]bool, size/holeBlock+1),
		bad: map[int64]bool{}, park: func(string) {}, written: func(int64, int64) {},
	}
	for i := range m.hole {
		m.hole[i] = true
	}
	m.touchLocked()
	m.stamp.CTime -= int64(time.Hour) // settled
	return m
}

// newFullSource returns a source of size bytes that has no hole and no zero.
func newFullSource(size int) *memSource {
	m := newMemSource(size)
	for i := range m.data {
		m.data[i] = byte(i) | 1
	}
	clear(m.hole)
	return m
}

// readBytes returns how many bytes were read; a job that nobody waits for may
// be reading yet.
func (m *memSource) readBytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads
}

func (m *memSource) resetReads() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads = 0
}

// modelTick is the granularity of the source's clock.
const modelTick = 10 * time.Millisecond

func (m *memSource) touchLocked() {
	now := time.Now().Truncate(modelTick).UnixNano() - 1
	m.stamp.MTime, m.stamp.CTime, m.stamp.Size = now, now, int64(len(m.data))
}

func (m *memSource) Size() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stamp.Size
}

func (m *memSource) Close() error { return nil }

func (m *memSource) Stamp() (Stamp, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stamp.Size = int64(len(m.data))
	return m.stamp, nil
}

func (m *memSource) AwaitWriters() error {
	for {
		m.mu.Lock()
		changing := m.changing
		m.mu.Unlock()
		if !changing {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}

// halves calls f for the two halves of a range, with a break before, between
// and after them.
func (m *memSource) halves(where string, off, n int64, f func(off, n int64) bool) {
	m.park(where)
	m.mu.Lock()
	ok := f(off, n/2)
	m.mu.Unlock()
	m.park(where)
	if ok {
		m.mu.Lock()
		f(off+n/2, n-n/2)
		m.mu.Unlock()
		m.park(where)
	}
}

func (m *memSource) ReadAt(p []byte, off int64) (int, error) {
	got, err := 0, error(nil)
	m.halves("read", off, int64(len(p)), func(at, n int64) bool {
		for b := at / holeBlock; b*holeBlock < at+n; b++ {
			if m.bad[b] {
				n = max(0, b*holeBlock-at)
				err = syscall.EIO
				break
			}
		}
		if at+n > int64(len(m.data)) {
			n = max(0, int64(len(m.data))-at)
			err = io.EOF
		}
		if m.short && n > 1 {
			m.short = false
			n /= 2
			copy(p[at-off:at-off+n], m.data[at:])
			got += int(n)
			m.reads += n
			return false
		}
		copy(p[at-off:at-off+n], m.data[min(at, int64(len(m.data))):])
		got += int(n)
		m.reads += n
		return err == nil
	})
	m.mu.Lock()
	m.calls++
	m.mu.Unlock()
	return got, err
}

func (m *memSource) Writable() bool { return true }

// Flush loses a write when it fails, as a disk with a cache of its own may.
func (m *memSource) Flush() error {
	m.park("flush")
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loses {
		return nil
	}
	m.loses = false
	n := min(16, int64(len(m.data)))
	for i := range n {
		m.data[i] ^= 0x55
	}
	m.unholeLocked(0, n)
	m.written(0, n)
	return syscall.EIO
}

func (m *memSource) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	late := m.late
	m.late = false
	m.mu.Unlock()
	if late {
		m.park("write")
		p = append([]byte(nil), p...)
		s := &span{off, off + int64(len(p))}
		m.lates.Go(func() { m.writeLate(p, s) })
		return 0, fmt.Errorf("timeout: %w", ErrUnknownOutcome)
	}
	put, err := 0, error(nil)
	m.halves("write", off, int64(len(p)), func(at, n int64) bool {
		copy(m.data[at:at+n], p[at-off:])
		m.unholeLocked(at, n)
		m.touchLocked()
		put += int(n)
		if m.failing {
			m.failing = false
			err = syscall.ENOSPC
		}
		return err == nil
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written(off, int64(len(p)))
	return put, err
}

// writeLate does a write that has failed already, also over a later one.
func (m *memSource) writeLate(p []byte, s *span) {
	for range 5 {
		m.park("late")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(m.data[s.lo:], p)
	m.unholeLocked(s.lo, int64(len(p)))
	m.written(s.lo, int64(len(p)))
}

func (m *memSource) unholeLocked(off, n int64) {
	for b := off / holeBlock; n > 0 && b*holeBlock < off+n; b++ {
		m.hole[b] = false
	}
}

func (m *memSource) Zero(off, length int64, punch bool) error {
	if m.noZero {
		return ErrNotSupported
	}
	err := error(nil)
	m.halves("zero", off, length, func(at, n int64) bool {
		clear(m.data[at : at+n])
		if punch {
			for b := (at + holeBlock - 1) / holeBlock; (b+1)*holeBlock <= at+n; b++ {
				m.hole[b] = true
			}
		}
		m.touchLocked()
		if m.failing {
			m.failing = false
			err = syscall.EIO
		}
		return err == nil
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written(off, length)
	return err
}

func (m *memSource) Allocate(off, length int64) error { return nil }

func (m *memSource) Extents(_ context.Context, off, length int64, yield func(Extent) bool) error {
	m.park("extents")
	for at := off; at < off+length; {
		m.mu.Lock()
		b := at / holeBlock
		hole := m.hole[b]
		for b++; b*holeBlock < off+length && m.hole[b] == hole; b++ {
		}
		m.mu.Unlock()
		e := Extent{Offset: at, Length: min(b*holeBlock, off+length) - at}
		if hole {
			e.Type = ExtentHole | ExtentZero
		}
		m.park("extents")
		if !yield(e) {
			return nil
		}
		at = e.End()
	}
	return nil
}

// change is a write by somebody else: the stamp moves first, as it does for
// write(2), then the bytes.
func (m *memSource) change(p []byte, off int64) {
	m.mu.Lock()
	m.touchLocked()
	m.changing = true
	m.mu.Unlock()
	if m.atOnce {
		m.mu.Lock()
		copy(m.data[off:], p)
		m.unholeLocked(off, int64(len(p)))
		m.changing = false
		m.written(off, int64(len(p)))
		m.mu.Unlock()
		return
	}
	m.halves("outside", off, int64(len(p)), func(at, n int64) bool {
		copy(m.data[at:at+n], p[at-off:])
		m.unholeLocked(at, n)
		return true
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changing = false
	m.written(off, int64(len(p)))
}

// resize is a truncate(2) by somebody else.
func (m *memSource) resize(size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data = append(m.data[:min(size, len(m.data))], make([]byte, max(0, size-len(m.data)))...)
	m.hole = append(m.hole[:min(size/holeBlock+1, len(m.hole))], make([]bool, max(0, size/holeBlock+1-len(m.hole)))...)
	m.touchLocked()
}

// partlyCached is a source of which some ranges are cached, and others in part.
type partlyCached struct{ *memSource }

func (s partlyCached) Cached(off, length int64) int64 {
	return length * (off / 8 % 3) / 2
}

func (s partlyCached) ScanAt(p []byte, off int64, wait bool) (int, error) {
	if n := s.Cached(off, int64(len(p))); !wait && n < int64(len(p)) {
		got, err := s.ReadAt(p[:n], off)
		if err == nil {
			err = ErrWouldWait
		}
		return got, err
	}
	return s.ReadAt(p, off)
}

// inPlace is a memSource that can be looked at in place. Every third look is left
// in its midst, when it has seen something else.
type inPlace struct {
	*memSource
	looks   atomic.Int64
	longest atomic.Int64 // bytes
}

func (s *inPlace) Map(off, length int64, use func(p []byte)) error {
	for was := s.longest.Load(); length > was && !s.longest.CompareAndSwap(was, length); was = s.longest.Load() {
	}
	p := make([]byte, length)
	if n, err := s.ReadAt(p, off); int64(n) < length {
		return errors.Join(err, errLeft)
	}
	if s.looks.Add(1)%3 == 0 {
		for i := range p {
			p[i] ^= 0x55
		}
		use(p)
		return errLeft
	}
	use(p)
	return nil
}

var errLeft = errors.New("a byte is gone")

// queued is a memSource with queues, whose reads are made at once.
type queued struct{ *memSource }

func (q queued) Queue() ReadQueue         { return &memQueue{src: q.memSource} }
func (q queued) Queueing() (int64, int64) { return pieceBytes, 2 * pieceBytes }

type memQueue struct {
	src   *memSource
	reads []chan readResult
}

type readResult struct {
	n   int
	err error
}

func (q *memQueue) Submit(p []byte, off int64) {
	c := make(chan readResult, 1)
	q.reads = append(q.reads, c)
	go func() {
		n, err := q.src.ReadAt(p, off)
		c <- readResult{n, err}
	}()
}

func (q *memQueue) Next(wait bool) (int, error) {
	if !wait && len(q.reads[0]) == 0 {
		return 0, ErrWouldWait
	}
	r := <-q.reads[0]
	q.reads = q.reads[1:]
	return r.n, r.err
}

func (q *memQueue) Close() {
	for _, c := range q.reads {
		<-c
	}
}

// unstamped is a memSource whose changes from outside cannot be seen.
type unstamped struct {
	Source
	ExtentSource
	WritableSource
	ZeroSource
}

var (
	_ ExtentSource   = (*memSource)(nil)
	_ WritableSource = (*memSource)(nil)
	_ ZeroSource     = (*memSource)(nil)
	_ StampedSource  = (*memSource)(nil)
	_ QueueSource    = queued{}
)
