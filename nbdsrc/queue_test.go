//go:build cgo

package nbdsrc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"hashfs/hasher"
)

// checkQueues reads ranges of all kinds through queues, several at once: more
// than there are lanes.
func checkQueues(t *testing.T, e *Export, model []byte) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { checkQueue(t, e, model, rand.New(rand.NewPCG(uint64(i), 3))) })
	}
	wg.Wait()
}

// checkQueue compares what a queue gives with what ReadAt would.
func checkQueue(t *testing.T, e *Export, model []byte, rnd *rand.Rand) {
	q := e.Queue()
	defer q.Close()
	size := int64(len(model))
	type read struct {
		off int64
		p   []byte
	}
	var reads []read
	next := int64(0)
	for step := range 150 {
		if len(reads) == 0 || len(reads) < 5 && rnd.IntN(2) == 0 {
			off, n := next, int64(64<<10)
			if rnd.IntN(4) == 0 {
				off, n = rnd.Int64N(size+10), 1+rnd.Int64N(1<<uint(rnd.IntN(20)))
			}
			next = (off + n) % size
			r := read{off, bytes.Repeat([]byte{0xaa}, int(n))}
			q.Submit(r.p, r.off)
			reads = append(reads, r)
			continue
		}
		n, err := q.Next(step%3 == 0)
		if errors.Is(err, hasher.ErrWouldWait) {
			n, err = q.Next(true)
		}
		r := reads[0]
		reads = reads[1:]
		want := model[min(r.off, size):min(r.off+int64(len(r.p)), size)]
		if n != len(want) || !bytes.Equal(r.p[:n], want) || (err == io.EOF) != (n < len(r.p)) || err != nil && err != io.EOF {
			t.Errorf("read %d bytes at %d of %d: %d, %v", len(r.p), r.off, size, n, err)
		}
	}
}

// lanes returns how many lanes there are.
func lanes(e *Export) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.session == nil {
		return 0
	}
	e.session.joining.Lock()
	defer e.session.joining.Unlock()
	return len(e.session.lanes)
}

// TestQueue_lanes: all connections but one are lanes, each with one user, and
// who finds none free shares the one.
func TestQueue_lanes(t *testing.T) {
	data := content(1 << 20)
	e := nbdkit(t, "file", diskFile(t, data)).open(Options{})
	until(t, "all connections are there", func() bool { return e.Connections() == 4 })
	if n := lanes(e); n != 3 {
		t.Errorf("%d lanes", n)
	}
	var open []*queue
	for i := range 4 {
		q := e.Queue().(*queue)
		if (q.lane == nil) != (i == 3) {
			t.Errorf("queue %d has the lane %v", i, q.lane)
		}
		open = append(open, q)
	}
	bufs := make([][]byte, len(open))
	for i, q := range open {
		bufs[i] = make([]byte, 64<<10)
		q.Submit(bufs[i], int64(i)<<16)
	}
	for i, q := range open {
		if n, err := q.Next(true); n != 64<<10 || err != nil || !bytes.Equal(bufs[i], data[i<<16:][:64<<10]) {
			t.Errorf("queue %d: %d, %v", i, n, err)
		}
	}
	lane := open[0].lane
	open[0].Close()
	again := e.Queue().(*queue)
	if again.lane != lane {
		t.Errorf("the lane that is free is not taken")
	}
	for _, q := range append(open[1:], again) {
		q.Close()
	}
}

// TestQueue_lost: the reads of a server that dies fail in time or are made by
// another one, and give no wrong byte.
func TestQueue_lost(t *testing.T) {
	for _, connections := range []int{1, 4} {
		const piece = 128 << 10
		data := content(4 << 20)
		s := slowDisk(t, len(data), "rdelay=50ms")
		e := s.open(Options{Timeout: 2 * time.Second, Connections: connections})
		until(t, "all connections are there", func() bool { return e.Connections() == connections })
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				q := e.Queue()
				defer q.Close()
				bufs := make([][]byte, 8)
				off := int64(i) << 20
				for k := range bufs {
					bufs[k] = make([]byte, piece)
					q.Submit(bufs[k], off+int64(k)*piece)
				}
				for k := range bufs[:7] { // one is left to Close
					start := time.Now()
					n, err := q.Next(true)
					if d := time.Since(start); d > 4*time.Second {
						t.Errorf("took %v", d)
					}
					if err == nil && n == piece && bytes.Equal(bufs[k], data[off+int64(k)*piece:][:piece]) {
						continue
					}
					if n != 0 || !errors.Is(err, ErrLost) {
						t.Errorf("read: %d, %v", n, err)
					}
				}
			})
		}
		inFlight(t, e, 3)
		s.kill()
		wg.Wait()
		s.argv[len(s.argv)-1] = "rdelay=0"
		s.start()
		until(t, "it is connected again", func() bool { return e.Connections() == connections })
		checkQueues(t, e, data)
	}
}

// TestQueue_stalled: a server that hangs keeps a reader no longer than he
// wants, and no longer than the timeout.
func TestQueue_stalled(t *testing.T) {
	for _, connections := range []int{1, 4} {
		s := qemuNBD(t, diskFile(t, content(1<<20)), "-e", "8")
		e := s.open(Options{Timeout: time.Second, Connections: connections})
		if e.MultiConn() {
			until(t, "all connections are there", func() bool { return e.Connections() == connections })
		}
		q := e.Queue()
		s.stop()
		q.Submit(make([]byte, 4096), 0)
		q.Submit(make([]byte, 4096), 4096)
		start := time.Now()
		if _, err := q.Next(false); !errors.Is(err, hasher.ErrWouldWait) {
			t.Errorf("next: %v", err)
		}
		if d := time.Since(start); d < queuePatience || d > 500*time.Millisecond {
			t.Errorf("would wait, after %v", d)
		}
		if _, err := q.Next(true); !errors.Is(err, ErrLost) {
			t.Errorf("next: %v", err)
		}
		q.Close()
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("failed after %v", d)
		}
		s.carryOn()
	}
}

// TestQueue_errors: an error that the server answers is that of one read.
func TestQueue_errors(t *testing.T) {
	e := nbdkit(t, "--filter=error", "memory", "1M", "error=EIO", "error-pread-rate=1").open(Options{})
	until(t, "all connections are there", func() bool { return e.Connections() == 4 })
	q := e.Queue()
	defer q.Close()
	for i := range int64(3) {
		q.Submit(make([]byte, 4096), i*4096)
	}
	for range 2 {
		if n, err := q.Next(true); n != 0 || err == nil || errors.Is(err, ErrLost) {
			t.Errorf("%d, %v", n, err)
		}
	}
	if n := e.Connections(); n != 4 {
		t.Errorf("%d connections are left", n)
	}
}

// TestQueue_closedExport: a queue that is open when its export is closed holds
// it up no more than a stranger, and fails.
func TestQueue_closedExport(t *testing.T) {
	e := nbdkit(t, "memory", "1M").open(Options{})
	until(t, "all connections are there", func() bool { return e.Connections() == 4 })
	q := e.Queue()
	q.Submit(make([]byte, 4096), 0)
	check(t, e.Close())
	if n, err := q.Next(true); n != 0 || !errors.Is(err, hasher.ErrClosed) {
		t.Errorf("%d, %v", n, err)
	}
	q.Close()
}

// TestPreferred: requests are of the size that the server prefers, also where that
// is more than ours: those of a pass over the image, and writes.
func TestPreferred(t *testing.T) {
	const size = 8 << 20
	for _, tc := range []struct{ preferred, maximum, want int64 }{
		{4096, 32 << 20, pieceBytes},
		{64 << 10, 96 << 10, 64 << 10},
		{1 << 20, 32 << 20, 1 << 20},
		{4 << 20, 32 << 20, 4 << 20},
		{8 << 20, 32 << 20, pieceBytes}, // too much for our buffers
	} {
		log := filepath.Join(shortDir(t), "log")
		s := nbdkit(t, "--filter=log", "--filter=blocksize-policy", "file", diskFile(t, content(size)), "logfile="+log,
			"blocksize-minimum=1", fmt.Sprintf("blocksize-preferred=%d", tc.preferred), fmt.Sprintf("blocksize-maximum=%d", tc.maximum))
		e := s.open(Options{Writable: true})
		checkSum(t, newImage(t, e), content(size))
		check2(t)(e.WriteAt(content(size), 0))
		check(t, e.Close())
		text, err := os.ReadFile(log)
		check(t, err)
		for _, op := range []string{"Read", "Write"} {
			found := regexp.MustCompile(" "+op+" id=.* offset=(0x[0-9a-f]+) count=(0x[0-9a-f]+)").FindAllSubmatch(text, -1)
			for _, m := range found {
				off, err := strconv.ParseInt(string(m[1]), 0, 64)
				check(t, err)
				n, err := strconv.ParseInt(string(m[2]), 0, 64)
				check(t, err)
				if n != tc.want || off%n != 0 {
					t.Errorf("preferred %d, maximum %d: %s of %d bytes at %d", tc.preferred, tc.maximum, op, n, off)
				}
			}
			if int64(len(found)) != size/tc.want {
				t.Errorf("preferred %d, maximum %d: %d times %s", tc.preferred, tc.maximum, len(found), op)
			}
		}
	}
}
