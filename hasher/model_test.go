package hasher

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"hashfs/blockcache"
)

// modelConfig is one run of the model test, made from its seed alone.
type modelConfig struct {
	seed    uint64
	spec    string
	size    int
	limit   int64 // bytes of the cache
	actors  int
	ops     int  // of each actor
	outside bool // somebody else writes the source as well
	faults  bool // blocks fail and recover, writes stop half way
	cancel  bool // readers and writers are interrupted

	volatile bool // the source has no stamps, and nothing is kept
	ahead    bool // the source has queues
	inPlace  bool // the source's bytes are looked at in place
	partly   bool // the source has a cache that holds a part of it
	late     bool // writes are done after they have failed
}

func configFor(seed uint64) modelConfig {
	rng := rand.New(rand.NewPCG(seed, 1))
	specs := []string{"md5/4", "md5/16", "sha1/32", "sha256/64", "blake3/32"}
	spec := specs[rng.IntN(len(specs))]
	return modelConfig{
		seed: seed, spec: spec, size: 1 + rng.IntN(700),
		limit:  []int64{0, 600, 20_000, 1 << 20, 1 << 30}[rng.IntN(5)],
		actors: 2 + rng.IntN(4), ops: 12,
		outside: rng.IntN(4) == 0, faults: rng.IntN(3) == 0, cancel: rng.IntN(3) == 0,
		volatile: rng.IntN(4) == 0, late: rng.IntN(6) == 0,
		ahead: rng.IntN(2) == 0, inPlace: rng.IntN(2) == 0, partly: rng.IntN(2) == 0,
	}
}

// model is the plain twin of an image: every version that each block had, by
// a clock that ticks with each event.
type model struct {
	cfg  modelConfig
	spec Spec
	src  *memSource
	im   *Image

	mu       sync.Mutex // comes after src.mu
	clock    int64
	versions [][]version // by block
	writes   []*modelWrite
	fault    error
	outside  bool // a change from outside is under way
	inFlight int  // writes of our own
}

// version is what a block was from a tick on, until the next version.
type version struct {
	from   int64
	digest []byte
}

// modelWrite is a write of ours, on blocks [lo, hi), from its call to its
// return.
type modelWrite struct {
	lo, hi     int64
	start, end int64 // end is 0 while it is under way
}

func (m *model) failf(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault == nil {
		m.fault = fmt.Errorf(format, args...)
	}
}

func (m *model) failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fault
}

func (m *model) tick() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock++
	return m.clock
}

// written records the new versions of blocks. The source calls it.
func (m *model) written(off, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock++
	bs := int64(m.spec.BlockSize)
	for b := off / bs; b < min(int64(len(m.versions)), (off+n+bs-1)/bs); b++ {
		d := plainDigests(m.spec, m.src.data[b*bs:min((b+1)*bs, int64(len(m.src.data)))])
		m.versions[b] = append(m.versions[b], version{m.clock, d})
	}
}

// allowed returns the digests that block b had at any time in [from, to].
func (m *model) allowedLocked(b, from, to int64) (digests [][]byte) {
	v := m.versions[b]
	for i := range v {
		if v[i].from <= to && (i+1 == len(v) || v[i+1].from > from) {
			digests = append(digests, v[i].digest)
		}
	}
	return digests
}

// modelView is an open view, and when it was opened.
type modelView struct {
	v          *View
	start, end int64
}

// check compares digests that a view gave with what they may be: what the
// block was when the view was opened. Where a write was under way then, what
// it was before or after that write. Where others write, anything from then
// until now.
func (m *model) check(v *modelView, first int64, digests []byte) {
	now := m.tick()
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.spec.Algorithm.Size()
	for b := first; len(digests) > 0; b++ {
		from, to := v.start, v.start
		for _, w := range m.writes {
			if w.lo <= b && b < w.hi && w.start <= v.end && (w.end == 0 || w.end >= v.start) {
				to = max(to, w.end)
				if w.end == 0 {
					to = now
				}
			}
		}
		if m.cfg.outside {
			to = now
		}
		allowed := m.allowedLocked(b, from, to)
		// Nobody can tell that a change came between two halves of a read.
		ok := (m.cfg.volatile && m.cfg.outside || m.cfg.late) && len(allowed) > 1
		for _, want := range allowed {
			ok = ok || bytes.Equal(want, digests[:d])
		}
		if !ok && m.fault == nil {
			m.fault = fmt.Errorf("block %d of a view opened at [%d, %d] is %x at %d; versions:", b, v.start, v.end, digests[:d], now)
			for _, v := range m.versions[b] {
				m.fault = fmt.Errorf("%w\n  %d: %x", m.fault, v.from, v.digest)
			}
		}
		digests = digests[d:]
	}
}

// tolerable reports whether an error is one that the run may give.
func (m *model) tolerable(err error) bool {
	var failed *ReadError
	switch {
	case errors.Is(err, context.Canceled):
		return m.cfg.cancel
	case errors.As(err, &failed):
		return m.cfg.faults
	case errors.Is(err, ErrUnknownOutcome):
		return m.cfg.late
	case errors.Is(err, ErrStale):
		return m.cfg.outside || m.cfg.faults || m.cfg.limit < 1<<20
	case errors.Is(err, ErrBusy):
		return m.cfg.outside
	}
	return false
}

// actor does random operations.
type actor struct {
	*model
	rng   *rand.Rand
	park  func(string)
	views []*modelView
}

func (a *actor) run() {
	for range a.cfg.ops {
		if a.failed() != nil {
			break
		}
		a.park("actor")
		switch a.rng.IntN(8) {
		case 0, 1, 2:
			a.write()
		case 3, 4:
			a.open()
		default:
			a.read()
		}
	}
	for _, v := range a.views {
		v.v.Close()
	}
}

// context returns one that may end soon.
func (a *actor) context() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	if !a.cfg.cancel || a.rng.IntN(3) > 0 {
		return ctx, cancel
	}
	gone := make(chan struct{})
	go func() {
		a.park("interrupt")
		cancel()
		close(gone)
	}()
	return ctx, func() { <-gone }
}

func (a *actor) open() {
	if len(a.views) > 0 && a.rng.IntN(3) == 0 {
		i := a.rng.IntN(len(a.views))
		a.views[i].v.Close()
		a.views = append(a.views[:i], a.views[i+1:]...)
		return
	}
	v := &modelView{start: a.tick()}
	var err error
	if v.v, err = a.im.OpenView(context.Background()); err != nil {
		if !a.tolerable(err) {
			a.failf("open: %v", err)
		}
		return
	}
	v.end = a.tick()
	a.views = append(a.views, v)
}

func (a *actor) read() {
	if len(a.views) == 0 {
		a.open()
		return
	}
	v := a.views[a.rng.IntN(len(a.views))]
	n := v.v.Blocks()
	first := int64(0)
	sums := a.rng.IntN(3) == 0
	if !sums {
		first = a.rng.Int64N(n)
		n = 1 + a.rng.Int64N(n-first)
	}
	ctx, done := a.context()
	defer done()
	var sum []byte
	if sums {
		var err error
		if sum, err = v.v.Checksum(ctx); err != nil {
			if !a.tolerable(err) {
				a.failf("checksum: %v", err)
			}
			return
		}
	}
	digests := a.digests(ctx, v, first, n)
	if digests == nil {
		return
	}
	if sums && !a.cfg.late && !(a.cfg.volatile && a.cfg.outside) {
		h := a.spec.Algorithm.New()
		h.Write(digests)
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(v.v.Size())))
		if want := h.Sum(nil); !bytes.Equal(sum, want) {
			a.failf("checksum of a view opened at [%d, %d] is %x, that of its digests is %x", v.start, v.end, sum, want)
		}
	}
}

// digests reads and checks digests, all at once or one part after the other. It
// returns nil if they could not be read.
func (a *actor) digests(ctx context.Context, v *modelView, first, n int64) []byte {
	digests := make([]byte, n*a.im.digestSize)
	most := n
	if a.rng.IntN(2) == 0 {
		most = 1 + a.rng.Int64N(12)
	}
	for at := int64(0); at < n; {
		part := digests[at*a.im.digestSize:][:min(most, n-at)*a.im.digestSize]
		if err := v.v.ReadDigests(ctx, part, first+at); err != nil {
			if !a.tolerable(err) {
				a.failf("digests: %v", err)
			}
			return nil
		}
		a.check(v, first+at, part)
		at += most
		a.park("actor")
	}
	return digests
}

// exclude waits until no write of ours, or no change from outside, is under
// way: a writer that ignores our lock inside our own write is not promised.
func (a *actor) exclude(outside bool) (leave func()) {
	for {
		a.mu.Lock()
		if outside && a.inFlight == 0 && !a.outside {
			a.outside = true
		} else if !outside && !a.outside {
			a.inFlight++
		} else {
			a.mu.Unlock()
			time.Sleep(time.Millisecond)
			continue
		}
		a.mu.Unlock()
		return func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if outside {
				a.outside = false
			} else {
				a.inFlight--
			}
		}
	}
}

func (a *actor) write() {
	size := int64(a.cfg.size)
	off := a.rng.Int64N(size)
	n := 1 + a.rng.Int64N(min(size-off, 1+a.rng.Int64N(200)))
	p := make([]byte, n)
	if a.rng.IntN(4) > 0 {
		for i := range p {
			p[i] = byte(a.rng.Uint32())
		}
	}
	if a.cfg.outside && a.rng.IntN(2) == 0 {
		leave := a.exclude(true)
		defer leave()
		// Within a tick of one of our own writes is not promised either.
		time.Sleep(2 * modelTick)
		a.src.change(p, off)
		for a.rng.IntN(2) == 0 {
			// The same stamp again, if the clock stands still.
			a.park("outside")
			p[0]++
			a.src.change(p, off)
		}
		return
	}
	leave := a.exclude(false)
	defer leave()
	a.breakSomething()
	ctx, done := a.context()
	defer done()
	bs := int64(a.spec.BlockSize)
	w := &modelWrite{lo: off / bs, hi: (off + n + bs - 1) / bs, start: a.tick()}
	a.mu.Lock()
	a.writes = append(a.writes, w)
	a.mu.Unlock()
	var err error
	switch a.rng.IntN(5) {
	case 4:
		// What it loses when it fails is at the beginning of the image.
		a.mu.Lock()
		w.lo, w.hi = 0, (16+bs-1)/bs
		a.mu.Unlock()
		err = a.im.Flush(ctx)
	case 0:
		err = a.im.Zero(ctx, off, n, true)
	case 1:
		err = a.im.Zero(ctx, off, n, false)
	default:
		_, err = a.im.WriteAt(ctx, p, off)
	}
	if err != nil && !a.cfg.faults && !a.tolerable(err) {
		a.failf("write: %v", err)
	}
	if errors.Is(err, ErrUnknownOutcome) {
		return // it never ends
	}
	end := a.tick()
	a.mu.Lock()
	w.end = end
	a.mu.Unlock()
}

// breakSomething injects or mends a fault.
func (a *actor) breakSomething() {
	if a.cfg.late && a.rng.IntN(3) == 0 {
		a.src.mu.Lock()
		a.src.late = true
		a.src.mu.Unlock()
	}
	if !a.cfg.faults || a.rng.IntN(2) == 0 {
		return
	}
	a.src.mu.Lock()
	defer a.src.mu.Unlock()
	switch a.rng.IntN(5) {
	case 0:
		a.src.failing = true
	case 3:
		a.src.short = true
	case 4:
		a.src.loses = true
	case 1:
		a.src.bad[a.rng.Int64N(int64(a.cfg.size/holeBlock)+1)] = true
	default:
		clear(a.src.bad)
	}
}

// newModel makes the image of a run. park is called wherever the order of
// goroutines may matter.
func newModel(cfg modelConfig, pool *Pool, park func(string)) (*model, error) {
	rng := rand.New(rand.NewPCG(cfg.seed, 2))
	spec, err := ParseSpec(cfg.spec)
	if err != nil {
		return nil, err
	}
	src := newMemSource(cfg.size)
	for i := range src.data {
		if i/100%2 == 0 {
			src.data[i] = byte(rng.Uint32())
			src.hole[i/holeBlock] = false
		}
	}
	m := &model{cfg: cfg, spec: spec, src: src}
	m.versions = make([][]version, spec.blocks(int64(cfg.size)))
	m.written(0, int64(cfg.size))
	src.written = m.written
	source := Source(src)
	if cfg.volatile {
		source = unstamped{src, src, src, src}
		src.atOnce = true
	}
	m.im, err = New(source, Options{Volatile: cfg.volatile, Spec: spec, Cache: blockcache.New(cfg.limit), Pool: pool, Name: "model"})
	if err != nil {
		return nil, err
	}
	src.park, m.im.park = park, park
	if cfg.ahead {
		m.im.queues = queued{src}
	}
	m.im.tuning = tuning{
		pieceBytes: 4 << rng.IntN(6), jobBlocks: 1 + rng.Int64N(6), checkpointBlocks: 1 + rng.Int64N(6),
		probeExtents: 1 + rng.IntN(4), maxCapture: 1 << 20,
	}
	m.im.queuedBytes = max(4, m.im.pieceBytes>>rng.IntN(3))
	m.im.aheadBytes = m.im.pieceBytes << (1 + rng.IntN(2))
	m.im.mappedBytes = m.im.pieceBytes << rng.IntN(3)
	if cfg.inPlace {
		m.im.scan, m.im.maps = cachedSource{src}, &inPlace{memSource: src}
	}
	if cfg.partly {
		m.im.scan = partlyCached{src}
	}
	m.im.checkpoints.distance = m.im.checkpointBlocks
	m.im.capturing = make(chan struct{}, 1+rng.IntN(3))
	return m, nil
}

func (m *model) actor(i int, park func(string)) *actor {
	return &actor{model: m, rng: rand.New(rand.NewPCG(m.cfg.seed, uint64(10+i))), park: park}
}

// settled compares the image with its source when all is quiet.
func (m *model) settled() error {
	if err := m.failed(); err != nil {
		return err
	}
	m.src.lates.Wait()
	m.src.mu.Lock()
	clear(m.src.bad)
	m.src.short = false
	m.src.mu.Unlock()
	// A job that failed before, and that nobody waits for any more, may still
	// be under way.
	if v, err := m.im.OpenView(context.Background()); err == nil {
		_, err = v.Checksum(context.Background())
		v.Close()
		var failed *ReadError
		if err != nil && !errors.As(err, &failed) {
			return fmt.Errorf("at rest: %w", err)
		}
	}
	for range 2 {
		v, err := m.im.OpenView(context.Background())
		if err != nil {
			return fmt.Errorf("at rest: %w", err)
		}
		defer v.Close()
		sum, err := v.Checksum(context.Background())
		if err != nil {
			return fmt.Errorf("at rest: %w", err)
		}
		if want := plainChecksum(m.spec, m.src.data); !bytes.Equal(sum, want) {
			return fmt.Errorf("at rest: checksum %x, want %x", sum, want)
		}
		digests := make([]byte, int(v.Blocks())*m.spec.Algorithm.Size())
		if err := v.ReadDigests(context.Background(), digests, 0); err != nil {
			return fmt.Errorf("at rest: %w", err)
		}
		if !bytes.Equal(digests, plainDigests(m.spec, m.src.data)) {
			return errors.New("at rest: digests differ from the plain ones")
		}
	}
	return nil
}

// TestModel_atFullSpeed lets the goroutines run as they like, and is for the
// race detector as much as for the digests.
func TestModel_atFullSpeed(t *testing.T) {
	start := time.Now()
	seeds := 0
	for seed := uint64(time.Now().UnixNano()); time.Since(start) < modelTime(); seed++ {
		cfg := configFor(seed)
		cfg.actors *= 2
		pool := NewPool(2, false)
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(seed, 3))
		park := func(string) {
			mu.Lock()
			n := rng.Uint64()
			mu.Unlock()
			if n%64 == 0 {
				time.Sleep(time.Microsecond)
			} else if n%2 == 0 {
				runtime.Gosched()
			}
		}
		m, err := newModel(cfg, pool, park)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range cfg.actors {
			all.Go(m.actor(i, park).run)
		}
		all.Wait()
		err = m.settled()
		m.im.Close()
		pool.Close()
		if err != nil {
			t.Fatalf("seed %d, %+v: %v", seed, cfg, err)
		}
		seeds++
	}
	t.Logf("%d runs", seeds)
}
