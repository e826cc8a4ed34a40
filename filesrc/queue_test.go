package filesrc

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// eachQueued runs a test with a file of random bytes on each file system whose files
// have queues.
func eachQueued(t *testing.T, size int64, test func(t *testing.T, f *File, data []byte)) {
	found := false
	eachFS(t, func(t *testing.T, fs, dir string) {
		f, data := queuedFile(t, dir, size)
		found = true
		test(t, f, data)
	})
	if !found && os.Getenv("CI") == "true" {
		t.Error("no file system has queues")
	}
}

func queuedFile(t *testing.T, dir string, size int64) (*File, []byte) {
	t.Helper()
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{5}).Read(data)
	f := open(t, writeFile(t, filepath.Join(dir, "disk.raw"), data), false)
	q := f.Queue()
	if q == nil {
		t.Skip("files of this file system are not read past the page cache")
	}
	q.Close()
	return f, data
}

// aligned returns n bytes as a direct read wants them.
func aligned(n int) []byte {
	p := make([]byte, n+directUnit)
	return p[(directUnit-offUnit(p))%directUnit:][:n]
}

// uncache has the page cache forget the file, and skips the test where that is
// where files are.
func uncache(t *testing.T, f *File) {
	t.Helper()
	if err := f.current.file.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(f.current.fd, 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if f.current.isOn([]int64{unix.TMPFS_MAGIC}) {
		t.Skip("a tmpfs is all in the page cache")
	}
}

// TestQueue compares what queues give with the bytes of the file: reads of all
// sizes, aligned or not, beyond the end, more than can be under way, of what is
// in the page cache and what is not.
func TestQueue(t *testing.T) {
	eachQueued(t, 5<<20+777, func(t *testing.T, f *File, data []byte) {
		for _, older := range []bool{false, true} {
			f.current.caches.Store(older)
			uncache(t, f)
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() { checkQueue(t, f, data, rand.New(rand.NewPCG(uint64(i), 7))) })
			}
			wg.Wait()
		}
	})
}

func checkQueue(t *testing.T, f *File, data []byte, rng *rand.Rand) {
	q := f.Queue()
	defer q.Close()
	type read struct {
		p   []byte
		off int64
	}
	var reads []read
	for range 400 {
		if len(reads) == 0 || rng.IntN(9) > len(reads) {
			n := directUnit * (1 + rng.IntN(64))
			off := rng.Int64N(int64(len(data))) / directUnit * directUnit
			p := aligned(n)
			switch rng.IntN(8) {
			case 0:
				p = p[rng.IntN(n):]
			case 1:
				off += rng.Int64N(directUnit)
			case 2: // some more of it is in the page cache from now on
				if _, err := f.ReadAt(make([]byte, 1+rng.IntN(n)), off); err != nil && !errors.Is(err, io.EOF) {
					t.Error(err)
				}
			}
			q.Submit(p, off)
			reads = append(reads, read{p, off})
			continue
		}
		n, err := q.Next(rng.IntN(2) == 0)
		if errors.Is(err, hasher.ErrWouldWait) {
			n, err = q.Next(true)
		}
		r := reads[0]
		reads = reads[1:]
		want := data[r.off:min(int64(len(data)), r.off+int64(len(r.p)))]
		if !bytes.Equal(r.p[:n], want) {
			t.Fatalf("%d bytes at %d: %d bytes, or others", len(r.p), r.off, n)
		}
		if (err == nil) != (n == len(r.p)) || err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%d bytes at %d: %d bytes, %v", len(r.p), r.off, n, err)
		}
	}
}

// TestQueue_leavesThePageCacheAsItWas: what is read past it is not in it then, and
// what was in it is. btrfs reads through it what it has not quite written yet, and
// keeps such pages for a while.
func TestQueue_leavesThePageCacheAsItWas(t *testing.T) {
	eachQueued(t, 4<<20, func(t *testing.T, f *File, data []byte) {
		for _, older := range []bool{false, true} {
			f.current.caches.Store(older)
			left := 1
			for try := 0; left > 0 && try < 10; try++ {
				time.Sleep(time.Duration(try) * 50 * time.Millisecond)
				left = pagesLeft(t, f, data)
			}
			if left > 0 {
				t.Errorf("older=%v: %d pages more are cached than before", older, left)
			}
		}
	})
}

// pagesLeft reads the file by a queue while some of it is in the page cache, and
// returns how many pages more are there then. None may be fewer.
func pagesLeft(t *testing.T, f *File, data []byte) (left int) {
	t.Helper()
	uncache(t, f)
	if err := unix.Fadvise(f.current.fd, 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, 1000), 1<<20+5000); err != nil {
		t.Fatal(err)
	}
	before := cachedPages(t, f, int64(len(data)))
	if !slices.Contains(before, true) {
		t.Fatal("nothing is cached at the start")
	}
	q := f.Queue()
	defer q.Close()
	got := aligned(len(data))
	for off := 0; off < len(got); off += queuedBytes {
		q.Submit(got[off:][:queuedBytes], int64(off))
	}
	for off := 0; off < len(got); off += queuedBytes {
		if n, err := q.Next(true); n != queuedBytes || err != nil {
			t.Fatalf("at %d: %d bytes, %v", off, n, err)
		}
	}
	if !bytes.Equal(got, data) {
		t.Error("the bytes differ")
	}
	for i, cached := range cachedPages(t, f, int64(len(data))) {
		if before[i] && !cached {
			t.Errorf("page %d was cached and is so no more", i)
		}
		if !before[i] && cached {
			left++
		}
	}
	return left
}

// TestQueue_isAhead: reads are under way before anybody waits for them, as many as
// may be, and their buffers are free when the queue is closed.
func TestQueue_isAhead(t *testing.T) {
	eachQueued(t, 4<<20, func(t *testing.T, f *File, _ []byte) {
		uncache(t, f)
		buf := aligned(4 << 20)
		q := f.Queue().(*queue)
		for off := 0; off < len(buf); off += queuedBytes {
			q.Submit(buf[off:][:queuedBytes], int64(off))
		}
		if _, err := q.Next(false); err == nil {
			t.Log("a read was done at once")
		}
		if q.aio.under == 0 {
			t.Error("nothing is under way")
		}
		if q.aio.under > aioReads {
			t.Errorf("%d reads are under way, more than %d", q.aio.under, aioReads)
		}
		q.Close()
		clear(buf)
		again := f.Queue().(*queue)
		defer again.Close()
		if again.aio.under != 0 {
			t.Errorf("%d reads are under way in a queue that is new", again.aio.under)
		}
		if i := slices.IndexFunc(buf, func(b byte) bool { return b != 0 }); i >= 0 {
			t.Errorf("byte %d was read after the queue was closed", i)
		}
	})
}

// TestQueue_cut: a file that is cut while it is read ends in an error, not in
// zeros or in what was there before.
func TestQueue_cut(t *testing.T) {
	eachQueued(t, 4<<20, func(t *testing.T, f *File, data []byte) {
		uncache(t, f)
		q := f.Queue()
		defer q.Close()
		if err := os.Truncate(f.Path(), 1<<20+100); err != nil {
			t.Fatal(err)
		}
		for off := int64(0); off < 4<<20; off += 1 << 20 {
			p := aligned(1 << 20)
			q.Submit(p, off)
			n, err := q.Next(true)
			want := max(0, min(1<<20, 1<<20+100-off))
			if int64(n) != want || !bytes.Equal(p[:n], data[off:][:n]) {
				t.Errorf("at %d: %d bytes, want %d", off, n, want)
			}
			if (n < len(p)) != errors.Is(err, io.EOF) {
				t.Errorf("at %d: %d bytes and %v", off, n, err)
			}
		}
	})
}

// TestAIO_layout: the structures are as large as the kernel's.
func TestAIO_layout(t *testing.T) {
	if n := unsafe.Sizeof(iocb{}); n != 64 {
		t.Errorf("struct iocb has 64 bytes, not %d", n)
	}
	if n := unsafe.Sizeof(ioEvent{}); n != 32 {
		t.Errorf("struct io_event has 32 bytes, not %d", n)
	}
}
