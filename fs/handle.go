package fs

import (
	"context"
	"sync"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// A reader is the content of one open virtual file. readAt may be called from
// several goroutines at once; close comes after all of them.
type reader interface {
	// readAt fills dest from off on and returns the number of bytes, which
	// is less than len(dest) only at the end of the file. It keeps neither
	// ctx nor dest.
	readAt(ctx context.Context, dest []byte, off int64) (int, error)
	close()
}

// A handle is an open virtual file.
type handle struct {
	m *mount
	d *imageDir // nil for files that belong to no image
	r reader
	// name is that of the file, for messages.
	name string
	live *liveTime // of the file; nil for one that changes with its image
}

var (
	_ fusefs.FileReader   = (*handle)(nil)
	_ fusefs.FileReleaser = (*handle)(nil)
)

// openFlags are those of every virtual file. Reads go past the page cache, so
// that a reader can be interrupted and sees its own handle's moment, and close
// needs no request.
const openFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH

func (m *mount) newHandle(h *handle) *handle {
	h.m = m
	m.metrics.handles.Add(1)
	if h.live != nil {
		h.live.opened()
	}
	return h
}

func (h *handle) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	ctx, cancel := h.m.deadline(ctx)
	defer cancel()
	n, err := h.read(ctx, dest, off)
	if err != nil {
		return nil, h.m.fail(ctx, h.d, "read "+h.name, err)
	}
	return fuse.ReadResultData(dest[:n]), 0
}

func (h *handle) read(ctx context.Context, dest []byte, off int64) (int, error) {
	if _, rendered := h.r.(text); !rendered {
		leave, err := h.m.limits.enter(ctx)
		if err != nil {
			return 0, err
		}
		defer leave()
	}
	return h.r.readAt(ctx, dest, off)
}

func (h *handle) Release(ctx context.Context) syscall.Errno {
	h.m.metrics.handles.Add(-1)
	if h.live != nil {
		h.live.closed()
	}
	h.r.close()
	return 0
}

// liveTime is the modification time of a file that differs from one moment to
// the next: now, but while it is open that of the last open, whose content is
// what is read. tar would find that the file changes under its hands.
type liveTime struct {
	// mu guards the rest.
	mu    sync.Mutex
	users int
	last  time.Time
}

func (l *liveTime) opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users++
	l.last = time.Now()
}

func (l *liveTime) closed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users--
}

func (l *liveTime) get() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users > 0 {
		return l.last
	}
	return time.Now()
}

// text is a file rendered when it was opened.
type text []byte

func (t text) readAt(ctx context.Context, dest []byte, off int64) (int, error) {
	if off >= int64(len(t)) {
		return 0, nil
	}
	return copy(dest, t[off:]), nil
}

func (t text) close() {}

// A lazyText is a file of known size that is computed when it is first read.
type lazyText struct {
	size    int64
	compute func(ctx context.Context) (text, error)
	// done is called once: as soon as the text is there, or at close.
	done func()
	end  sync.Once

	// mu guards text. It is not held while computing, so that each reader
	// can be interrupted for itself.
	mu   sync.Mutex
	text text
}

func (l *lazyText) readAt(ctx context.Context, dest []byte, off int64) (int, error) {
	if off >= l.size {
		return 0, nil
	}
	t := l.known(nil)
	if t == nil {
		computed, err := l.compute(ctx)
		// Another reader may have come first, and by done taken from under
		// us what our own computation needed; then err does not matter.
		if t = l.known(computed); t == nil {
			return 0, err
		}
		l.end.Do(l.done)
	}
	return t.readAt(ctx, dest, off)
}

// known returns the text, taking t for it if there is none yet.
func (l *lazyText) known(t text) text {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text == nil {
		l.text = t
	}
	return l.text
}

func (l *lazyText) close() { l.end.Do(l.done) }
