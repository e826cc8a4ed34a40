package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A modelWriter is the process that changes some bytes of the image.
type modelWriter struct {
	*plan
	*board
	number int
	own    []segment
	model  *modelFile
	rng    *rand.Rand // of what leaves no trace in the image

	mount uint64   // that file belongs to
	file  *os.File // the image
	buf   []byte
}

func runModelWriter(p *plan, number int) error {
	b, err := openBoard(p)
	if err != nil {
		return err
	}
	m, err := openModel(p)
	if err != nil {
		return err
	}
	w := &modelWriter{plan: p, board: b, number: number, own: p.segments(number), model: m,
		rng: rand.New(rand.NewPCG(p.Seed, uint64(number))), buf: make([]byte, p.Size)}
	me := &b.writers[number]
	for k := me.completed.Load(); b.stop.Load() == 0; k++ {
		o := p.op(number, k, w.own)
		me.started.Store(k + 1)
		if err := w.persist(o); err != nil {
			return fmt.Errorf("op %d: %+v: %w", k, o, err)
		}
		if err := m.with(number, unix.LOCK_EX, func() {
			o.apply(m.bytes)
			m.ops[number] = k + 1
		}); err != nil {
			return err
		}
		me.completed.Store(k + 1)
		if err := w.between(); err != nil {
			return fmt.Errorf("after op %d: %w", k, err)
		}
		if w.rng.IntN(4) > 0 {
			time.Sleep(time.Duration(w.rng.IntN(1500)) * time.Microsecond)
		}
	}
	return nil
}

// persist does an op, and once more on the next mount when the daemon is
// killed meanwhile, since nobody knows how much of it was done.
func (w *modelWriter) persist(o op) error {
	for {
		if err := w.come(); err != nil {
			return err
		}
		err := w.do(o)
		if !w.died(err, w.mount) {
			if err == nil {
				w.writers[w.number].mount.Store(w.mount)
			}
			return err
		}
		if !w.await(func() bool { return w.mounts.Load() != w.mount }) {
			return fmt.Errorf("the test ended, but this did not work: %w", err)
		}
	}
}

// come opens the image of the present mount.
func (w *modelWriter) come() error {
	now := w.mounts.Load()
	if w.file != nil && now == w.mount {
		return nil
	}
	if w.file != nil {
		w.file.Close() // of a dead mount, which says so
	}
	flags := os.O_RDWR
	if w.rng.IntN(2) == 0 {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(filepath.Join(w.Mount, "disk", "image"), flags, 0)
	if w.died(err, now) {
		w.file = nil
		time.Sleep(time.Millisecond)
		if w.stop.Load() != 0 {
			return err
		}
		return w.come()
	}
	w.file, w.mount = f, now
	return err
}

func (w *modelWriter) do(o op) error {
	if o.mode != 0 {
		return fallocate(w.file, o.mode, o.lo, o.hi-o.lo)
	}
	p := w.buf[:o.hi-o.lo]
	o.content(p)
	// Not WriteAt of os, which would go on after a short write: one op is
	// one request.
	n, err := pwrite(w.file, p, o.lo)
	if err == nil && n != len(p) {
		err = fmt.Errorf("%d bytes were written", n)
	}
	return err
}

// between reads its own bytes back, or flushes, now and then.
func (w *modelWriter) between() error {
	var err error
	switch w.rng.IntN(100) {
	case 0, 1, 2, 3:
		s := w.own[w.rng.IntN(len(w.own))]
		p := w.buf[:s.hi-s.lo]
		if _, err = w.file.ReadAt(p, s.lo); err == nil {
			if err = diff(p, w.model.bytes[s.lo:s.hi]); err != nil {
				err = fmt.Errorf("its own bytes from %d on: %w", s.lo, err)
			}
		}
	case 4:
		err = w.file.Sync()
	}
	if w.died(err, w.mount) {
		return nil // the next op finds out
	}
	return err
}

// died reports whether an error is what clients see of a daemon that was
// killed: of the mount of that number, or of the mount point before the next.
// The kernel gives EIO for a request that the daemon was just taking.
func (b *board) died(err error, mount uint64) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.EIO) && b.ready.Load() != mount
}
