package cli

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// logPatience is how long a message may hold up whoever has it. A log that
	// does not take it (a pipe that nobody reads, a syslog that hangs) would
	// otherwise hold up the image, and so a guest, for as long.
	logPatience = 100 * time.Millisecond

	// maxQueued is how many messages wait for such a log. More are lost.
	maxQueued = 1000
)

// A queueHandler has another handler write its records, one after the other.
// It returns when that is done, or without waiting for it while the log is
// stuck.
type queueHandler struct {
	slog.Handler
	q *logQueue
}

type logQueue struct {
	writes chan func()
	stuck  atomic.Bool  // the last message was not written in time
	lost   atomic.Int64 // messages, since the last one that was written
}

// newQueueHandler writes by h. It is there for as long as the process.
func newQueueHandler(h slog.Handler) slog.Handler {
	q := &logQueue{writes: make(chan func(), maxQueued)}
	go func() {
		for write := range q.writes {
			write()
			q.stuck.Store(false)
			if n := q.lost.Swap(0); n > 0 {
				r := slog.NewRecord(time.Now(), slog.LevelWarn, "messages were lost, since the log did not take them", 0)
				r.AddAttrs(slog.Int64("messages", n))
				_ = h.Handle(context.Background(), r)
			}
		}
	}()
	return queueHandler{h, q}
}

// Handle never fails: there is nobody to be told that the log is broken.
func (h queueHandler) Handle(ctx context.Context, r slog.Record) error {
	r = r.Clone()
	done := make(chan struct{})
	write := func() {
		defer close(done)
		_ = h.Handler.Handle(context.WithoutCancel(ctx), r)
	}
	select {
	case h.q.writes <- write:
	default:
		h.q.lost.Add(1)
		return nil
	}
	if h.q.stuck.Load() {
		return nil
	}
	patience := time.NewTimer(logPatience)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
		h.q.stuck.Store(true)
	}
	return nil
}

func (h queueHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return queueHandler{h.Handler.WithAttrs(attrs), h.q}
}

func (h queueHandler) WithGroup(name string) slog.Handler {
	return queueHandler{h.Handler.WithGroup(name), h.q}
}
