package hasher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"hashfs/blockcache"
)

// MaxBlocks is the number of blocks that an image may have at most.
const MaxBlocks = 1 << 32

// tuning is what tests of small images make small.
type tuning struct {
	pieceBytes       int64 // what a worker reads at a time: a power of two
	queuedBytes      int64 // and of a queue in one request: another, no larger
	aheadBytes       int64 // what is submitted to a queue at a time: a multiple of both
	mappedBytes      int64 // what it looks at in place at a time: a multiple of pieceBytes
	jobBlocks        int64 // what a job covers
	checkpointBlocks int64 // the distance of checkpoints
	probeExtents     int   // what one probe asks for at most
	maxCapture       int64 // old bytes that a mutation hashes for a view
}

// Options of an Image.
type Options struct {
	Spec  Spec
	Cache *blockcache.Cache // bounds the digests kept
	Pool  *Pool             // reads and hashes
	Log   *slog.Logger      // nil discards
	Name  string            // of the image, in log lines

	// Volatile says that changes from outside cannot be seen: nothing is kept
	// beyond the views that are open, and each view has a moment of its own.
	Volatile bool
}

// An Image is a source with what is known of its blocks. See the package
// comment for what it promises. All methods may be called from several
// goroutines at once.
type Image struct {
	src      Source
	scan     ScanSource     // nil: ReadAt does
	maps     MapSource      // nil: all is read
	queues   QueueSource    // nil: one read after the other
	extents  ExtentSource   // nil: all is data
	writable WritableSource // nil: read-only
	zeroing  ZeroSource     // nil: refused
	stamped  StampedSource  // nil: changes from outside are not seen
	named    NamedSource    // nil: its name leads to it

	volatile   bool
	remote     bool
	spec       Spec
	digestSize int64
	cache      *blockcache.Cache
	pool       *Pool
	log        *slog.Logger

	capturing chan struct{} // a place for each mutation that hashes old data

	zeroDigest func() []byte // of a whole block of zeros
	zeroBatch  func() []byte // zeroBatchBlocks of it side by side

	// checking lets one goroutine at a time compare stamps. It is taken
	// before mu and held across fstat(2), nothing longer.
	checking sync.Mutex

	// mu guards all below, and the moments, jobs and mutations of the image.
	// It is held for short sections of pure memory work: never across I/O,
	// hashing or a wait. The cache's and the pool's own mutexes come after it.
	mu     sync.Mutex
	closed bool

	size     int64 // bytes
	blocks   int64
	table    *blockcache.Table
	modTime  time.Time
	stamp    Stamp
	settled  bool   // a change after the stamp would show in it
	era      uint64 // moves when everything was forgotten
	resizes  uint64 // moves with each change of size
	writes   int    // mutations doing their I/O
	writeSeq uint64 // counts them

	generation  uint64 // moves with every change
	moments     []*moment
	mutations   []*mutation // in the order in which they came
	jobs        []*job      // reads under way
	jobSeq      uint64      // counts them
	doubtful    spans       // blocks of writes of unknown outcome
	checkpoints checkpoints
	final       finalSum
	plain       map[*Algorithm]*plainSum
	extentMap   extentMap
	tasks       map[*task]struct{}
	failure     *Failure
	complained  map[int64]bool // blocks whose failure is in the log
	hashedBytes int64          // read and hashed since the start
	readErrors  int64

	background sync.WaitGroup // tasks

	failedFlushes atomic.Uint64

	warned atomic.Bool // that the source's name does not lead to it

	tuning

	// park, set by tests only, is called where another order of goroutines
	// could matter.
	park func(where string)
}

// New returns the image of a source, which it owns from now on, also when it
// fails.
func New(src Source, o Options) (*Image, error) {
	im := &Image{
		src:        src,
		spec:       o.Spec,
		volatile:   o.Volatile,
		digestSize: int64(o.Spec.Algorithm.Size()),
		cache:      o.Cache,
		pool:       o.Pool,
		log:        o.Log,
		plain:      map[*Algorithm]*plainSum{},
		tasks:      map[*task]struct{}{},
		complained: map[int64]bool{},
		park:       func(string) {},
		capturing:  make(chan struct{}, maxCapturing),
		tuning: tuning{
			pieceBytes:       o.Spec.pieceBytes(),
			mappedBytes:      mappedBytes,
			jobBlocks:        int64(max(1, min(jobBytes/o.Spec.BlockSize, jobBlocks))),
			checkpointBlocks: checkpointBlocks,
			probeExtents:     probeExtents,
			maxCapture:       maxCapture,
		},
	}
	if im.log == nil {
		im.log = slog.New(slog.DiscardHandler)
	}
	im.log = im.log.With("image", o.Name)
	im.scan, _ = src.(ScanSource)
	im.maps, _ = src.(MapSource)
	if q, ok := src.(QueueSource); ok {
		im.queues = q
		im.queuedBytes, im.aheadBytes = q.Queueing()
		im.pieceBytes = max(im.pieceBytes, im.queuedBytes)
		im.aheadBytes = max(im.aheadBytes, 2*im.pieceBytes)
	}
	im.extents, _ = src.(ExtentSource)
	im.zeroing, _ = src.(ZeroSource)
	if r, ok := src.(RemoteSource); ok {
		im.remote = r.Remote()
	}
	im.stamped, _ = src.(StampedSource)
	im.named, _ = src.(NamedSource)
	if w, ok := src.(WritableSource); ok && w.Writable() {
		im.writable = w
	}
	im.zeroDigest = sync.OnceValue(func() []byte {
		return im.shortZeroDigest(int64(im.spec.BlockSize))
	})
	im.zeroBatch = sync.OnceValue(func() []byte {
		return bytes.Repeat(im.zeroDigest(), zeroBatchBlocks)
	})
	if im.stamped != nil {
		s, err := im.stamped.Stamp()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("stamp: %w", err), src.Close())
		}
		im.stamp, im.modTime = s, s.ModTime()
	}
	im.size = src.Size()
	im.blocks = im.spec.blocks(im.size)
	if im.blocks > MaxBlocks {
		err := fmt.Errorf("%d blocks of %d bytes: at most 2^32 are possible, choose a larger block size", im.blocks, im.spec.BlockSize)
		return nil, errors.Join(err, src.Close())
	}
	im.checkpoints.distance = im.checkpointBlocks
	im.table = im.cache.NewTable(im.blocks, int(im.digestSize))
	return im, nil
}

// blocks returns the number of blocks of an image of size bytes.
func (s Spec) blocks(size int64) int64 {
	bs := int64(s.BlockSize)
	return size/bs + min(1, size%bs)
}

// shortZeroDigest returns the digest of n zero bytes.
func (im *Image) shortZeroDigest(n int64) []byte {
	h := im.spec.Algorithm.New()
	writeZeros(h, n)
	return h.Sum(nil)
}

// Close ends all work on the image and closes its source. Views must be
// closed before; their methods fail from now on.
func (im *Image) Close() error {
	im.mu.Lock()
	if im.closed {
		im.mu.Unlock()
		return ErrClosed
	}
	im.closed = true
	for t := range im.tasks {
		t.stopped = true
		t.cancel()
	}
	for _, j := range im.jobs {
		j.stopped = true
		j.stop.Store(true)
	}
	im.endMomentsLocked(ErrClosed)
	pending := append([]*job(nil), im.jobs...)
	im.mu.Unlock()
	for _, j := range pending {
		<-j.done
	}
	im.background.Wait()
	im.table.Reset(0)
	return im.src.Close()
}

// Spec returns how the image is hashed.
func (im *Image) Spec() Spec { return im.spec }

// Writable reports whether WriteAt and the like can succeed.
func (im *Image) Writable() bool { return im.writable != nil }

// readNow reads from the source. A remote one gets a buffer of its own, which
// it keeps if the caller leaves before it has answered.
func (im *Image) readNow(ctx context.Context, p []byte, off int64) (int, error) {
	if !im.remote {
		return im.src.ReadAt(p, off)
	}
	own := make([]byte, len(p))
	n, err := await(ctx, func() (int, error) { return im.src.ReadAt(own, off) })
	return copy(p, own[:n]), err
}

// await calls f and waits for it, or until ctx ends; f goes on then.
func await[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// Geometry is what can be said of an image without reading it.
type Geometry struct {
	Size       int64     // bytes
	Blocks     int64     // Size in blocks, the last maybe short
	ModTime    time.Time // of the last change, from outside or through the image
	Generation uint64    // moves with every change
	Resizes    uint64    // moves when Size changed
}

// Geometry returns what is known without a look at the source.
func (im *Image) Geometry() Geometry {
	im.mu.Lock()
	defer im.mu.Unlock()
	return im.geometryLocked()
}

// Refresh looks whether the source was changed from outside, and returns the
// geometry. It never reads or hashes data.
func (im *Image) Refresh(ctx context.Context) (Geometry, error) {
	if err := im.look(ctx); err != nil {
		return Geometry{}, err
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	return im.geometryLocked(), nil
}

func (im *Image) geometryLocked() Geometry {
	return Geometry{im.size, im.blocks, im.modTime, im.generation, im.resizes}
}

// ReadAt reads the image as it is now, whatever views show. It reads less
// than asked for, without an error, only at the end of the image.
func (im *Image) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := im.readNow(ctx, p, off)
	if ctx.Err() != nil && err == ctx.Err() {
		return 0, err
	}
	if n == len(p) || err == nil {
		return n, nil
	}
	if im.atEnd(off+int64(n), err) {
		return n, nil
	}
	err = &ReadError{off + int64(n), int64(len(p) - n), err}
	im.noteFailure(err.(*ReadError))
	return n, err
}
