package qemunbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A child that dies sooner than steady after its start is started again
	// after a pause, which doubles from minPause to maxPause.
	steady   = 10 * time.Second
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second

	// openTries is how often an image that is being changed is opened.
	openTries = 3

	// closeTimeout is longer than it takes to stop a child.
	closeTimeout = stopWritable + killTimeout + 5*time.Second

	// changeTimeout bounds Stamp's wait for a child that is started.
	changeTimeout = 10 * time.Second
)

var (
	// ErrBusy: the files of the chain do not hold still.
	ErrBusy = errors.New("its files are being changed")

	// ErrClosed: the server is closed.
	ErrClosed = errors.New("closed")
)

// Options say what to serve, and how.
type Options struct {
	Path       string
	Format     string       // one of those that Known knows; "" goes by the suffix
	Writable   bool         // not with Snapshot
	Snapshot   string       // name or ID of an internal snapshot of a qcow2, "" is none
	TrustChain bool         // serve files that the image's owner could not open
	Name       string       // of the image, for the log; "" is the path
	Log        *slog.Logger // nil is slog's default
}

// A Server is an image that a child serves.
type Server struct {
	opts     Options
	log      *slog.Logger
	dir      *socketDir
	restarts atomic.Uint64
	ctx      context.Context // ends at Close
	cancel   context.CancelFunc
	ended    chan struct{} // closed when nothing is left of it

	mu  sync.Mutex // guards now, is never held across I/O
	now *state

	// walking guards places: a walk and a look would see each other's
	// half-made hops. A file system that hangs may hold it for long.
	walking sync.Mutex
	places  places
}

// A state is replaced as a whole, and next is closed then.
type state struct {
	child *child // nil while there is none
	chain *chain // the child's, or that of the last one; nil after Close
	err   error  // why there is none; nil while one is started
	next  chan struct{}
}

// Start serves an image and returns when it can be reached at URI.
func Start(ctx context.Context, o Options) (*Server, error) {
	format, err := chooseFormat(o.Path, o.Format)
	if err != nil {
		return nil, err
	}
	if o.Snapshot != "" && o.Writable {
		return nil, fmt.Errorf("open %s: a snapshot cannot be written: leave out one of snapshot and writable", show(o.Path))
	}
	if o.Snapshot != "" && format != "qcow2" {
		return nil, fmt.Errorf("open %s: format %s has no snapshots: only qcow2 has", show(o.Path), format)
	}
	o.Format = format
	if o.Name == "" {
		o.Name = o.Path
	}
	if o.Path, err = filepath.Abs(o.Path); err != nil { // a daemon leaves its directory
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Log = o.Log.With("image", o.Name, "file", show(o.Path))
	s := &Server{opts: o, log: o.Log, places: places{}, ended: make(chan struct{})}
	if s.dir, err = newSocketDir(); err != nil {
		return nil, fmt.Errorf("open %s: %w", show(o.Path), err)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	first, err := s.spawn(ctx, nil)
	if err != nil {
		s.cancel()
		s.release()
		return nil, err
	}
	s.now = &state{child: first, chain: first.chain, next: make(chan struct{})}
	go s.supervise(first)
	return s, nil
}

// spawn opens the chain and starts a child for it. before is the chain that was
// served until now, if any.
func (s *Server) spawn(ctx context.Context, before *chain) (*child, error) {
	for range openTries {
		c, err := s.open(before)
		if err != nil {
			return nil, err
		}
		// QEMU must not have read tables of which a later change cannot be
		// told from the state that it read.
		first, err := s.lookAt(c)
		if err == nil {
			err = pause(ctx, c.unsettled(time.Now()))
		}
		if err != nil {
			c.close()
			return nil, fmt.Errorf("open %s: %w", show(s.opts.Path), err)
		}
		c.awaitWriters()
		if second, err := s.lookAt(c); err == nil && second.readOnly == first.readOnly {
			return launch(ctx, c, second, &s.opts, s.dir)
		}
		c.close()
	}
	return nil, fmt.Errorf("open %s: %w", show(s.opts.Path), ErrBusy)
}

func (s *Server) open(before *chain) (*chain, error) {
	s.walking.Lock()
	defer s.walking.Unlock()
	return openChain(&s.opts, before, s.places)
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// supervise keeps a child running until Close.
func (s *Server) supervise(ch *child) {
	defer close(s.ended)
	defer s.release()
	for ch != nil {
		select {
		case <-ch.done:
		case <-s.ctx.Done():
			ch.stop()
			s.set(&state{err: ErrClosed})
			ch.close()
			return
		}
		ch = s.replace(ch)
	}
}

// replace starts another child after old has ended. It returns nil at Close.
func (s *Server) replace(old *child) *child {
	s.restarts.Add(1)
	wait := minPause
	switch {
	case old.outdated.Load():
		s.log.Info("a file of the image was changed: it is opened again")
		wait = 0
	case time.Since(old.started) >= steady:
		wait = 0
		fallthrough
	default:
		s.log.Error("qemu-nbd died and is started again", "cause", old.exit)
	}
	s.set(&state{chain: old.chain})
	defer old.close()
	last := ""
	for {
		err := pause(s.ctx, wait)
		var ch *child
		if err == nil {
			ch, err = s.spawn(s.ctx, old.chain)
		}
		if s.ctx.Err() != nil {
			if ch != nil {
				ch.stop()
				ch.close()
			}
			s.set(&state{err: ErrClosed})
			return nil
		}
		if err == nil {
			s.set(&state{child: ch, chain: ch.chain})
			return ch
		}
		if err.Error() != last {
			last = err.Error()
			s.log.Error("qemu-nbd cannot be started again", "cause", err)
		}
		s.set(&state{err: err, chain: old.chain})
		wait = min(max(2*wait, minPause), maxPause)
	}
}

func (s *Server) set(next *state) {
	next.next = make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.now.next)
	s.now = next
}

// release removes what Start made. No child runs any more.
func (s *Server) release() {
	s.dir.remove()
	if !s.walking.TryLock() {
		return // somebody hangs there
	}
	defer s.walking.Unlock()
	for _, p := range s.places {
		p.close()
	}
	clear(s.places)
}

// URI returns where the image is served, an NBD URI. It stays the same.
func (s *Server) URI() string {
	return "nbd+unix:///?socket=" + strings.ReplaceAll(url.QueryEscape(s.dir.socket()), "+", "%20")
}

// Restarts counts the children that ended. It moves before another one can be
// reached: who sees it move, or an error, must forget what an earlier one said.
func (s *Server) Restarts() uint64 { return s.restarts.Load() }

// Close ends the child and removes its socket. Nobody should be connected by
// then. It returns after a bounded time, even if the child cannot be ended.
func (s *Server) Close() error {
	s.cancel()
	select {
	case <-s.ended:
		return nil
	case <-time.After(closeTimeout):
		return fmt.Errorf("close %s: %s or its files hang", show(s.opts.Path), program)
	}
}
