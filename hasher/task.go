package hasher

import (
	"context"
	"sync/atomic"
	"time"
)

// Linger is how long work goes on when nobody waits for it any more: a client
// that is interrupted by a signal of its own comes back at once, and finds it.
const Linger = time.Second

// waiters counts who waits for a piece of work, and stops the work a while
// after the last one left. The image's mutex guards it.
type waiters struct {
	n       int
	stopped bool // nobody may join any more
	timer   *time.Timer
}

// joinLocked adds one who waits. It reports false if the work was stopped.
func (w *waiters) joinLocked() bool {
	if w.stopped {
		return false
	}
	w.n++
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	return true
}

// leaveLocked takes one away. When none is left, stop is called, with the
// image's mutex held: at once, or after a while if nobody joined until then.
func (w *waiters) leaveLocked(im *Image, atOnce bool, stop func()) {
	w.n--
	if w.n > 0 || w.stopped {
		return
	}
	if atOnce {
		w.stopped = true
		stop()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(Linger, func() {
		im.mu.Lock()
		defer im.mu.Unlock()
		// A timer that fired while it was being stopped is not the one kept.
		if w.timer == timer && w.n == 0 {
			w.stopped = true
			stop()
		}
	})
	w.timer = timer
}

// A task is a computation that several may wait for and that none of them
// owns: it has a context of its own.
type task struct {
	waiters
	done   chan struct{} // closed when the result and err are set
	err    error
	cancel context.CancelFunc

	file      string
	total     int64 // bytes
	doneBytes atomic.Int64
	started   time.Time
}

// A taskFor is a task with its result.
type taskFor[T any] struct {
	task
	result T
}

// share waits for the task in slot, starting it if there is none, and returns
// its result. When ctx ends first, the caller leaves with the context's error.
func share[T any](ctx context.Context, im *Image, slot **taskFor[T], file string, total int64,
	compute func(context.Context, *task) (T, error)) (result T, err error) {
	im.mu.Lock()
	t := *slot
	if t == nil || !t.joinLocked() {
		t = startLocked(im, slot, file, total, compute)
		t.joinLocked()
	}
	im.mu.Unlock()
	select {
	case <-t.done:
	case <-ctx.Done():
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	t.leaveLocked(im, false, t.cancel)
	select {
	case <-t.done:
		return t.result, t.err
	default:
		return result, ctx.Err()
	}
}

func startLocked[T any](im *Image, slot **taskFor[T], file string, total int64,
	compute func(context.Context, *task) (T, error)) *taskFor[T] {
	ctx, cancel := context.WithCancel(context.Background())
	t := &taskFor[T]{task: task{
		done: make(chan struct{}), cancel: cancel, file: file, total: total, started: time.Now(),
	}}
	*slot = t
	im.tasks[&t.task] = struct{}{}
	im.background.Go(func() {
		defer cancel()
		result, err := compute(ctx, &t.task)
		im.mu.Lock()
		defer im.mu.Unlock()
		t.result, t.err = result, err
		t.stopped = true
		if *slot == t {
			*slot = nil
		}
		delete(im.tasks, &t.task)
		close(t.done)
	})
	return t
}
