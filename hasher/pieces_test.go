package hasher

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"hashfs/blockcache"
)

// stuck is a source whose queues give one piece and then nothing more, until
// it is released.
type stuck struct {
	*memSource
	first   func() // called by the first Next
	release chan struct{}
}

type stuckQueue struct {
	stuck
	given bool
}

func (s stuck) Queue() ReadQueue         { return &stuckQueue{stuck: s} }
func (s stuck) Queueing() (int64, int64) { return 64, 128 }

func (q *stuckQueue) Submit([]byte, int64) {}

func (q *stuckQueue) Next(bool) (int, error) {
	if !q.given {
		q.given = true
		q.first()
		return 64, nil
	}
	<-q.release
	return 0, errors.New("released")
}

func (q *stuckQueue) Close() { <-q.release }

// TestPieces_close: a job that was stopped while its source still owes it reads
// does not keep the place of others.
func TestPieces_close(t *testing.T) {
	pool := NewPool(1, false)
	defer pool.Close()
	spec := mustSpec(t, "sha256/64")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	src := stuck{memSource: newMemSource(1024), release: make(chan struct{})}
	var im *Image
	src.first = func() {
		cancel()
		for { // until the job is stopped, some time after its last reader left
			im.mu.Lock()
			stopped := len(im.jobs) > 0 && im.jobs[0].stop.Load()
			im.mu.Unlock()
			if stopped {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	im, err := New(src, Options{Spec: spec, Cache: blockcache.New(1 << 20), Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	im.pieceBytes, im.aheadBytes = 64, 128
	src.data[1000] = 1 // a probe would find a hole
	src.unholeLocked(0, 1024)
	v, err := im.OpenView(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := v.Checksum(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("checksum: %v", err)
	}

	checkOther(t, pool, spec)
	close(src.release)
}

// checkOther reads another image with the same pool.
func checkOther(t *testing.T, pool *Pool, spec Spec) {
	t.Helper()
	other, err := New(newMemSource(1024), Options{Spec: spec, Cache: blockcache.New(1 << 20), Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	w, err := other.OpenView(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	digests := make([]byte, 16*32)
	other.src.(*memSource).unholeLocked(0, 1024)
	if err := w.ReadDigests(soon, digests, 0); err != nil {
		t.Errorf("another image: %v", err)
	}
	if want := plainDigests(spec, make([]byte, 1024)); !bytes.Equal(digests, want) {
		t.Error("another image: wrong digests")
	}
}

// busy is a source whose queues cannot even look without waiting.
type busy struct {
	*memSource
	entered, release chan struct{}
}

type busyQueue struct{ busy }

func (s busy) Queue() ReadQueue         { return &busyQueue{s} }
func (s busy) Queueing() (int64, int64) { return 64, 128 }

func (q *busyQueue) Submit([]byte, int64) {}

func (q *busyQueue) Next(bool) (int, error) {
	close(q.entered)
	<-q.release
	return 0, errors.New("released")
}

func (q *busyQueue) Close() {}

// TestPieces_busy: who cannot send reads, since the disk takes no more, does not
// keep the place of others.
func TestPieces_busy(t *testing.T) {
	pool := NewPool(1, false)
	defer pool.Close()
	spec := mustSpec(t, "sha256/64")
	src := busy{newMemSource(64), make(chan struct{}), make(chan struct{})}
	src.unholeLocked(0, 64)
	src.bad[0], src.bad[1] = true, true // what the queue fails to read is read again
	im, err := New(src, Options{Spec: spec, Cache: blockcache.New(1 << 20), Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	v, err := im.OpenView(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	failed := make(chan error)
	go func() {
		_, err := v.Checksum(t.Context())
		failed <- err
	}()
	<-src.entered
	release := sync.OnceFunc(func() { close(src.release) })
	defer time.AfterFunc(20*time.Second, release).Stop() // or a failure would hang
	checkOther(t, pool, spec)
	release()
	if err := <-failed; err == nil {
		t.Error("a checksum of blocks that cannot be read")
	}
}

// cachedSource is a source whose bytes need not be waited for.
type cachedSource struct{ *memSource }

func (s cachedSource) Cached(_, length int64) int64                    { return length }
func (s cachedSource) ScanAt(p []byte, off int64, _ bool) (int, error) { return s.ReadAt(p, off) }

// TestPieces_afterZeros: the smaller pieces after one of zeros are whole blocks,
// whatever of the assembly the processor has.
func TestPieces_afterZeros(t *testing.T) {
	for _, name := range []string{"sha256/64k", "sha256/256k", "sha256/512k", "sha256/1m", "sha256/2m", "blake3/64k"} {
		for _, piece := range []int64{pieceBytes, 2 * pieceBytes, waitedBytes} {
			spec := mustSpec(t, name)
			src := newMemSource(8<<20 + 5)
			src.unholeLocked(0, src.Size())
			for _, at := range []int{3<<20 + 300<<10, 6<<20 + 700<<10, 8<<20 + 1} {
				src.data[at] = 1
			}
			im := newTestImage(t, cachedSource{src}, spec, 1<<20)
			im.pieceBytes = piece
			sum, err := openView(t, im).Checksum(t.Context())
			if want := plainChecksum(spec, src.data); err != nil || !bytes.Equal(sum, want) {
				t.Errorf("%s, pieces of %d bytes: checksum %x, want %x (%v)", name, piece, sum, want, err)
			}
		}
	}
}

// TestPieces_small: a job of some kilobytes takes no more memory than that: of a huge
// page all would be cleared first.
func TestPieces_small(t *testing.T) {
	const bs = 64 << 10
	spec := mustSpec(t, "sha256/64k")
	src := newFullSource(100 * bs)
	im := newTestImage(t, src, spec, 1<<20)
	v := openView(t, im)
	for _, n := range []int64{1, 3, 100} {
		d := make([]byte, n*32)
		if err := v.ReadDigests(t.Context(), d, 0); err != nil || !bytes.Equal(d, plainDigests(spec, src.data[:n*bs])) {
			t.Errorf("%d blocks: %v", n, err)
		}
		if large := n*bs >= largeBytes; im.pool.hasLargeBuffers() != large {
			t.Errorf("after %d blocks there are large buffers: %v, want %v", n, !large, large)
		}
	}
}
