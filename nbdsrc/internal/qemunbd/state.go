package qemunbd

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Stamp returns what tells the state of the chain that is served from another.
// When a file that QEMU only reads was changed or exchanged, it has the child
// started again and answers for the new one: Restarts has moved then. It fails
// when there is no child, or when the image would not hold still.
func (s *Server) Stamp() (Stamp, error) {
	deadline := time.NewTimer(changeTimeout)
	defer deadline.Stop()
	for range openTries {
		l, now, err := s.look(deadline.C)
		if err != nil {
			return Stamp{}, err
		}
		if !l.outdated(&now.child.look) {
			return l.stamp, nil
		}
		now.child.outdated.Store(true)
		go now.child.stop()
		select {
		case <-now.next:
		case <-deadline.C:
			return Stamp{}, fmt.Errorf("open %s again: %s does not end", show(s.opts.Path), program)
		}
	}
	return Stamp{}, fmt.Errorf("open %s again: %w", show(s.opts.Path), ErrBusy)
}

// look looks at the files of the child that runs, waiting for one that is
// started.
func (s *Server) look(deadline <-chan time.Time) (look, *state, error) {
	for {
		now := s.hold()
		if now.child != nil {
			defer now.chain.close()
			l, err := s.lookAt(now.chain)
			return l, now, err
		}
		if now.chain != nil {
			now.chain.close()
		}
		if now.err != nil {
			return look{}, nil, now.err
		}
		select {
		case <-now.next:
		case <-deadline:
			return look{}, nil, fmt.Errorf("open %s again: %s is not up yet", show(s.opts.Path), program)
		}
	}
}

// AwaitWriters returns when no write(2) to a file of the chain that was under
// way at the call still changes it, as far as the file system lets us wait.
func (s *Server) AwaitWriters() error {
	return s.with(func(c *chain) error {
		c.awaitWriters()
		return nil
	})
}

// Files returns the paths of the chain's files, the image's own first.
func (s *Server) Files() (paths []string) {
	_ = s.with(func(c *chain) error {
		for _, m := range c.members {
			paths = append(paths, m.place.path)
		}
		return nil
	})
	return paths
}

// Stat returns the status of the image's own file.
func (s *Server) Stat() (st unix.Stat_t, err error) {
	err = s.with(func(c *chain) error {
		return retry(func() error { return unix.Fstat(int(c.top.file.file.Fd()), &st) })
	})
	return st, err
}

// Remote reports whether a trusted chain leads to something else than a file,
// whose changes the stamp does not tell.
func (s *Server) Remote() (remote bool) {
	_ = s.with(func(c *chain) error {
		remote = c.remote
		return nil
	})
	return remote
}

func (s *Server) lookAt(c *chain) (look, error) {
	s.walking.Lock()
	defer s.walking.Unlock()
	return c.look()
}

// hold returns the state of now. The caller closes its chain, if there is one.
func (s *Server) hold() *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.chain != nil {
		s.now.chain.users.Add(1)
	}
	return s.now
}

// with calls f with the chain that is served, or was last.
func (s *Server) with(f func(*chain) error) error {
	now := s.hold()
	if now.chain == nil {
		return now.err
	}
	defer now.chain.close()
	return f(now.chain)
}
