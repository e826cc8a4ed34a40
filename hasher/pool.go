package hasher

import (
	"hash"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pieceBytes is what a worker reads and hashes at a time: small enough
	// that the bytes are still in a core's own cache when they are hashed. See
	// Spec.pieceBytes.
	pieceBytes = 256 << 10

	// waitedBytes is what a worker reads at a time where it has to wait for it
	// and the source has no queues, and what a piece has at most.
	waitedBytes = 1 << 20

	// mappedBytes is what a worker looks at in place at a time. To map costs
	// as much as to copy some hundred kilobytes, and at its end all processors
	// that hash are interrupted to forget it; but all of it counts as resident
	// memory. Measured with 2 workers, BLAKE3 of 4 GiB: of 2 MiB each 0.59 s, of
	// 4 MiB 0.55 s, of 8 MiB 0.54 s.
	mappedBytes = 4 << 20

	// stepBytes is what it hashes in place at a time, or more where the assembly can
	// take more blocks together. Before all of a step is hashed the beginning of
	// each of its blocks is looked at, which maps the pages around: so those ahead
	// can be fetched, but for the next step's.
	stepBytes = 1 << 20

	// jobBytes is what a job covers, so that the price of a job (locks, a
	// look at the stamp, wake-ups, from a server the first reply) is paid once
	// for many pieces.
	jobBytes = 8 << 20

	// jobBlocks bounds the digests that a job of tiny blocks gives.
	jobBlocks = 4096

	// depthPerJob is how many jobs a reader has under way for each one that
	// may hash: the others wait for storage, which wants several requests at
	// a time.
	depthPerJob = 4

	// waitingQueues is how many jobs it has beside those that hash where they read
	// local storage by queues, of which each has several reads under way.
	waitingQueues = 4

	// maxWorkers bounds the threads of a pool, and with them the buffers.
	// One source that hangs keeps depthPerJob of them for each job and
	// reader at most.
	maxWorkers = 64

	// placePatience is how long a worker that has to wait keeps its place: the
	// switch to another thread is worth more than that.
	placePatience = 10 * time.Millisecond

	// workerIdle is how long a thread waits for another job.
	workerIdle = 10 * time.Second
)

// A Pool is the threads that read and hash, shared by the images of a mount.
// As many may hash at once as the pool has jobs; others may wait for storage
// meanwhile. Its methods may be called from several goroutines at once.
//
// A thread that has ended a job goes on with the next one, so that a pass over
// data in memory wakes nobody: a switch of threads costs as much as hashing
// some kilobytes.
type Pool struct {
	jobs int
	nice bool

	// mu guards the rest. It is taken last of all locks.
	mu      sync.Mutex
	wanted  sync.Cond // a job can be started, or closed
	place   sync.Cond // fewer than jobs are active
	queue   []func(*worker)
	workers int // threads
	idle    int // of them, waiting for a job
	active  int // of them, hashing: jobs at most
	back    int // of them, waiting to hash again
	closed  bool
	buffers buffers // none is taken while there are no threads

	done sync.WaitGroup
}

// worker is what a thread of the pool keeps from job to job.
type worker struct {
	pool    *Pool
	active  bool   // it is counted in the pool's active
	buf     []byte // grows to what was needed
	hashers map[Spec]*BlockHasher
	streams map[*Algorithm]hash.Hash

	patience *time.Timer   // of hold, made once: there is a call for each request
	left     chan struct{} // that it ran out
}

// NewPool returns a pool in which jobs threads may hash at once, or as many as
// there are processors if jobs is not positive.
//
// GOMAXPROCS grows by their number, and with nice they run at the lowest
// priority, so that hashing takes no processor away from goroutines that
// answer requests. Measured on 2 processors, Go 1.26, Linux 6.18: the 99.9th
// percentile of a 4 KiB read of an image is 4 ms so, and 21 ms with hashing on
// plain goroutines.
func NewPool(jobs int, nice bool) *Pool {
	if jobs <= 0 {
		jobs = runtime.NumCPU()
	}
	p := &Pool{jobs: jobs, nice: nice}
	p.wanted.L, p.place.L = &p.mu, &p.mu
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + jobs)
	return p
}

// Close ends the threads when the jobs that they are at are done. Jobs that
// are still queued are run with a nil worker, and so end without work.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	rest := p.queue
	p.queue = nil
	p.mu.Unlock()
	p.wanted.Broadcast()
	for _, run := range rest {
		run(nil)
	}
	p.done.Wait()
	runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)-p.jobs))
}

// submit queues a job. It never blocks and never runs the job itself, so it
// may be called with a lock that the job takes.
func (p *Pool) submit(run func(*worker)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		go run(nil)
		return
	}
	p.queue = append(p.queue, run)
	p.wakeLocked()
}

// do runs f on a thread of the pool and waits for it. When the pool is closed
// f is not called.
func (p *Pool) do(f func(*worker)) {
	done := make(chan struct{})
	p.submit(func(w *worker) {
		defer close(done)
		if w != nil {
			f(w)
		}
	})
	<-done
}

// wakeLocked has somebody go on, if there is work that may be done now: who
// was at a job before comes first.
func (p *Pool) wakeLocked() {
	switch {
	case p.active >= p.jobs:
	case p.back > 0:
		p.place.Signal()
	case len(p.queue) == 0:
	case p.idle > 0:
		p.wanted.Signal()
	case p.workers < maxWorkers:
		p.workers++
		p.done.Go(p.work)
	}
}

func (p *Pool) work() {
	// The thread ends with the goroutine, since it is never unlocked. It keeps
	// its buffer in its core's cache, which a goroutine on the move does not.
	runtime.LockOSThread()
	if p.nice {
		// Without the right to be nice the work is done all the same.
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19)
	}
	w := &worker{pool: p, hashers: map[Spec]*BlockHasher{}, streams: map[*Algorithm]hash.Hash{}}
	for {
		run := w.next()
		if run == nil {
			return
		}
		run(w)
	}
}

// next returns a job for the worker, which is active then, or nil when the
// thread shall end.
func (w *worker) next() func(*worker) {
	p := w.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.active {
		w.active = false
		p.active--
		if p.back > 0 {
			p.place.Signal()
		}
	}
	tired := false
	var timer *time.Timer
	for !p.closed && (len(p.queue) == 0 || p.active >= p.jobs || p.back > 0) && !tired {
		if timer == nil {
			timer = time.AfterFunc(workerIdle, func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				tired = true
				p.wanted.Broadcast()
			})
			defer timer.Stop()
		}
		p.idle++
		p.wanted.Wait()
		p.idle--
	}
	if p.closed || len(p.queue) == 0 || p.active >= p.jobs || p.back > 0 {
		w.endLocked()
		return nil
	}
	run := p.queue[0]
	p.queue = p.queue[1:]
	w.active = true
	p.active++
	p.wakeLocked()
	return run
}

// endLocked takes the worker out of its pool.
func (w *worker) endLocked() {
	p := w.pool
	p.workers--
	p.buffers.give(w.buf)
	if p.workers == 0 {
		p.buffers.release()
	}
}

// leave gives up the worker's place among those that hash, before it waits for
// something; enter waits until it has one again. A job begins with a place,
// and may end without.
func (w *worker) leave() {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	w.active = false
	w.pool.active--
	w.pool.wakeLocked()
}

func (w *worker) enter() {
	p := w.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.back++
	for p.active >= p.jobs {
		p.place.Wait()
	}
	p.back--
	w.active = true
	p.active++
	p.wakeLocked()
}

// hold calls f, which may wait for something but rarely does: should it take
// long, the worker gives up its place, and hold reports true.
func (w *worker) hold(f func()) (left bool) {
	if w.patience == nil {
		w.left = make(chan struct{}, 1)
		w.patience = time.AfterFunc(placePatience, func() {
			w.leave()
			w.left <- struct{}{}
		})
	} else {
		w.patience.Reset(placePatience)
	}
	f()
	if w.patience.Stop() {
		return false
	}
	<-w.left
	return true
}

// takeBuffer returns a buffer of n bytes for a job, which gives it back.
func (p *Pool) takeBuffer(n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buffers.take(n)
}

// hasLargeBuffers reports whether memory is taken for reads that have to be waited
// for.
func (p *Pool) hasLargeBuffers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.buffers.maps) > 0
}

func (p *Pool) giveBuffer(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buffers.give(b)
}

// buffer returns n bytes for pieces. What was there before is lost when it
// grows.
func (w *worker) buffer(n int) []byte {
	if len(w.buf) < n {
		w.pool.giveBuffer(w.buf)
		w.buf = w.pool.takeBuffer(n)
	}
	return w.buf[:n]
}

// hasher returns the worker's own hasher of blocks.
func (w *worker) hasher(s Spec) *BlockHasher {
	h := w.hashers[s]
	if h == nil {
		h = s.Algorithm.NewBlockHasher(s.BlockSize)
		w.hashers[s] = h
	}
	return h
}

// stream returns the worker's own stream of an algorithm, with nothing in it.
func (w *worker) stream(a *Algorithm) hash.Hash {
	h := w.streams[a]
	if h == nil {
		h = a.New()
		w.streams[a] = h
	}
	h.Reset()
	return h
}
