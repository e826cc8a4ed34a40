package hasher

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hashfs/blockcache"
)

// plainDigests and plainChecksum are the plain twins of the engine.
func plainDigests(s Spec, data []byte) []byte {
	var digests []byte
	for len(data) > 0 {
		n := min(len(data), s.BlockSize)
		h := s.Algorithm.New()
		h.Write(data[:n])
		digests = h.Sum(digests)
		data = data[n:]
	}
	return digests
}

func plainChecksum(s Spec, data []byte) []byte {
	h := s.Algorithm.New()
	h.Write(plainDigests(s, data))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(data))))
	return h.Sum(nil)
}

func mustSpec(t testing.TB, s string) Spec {
	t.Helper()
	spec, err := ParseSpec(s)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// newTestImage returns an image that is closed at the end of the test.
func newTestImage(t testing.TB, src Source, spec Spec, limit int64) *Image {
	t.Helper()
	pool := NewPool(2, false)
	im, err := New(src, Options{Spec: spec, Cache: blockcache.New(limit), Pool: pool, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		im.Close()
		pool.Close()
	})
	return im
}

func openView(t testing.TB, im *Image) *View {
	t.Helper()
	v, err := im.OpenView(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

func TestImage_checksumAndDigestsEqualThePlainOnes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"md5/4", "sha256/64", "sha512/512", "blake3/4k", "sha256/64k", "sha1/1m"} {
		spec := mustSpec(t, name)
		bs := spec.BlockSize
		for _, size := range []int{0, 1, bs - 1, bs, bs + 1, 3*bs + 7, 40 * bs} {
			if size > 4<<20 {
				continue
			}
			for _, limit := range []int64{0, 1 << 30} {
				t.Run(fmt.Sprintf("%s/size=%d/cache=%d", name, size, limit), func(t *testing.T) {
					src := newMemSource(size)
					for i := 0; i < size; i += max(1, size/3) {
						src.data[i] = byte(rng.Uint32())
						src.hole[i/holeBlock] = false
					}
					im := newTestImage(t, src, spec, limit)
					for range 2 {
						v := openView(t, im)
						sum, err := v.Checksum(context.Background())
						if err != nil {
							t.Fatal(err)
						}
						if want := plainChecksum(spec, src.data); !bytes.Equal(sum, want) {
							t.Errorf("checksum %x, want %x", sum, want)
						}
						d := make([]byte, int(v.Blocks())*spec.Algorithm.Size())
						if err := v.ReadDigests(context.Background(), d, 0); err != nil {
							t.Fatal(err)
						}
						if !bytes.Equal(d, plainDigests(spec, src.data)) {
							t.Error("digests differ from the plain ones")
						}
						sum, err = im.PlainSum(context.Background(), spec.Algorithm)
						if err != nil {
							t.Fatal(err)
						}
						h := spec.Algorithm.New()
						h.Write(src.data)
						if !bytes.Equal(sum, h.Sum(nil)) {
							t.Error("plain digest differs")
						}
					}
				})
			}
		}
	}
}

func TestImage_checksumAfterWriteReadsOneBlock(t *testing.T) {
	const size = 64 << 20
	spec := mustSpec(t, "sha256/64k")
	src := newMemSource(size)
	rand.NewChaCha8([32]byte{}).Read(src.data)
	clear(src.hole)
	im := newTestImage(t, src, spec, 1<<30)
	ctx := context.Background()
	v := openView(t, im)
	if _, err := v.Checksum(ctx); err != nil {
		t.Fatal(err)
	}
	v.Close()
	before := src.readBytes()
	p := bytes.Repeat([]byte{1}, 65536)
	if n, err := im.WriteAt(ctx, p, 37*65536); n != len(p) || err != nil {
		t.Fatal(n, err)
	}
	sum, err := openView(t, im).Checksum(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Error("wrong checksum after a write")
	}
	if got := src.readBytes() - before; got != 65536 {
		t.Errorf("%d bytes read after a write of one block of 65536", got)
	}
}

func TestView_showsTheMomentOfItsOpening(t *testing.T) {
	spec := mustSpec(t, "md5/16")
	src := newMemSource(1000)
	im := newTestImage(t, src, spec, 1<<20)
	ctx := context.Background()
	v := openView(t, im)
	want := plainChecksum(spec, src.data)
	if _, err := im.WriteAt(ctx, []byte("new bytes over two blocks"), 500); err != nil {
		t.Fatal(err)
	}
	if err := im.Zero(ctx, 0, 1000, true); err != nil {
		t.Fatal(err)
	}
	sum, err := v.Checksum(ctx)
	if err != nil || !bytes.Equal(sum, want) {
		t.Errorf("checksum %x, %v, want %x", sum, err, want)
	}
	if sum, err = openView(t, im).Checksum(ctx); err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Errorf("a new view does not show the image as it is: %x, %v", sum, err)
	}
}

func TestImage_outsideChange(t *testing.T) {
	ctx := context.Background()
	spec := mustSpec(t, "md5/16")
	src := newMemSource(1000)
	im := newTestImage(t, src, spec, 1<<20)
	seen, fresh := openView(t, im), openView(t, im)
	if _, err := seen.Checksum(ctx); err != nil {
		t.Fatal(err)
	}
	src.change([]byte("changed"), 100)
	if _, err := seen.Checksum(ctx); !errors.Is(err, ErrStale) {
		t.Errorf("a view that was read gives %v, want ErrStale", err)
	}
	sum, err := fresh.Checksum(ctx)
	if err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Errorf("a view that was not read yet gives %x, %v", sum, err)
	}
	src.resize(3000)
	if g, err := im.Refresh(ctx); err != nil || g.Size != 3000 || g.Resizes != 1 {
		t.Errorf("after a resize: %+v, %v", g, err)
	}
	if sum, err = openView(t, im).Checksum(ctx); err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Errorf("after a resize: %x, %v", sum, err)
	}
}

func TestImage_failedBlocks(t *testing.T) {
	ctx := context.Background()
	spec := mustSpec(t, "md5/32")
	src := newMemSource(320)
	copy(src.data, bytes.Repeat([]byte("x"), 320))
	clear(src.hole)
	src.bad[3] = true
	im := newTestImage(t, src, spec, 1<<20)
	v := openView(t, im)
	var failed *ReadError
	if _, err := v.Checksum(ctx); !errors.As(err, &failed) || failed.Offset != 96 || failed.Length != 32 {
		t.Errorf("checksum over a bad block: %v", err)
	}
	d := make([]byte, 16)
	for b := range int64(10) {
		err := v.ReadDigests(ctx, d, b)
		if (b == 3) != (err != nil) {
			t.Errorf("block %d: %v", b, err)
		}
	}
	if s := im.Status(); len(s.Bad) != 1 || s.Bad[0] != 96 || s.LastError == nil || s.BlockCounts.Failed != 1 {
		t.Errorf("status %+v", s)
	}
	delete(src.bad, 3)
	if sum, err := v.Checksum(ctx); err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Errorf("after the fault: %x, %v", sum, err)
	}
	if s := im.Status(); s.BlockCounts.Failed != 0 {
		t.Errorf("%d blocks still failed", s.BlockCounts.Failed)
	}
}

// A block that cannot be read is in the log once, however it is read, until it
// could be read.
func TestImage_failureIsLoggedOnce(t *testing.T) {
	ctx := context.Background()
	src := newMemSource(320)
	clear(src.hole)
	src.bad[3] = true
	im := newTestImage(t, src, mustSpec(t, "md5/32"), 1<<20)
	var log bytes.Buffer
	im.log = slog.New(slog.NewTextHandler(&log, nil))
	p := make([]byte, 32)
	fail := func(times int) {
		t.Helper()
		for range 3 {
			if _, err := im.ReadAt(ctx, p, 100); err == nil {
				t.Error("the bad block was read")
			}
			if _, err := openView(t, im).Checksum(ctx); err == nil {
				t.Error("there is a checksum over the bad block")
			}
			if _, err := im.PlainSum(ctx, Algorithms()[0]); err == nil {
				t.Error("there is a digest of all with the bad block")
			}
		}
		if n := strings.Count(log.String(), "cannot read"); n != times {
			t.Errorf("logged %d times, want %d:\n%s", n, times, log.String())
		}
	}
	fail(1)
	delete(src.bad, 3)
	if _, err := openView(t, im).Checksum(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := im.WriteAt(ctx, p, 96); err != nil { // makes it unknown again
		t.Fatal(err)
	}
	src.bad[3] = true
	fail(2)
}

// A write reads so much of what was for all views together, not for each: views
// of many moments, of which the cache can keep nothing, would hold it up for as
// many times as long.
func TestWriteAt_boundsWhatViewsCost(t *testing.T) {
	ctx := context.Background()
	const bs, moments, bound = 32, 10, 4 * 32
	src := newFullSource(64 * bs)
	pool := NewPool(1, false)
	defer pool.Close()
	// What a volatile image knows it knows for each moment alone.
	im, err := New(src, Options{Spec: mustSpec(t, "md5/32"), Cache: blockcache.New(1 << 20), Pool: pool, Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	im.maxCapture, im.jobBlocks = bound, 1
	var views []*View
	for range moments {
		views = append(views, openView(t, im))
		if _, err := im.WriteAt(ctx, []byte("x"), 63*bs); err != nil { // makes another moment
			t.Fatal(err)
		}
	}
	src.resetReads()
	if _, err := im.WriteAt(ctx, bytes.Repeat([]byte("y"), 8*bs), 0); err != nil {
		t.Fatal(err)
	}
	// A walk reads some blocks ahead of where it finds that it is too much.
	if most := int64(bound + 8*bs); src.readBytes() > most {
		t.Errorf("%d bytes were read for %d views, want at most %d", src.readBytes(), moments, most)
	}
	for i, v := range views {
		if err := v.ReadDigests(ctx, make([]byte, 16), 0); !errors.Is(err, ErrStale) {
			t.Errorf("view %d: %v, want %v", i, err, ErrStale)
		}
	}
}

// Of many writes at a time only some hash what was, so that the others' jobs are
// not in the way of somebody else's; a write that waits for its turn can be left, and
// has changed nothing.
func TestWriteAt_boundsHowManyHash(t *testing.T) {
	const bs, blocks, writes = 32, 64, maxCapturing + 10
	spec := mustSpec(t, "md5/32")
	src := newFullSource(blocks * bs)
	im := newTestImage(t, src, spec, 1<<20)
	im.extents = nil
	data := bytes.Clone(src.data)
	gate := make(chan struct{})
	src.park = func(where string) {
		if where == "read" {
			<-gate
		}
	}
	jobs := func() int {
		im.mu.Lock()
		defer im.mu.Unlock()
		return len(im.jobs)
	}
	v := openView(t, im)
	var group sync.WaitGroup
	for b := range int64(writes) {
		group.Go(func() {
			if n, err := im.WriteAt(t.Context(), []byte("new"), b*bs); n != 3 || err != nil {
				t.Errorf("write %d: %d, %v", b, n, err)
			}
		})
	}
	for jobs() < maxCapturing {
		time.Sleep(time.Millisecond)
	}
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if n, err := im.WriteAt(soon, []byte("never"), (blocks-1)*bs); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a write that waited in vain: %d, %v", n, err)
	}
	if n := jobs(); n != maxCapturing {
		t.Errorf("%d jobs are under way for %d writes, want %d", n, writes, maxCapturing)
	}
	close(gate)
	group.Wait()
	got := make([]byte, blocks*16)
	if err := v.ReadDigests(t.Context(), got, 0); err != nil || !bytes.Equal(got, plainDigests(spec, data)) {
		t.Errorf("the view does not show what was before the writes: %v", err)
	}
	for b := range writes {
		copy(data[b*bs:], "new")
	}
	if !bytes.Equal(src.data, data) {
		t.Error("the image is not what was written")
	}
}

// renamed is a source whose name leads elsewhere from some time on.
type renamed struct {
	*memSource
	yes atomic.Bool
}

func (r *renamed) Replaced() bool { return r.yes.Load() }

// It is said once when a writable image is not what its name says any more,
// whether it was so before a write or came to be within it.
func TestImage_replacedIsLoggedOnce(t *testing.T) {
	ctx := context.Background()
	for _, during := range []string{"before a write", "within a write"} {
		src := &renamed{memSource: newMemSource(320)}
		im := newTestImage(t, src, mustSpec(t, "md5/32"), 1<<20)
		var log bytes.Buffer
		im.log = slog.New(slog.NewTextHandler(&log, nil))
		if during == "within a write" {
			src.written = func(int64, int64) { src.yes.Store(true) }
		} else {
			src.yes.Store(true)
		}
		for range 3 {
			if _, err := im.WriteAt(ctx, []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
			if _, err := im.Refresh(ctx); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(log.String(), "renamed or deleted"); n != 1 {
				t.Errorf("%s: logged %d times, want once:\n%s", during, n, log.String())
			}
		}
	}
}

// A change that somebody makes after a write of ours, whose stamp we have not
// looked at yet, is not taken for our own.
func TestImage_outsideChangeAfterOwnWrite(t *testing.T) {
	ctx := context.Background()
	spec := mustSpec(t, "md5/16")
	src := newMemSource(1000)
	im := newTestImage(t, src, spec, 1<<20)
	if _, err := openView(t, im).Checksum(ctx); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := im.WriteAt(ctx, []byte("ours"), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := openView(t, im).Checksum(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * modelTick)
		src.change([]byte{byte(src.readBytes()), 1}, 500)
		time.Sleep(2 * modelTick)
		if _, err := im.WriteAt(ctx, []byte("ours"), 0); err != nil {
			t.Fatal(err)
		}
		sum, err := openView(t, im).Checksum(ctx)
		if err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
			t.Errorf("checksum %x, %v, want %x", sum, err, plainChecksum(spec, src.data))
		}
	}
}

// slowLook is a source at which a write comes to its end between the look at
// its stamp and the use of what was seen.
type slowLook struct {
	*memSource
	after func() // called once
}

func (s *slowLook) Stamp() (Stamp, error) {
	stamp, err := s.memSource.Stamp()
	if f := s.after; f != nil {
		s.after = nil
		f()
	}
	return stamp, err
}

// A stamp that was seen before a write of our own had done its work is not
// taken for the one after it: with the next look the write would be taken for
// somebody else's, and views for stale.
func TestImage_lookWithinAWrite(t *testing.T) {
	ctx := context.Background()
	src := &slowLook{memSource: newMemSource(320)}
	im := newTestImage(t, src, mustSpec(t, "md5/32"), 1<<20)
	view := openView(t, im)
	before, err := view.Checksum(ctx)
	if err != nil {
		t.Fatal(err)
	}
	looking, ended := make(chan struct{}), make(chan error, 1)
	src.memSource.park = func(where string) {
		if where == "write" {
			src.memSource.park = func(string) {}
			<-looking // holds up the write before its first byte
		}
	}
	go func() {
		_, err := im.WriteAt(ctx, []byte("ours"), 0)
		ended <- err
	}()
	for writing := false; !writing; time.Sleep(time.Millisecond) {
		im.mu.Lock()
		writing = im.writes > 0
		im.mu.Unlock()
	}
	src.after = func() {
		time.Sleep(2 * modelTick)
		close(looking)
		for writing := true; writing; time.Sleep(time.Millisecond) {
			im.mu.Lock()
			writing = im.writes > 0
			im.mu.Unlock()
		}
	}
	if _, err := im.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if sum, err := view.Checksum(ctx); err != nil || !bytes.Equal(sum, before) {
		t.Errorf("a view of before the write: %x, %v; want %x", sum, err, before)
	}
	if s := im.Status(); s.BlockCounts.Unknown == s.BlockCounts.Total {
		t.Error("everything was forgotten over a write of our own")
	}
}

// hang is a source whose reads wait until they are let go.
type hang struct {
	*memSource
	entered chan struct{}
	let     chan struct{}
}

func (h *hang) ReadAt(p []byte, off int64) (int, error) {
	h.entered <- struct{}{}
	<-h.let
	return h.memSource.ReadAt(p, off)
}

func TestImage_waiterLeavesWhenInterrupted(t *testing.T) {
	src := &hang{newMemSource(1 << 20), make(chan struct{}, 10), make(chan struct{})}
	clear(src.hole)
	im := newTestImage(t, src, mustSpec(t, "md5/64k"), 1<<20)
	ctx, cancel := context.WithCancel(context.Background())
	v := openView(t, im)
	left := make(chan error)
	go func() {
		_, err := v.Checksum(ctx)
		left <- err
	}()
	<-src.entered
	cancel()
	select {
	case err := <-left:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the waiter hangs with its source")
	}
	close(src.let)
}

func TestImage_readersShareTheWork(t *testing.T) {
	src := &hang{newMemSource(1 << 16), make(chan struct{}, 10), make(chan struct{})}
	clear(src.hole)
	rand.NewChaCha8([32]byte{}).Read(src.data)
	im := newTestImage(t, src, mustSpec(t, "md5/64k"), 0)
	errs := make(chan error)
	for range 10 {
		v := openView(t, im)
		go func() {
			err := v.ReadDigests(context.Background(), make([]byte, 16), 0)
			errs <- err
		}()
	}
	<-src.entered
	for {
		im.mu.Lock()
		n := 0
		for _, j := range im.jobs {
			n += j.n
		}
		im.mu.Unlock()
		if n == 10 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	close(src.let)
	for range 10 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if src.readBytes() != 1<<16 {
		t.Errorf("%d bytes read for ten readers of one block", src.readBytes())
	}
}

func TestImage_volatileKeepsNothingForLaterViews(t *testing.T) {
	ctx := context.Background()
	spec := mustSpec(t, "md5/32")
	src := newMemSource(320)
	pool := NewPool(1, false)
	defer pool.Close()
	im, err := New(unstamped{src, src, src, src}, Options{Spec: spec, Cache: blockcache.New(1 << 20), Pool: pool, Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	old := openView(t, im)
	d := make([]byte, 16)
	if err := old.ReadDigests(ctx, d, 4); err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(d)
	src.change([]byte("nobody tells"), 130)
	if err := old.ReadDigests(ctx, d, 4); err != nil || !bytes.Equal(d, before) {
		t.Errorf("a view changed its mind about a block: %x, %v", d, err)
	}
	sum, err := openView(t, im).Checksum(ctx)
	if err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Errorf("a new view shows an old moment: %x, %v", sum, err)
	}
	h := spec.Algorithm.New()
	h.Write(src.data)
	if sum, err = im.PlainSum(ctx, spec.Algorithm); err != nil || !bytes.Equal(sum, h.Sum(nil)) {
		t.Errorf("plain digest %x, %v", sum, err)
	}
	if len(im.PlainSums()) != 0 {
		t.Error("a plain digest was kept")
	}
}

// Blocks that failed and are a hole by now are no longer listed as bad.
func TestImage_volatileForgetsFailedBlocksOfHoles(t *testing.T) {
	ctx := context.Background()
	spec := mustSpec(t, "md5/32")
	src := newMemSource(320)
	pool := NewPool(1, false)
	defer pool.Close()
	im, err := New(unstamped{src, src, src, src}, Options{Spec: spec, Cache: blockcache.New(1 << 20), Pool: pool, Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	src.mu.Lock()
	src.bad = map[int64]bool{3: true}
	clear(src.hole)
	src.mu.Unlock()
	if sum, err := openView(t, im).Checksum(ctx); err == nil {
		t.Fatalf("a checksum of what cannot be read: %x", sum)
	}
	if s := im.Status(); len(s.Bad) == 0 {
		t.Fatalf("nothing is bad: %+v", s.BlockCounts)
	}
	src.mu.Lock()
	src.bad = nil
	clear(src.data)
	for i := range src.hole {
		src.hole[i] = true
	}
	src.mu.Unlock()
	if sum, err := openView(t, im).Checksum(ctx); err != nil || !bytes.Equal(sum, plainChecksum(spec, make([]byte, 320))) {
		t.Errorf("checksum %x, %v", sum, err)
	}
	if s := im.Status(); len(s.Bad) > 0 {
		t.Errorf("bad: %v", s.Bad)
	}
}

func TestImage_invalidate(t *testing.T) {
	ctx := context.Background()
	spec := mustSpec(t, "md5/32")
	src := newMemSource(320)
	pool := NewPool(1, false)
	defer pool.Close()
	// Without stamps and not volatile: the user has promised to tell.
	im, err := New(unstamped{src, src, src, src}, Options{Spec: spec, Cache: blockcache.New(1 << 20), Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	view := openView(t, im)
	if _, err := view.Checksum(ctx); err != nil {
		t.Fatal(err)
	}
	reads := src.readBytes()
	src.change(bytes.Repeat([]byte("x"), 40), 130)
	im.Invalidate(130, 40)
	sum, err := openView(t, im).Checksum(ctx)
	if err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Errorf("after Invalidate: %x, %v", sum, err)
	}
	if n := src.readBytes() - reads; n != 64 {
		t.Errorf("%d bytes read, want the two blocks that were named", n)
	}
	if err := view.ReadDigests(ctx, make([]byte, 16), 4); !errors.Is(err, ErrStale) {
		t.Errorf("a view of before gives %v, want ErrStale", err)
	}
	src.change([]byte("y"), 0)
	if err := im.InvalidateAll(); err != nil {
		t.Fatal(err)
	}
	if sum, err = openView(t, im).Checksum(ctx); err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Errorf("after InvalidateAll: %x, %v", sum, err)
	}
}

func TestImage_writeOfUnknownOutcomeIsNotKept(t *testing.T) {
	ctx := context.Background()
	spec := mustSpec(t, "md5/32")
	src := newMemSource(320)
	im := newTestImage(t, src, spec, 1<<20)
	src.late = true
	let := make(chan struct{})
	src.park = func(where string) {
		if where == "late" {
			<-let
		}
	}
	if _, err := im.WriteAt(ctx, []byte("arrives later"), 64); !errors.Is(err, ErrUnknownOutcome) {
		t.Fatal(err)
	}
	// Others that come after it may be done before it.
	for _, write := range []func() error{
		func() error { _, err := im.WriteAt(ctx, make([]byte, 32), 64); return err },
		func() error { return im.Zero(ctx, 64, 32, true) },
	} {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	if sum, err := openView(t, im).Checksum(ctx); err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Errorf("before it arrives: %x, %v", sum, err)
	}
	close(let)
	src.lates.Wait()
	if sum, err := openView(t, im).Checksum(ctx); err != nil || !bytes.Equal(sum, plainChecksum(spec, src.data)) {
		t.Errorf("after it arrived: %x, %v", sum, err)
	}
	im.Invalidate(64, 32)
	if im.mu.Lock(); len(im.doubtful) != 0 {
		t.Error("the block is still in doubt")
	}
	im.mu.Unlock()
}

func TestImage_failedFlushForgets(t *testing.T) {
	ctx := context.Background()
	src := &badFlush{newMemSource(320)}
	im := newTestImage(t, src, mustSpec(t, "md5/32"), 1<<20)
	v := openView(t, im)
	if _, err := v.Checksum(ctx); err != nil {
		t.Fatal(err)
	}
	if err := im.Flush(ctx); err == nil {
		t.Fatal("no error")
	}
	if _, err := v.Checksum(ctx); !errors.Is(err, ErrStale) {
		t.Errorf("a view of before gives %v, want ErrStale", err)
	}
	if s := im.Status(); s.BlockCounts.Unknown != s.BlockCounts.Total {
		t.Errorf("still known: %+v", s.BlockCounts)
	}
}

// badFlush is a source whose flush fails.
type badFlush struct{ *memSource }

func (*badFlush) Flush() error { return errors.New("no") }
