//go:build cgo

package nbdsrc

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"hashfs/hasher"
)

// content is what the servers of the conformance run hold: data, zeros that
// are data, a hole in the middle, and an end that no block size divides.
func content(size int) []byte {
	p := make([]byte, size)
	rnd := rand.NewChaCha8([32]byte{1})
	rnd.Read(p[:size/3])
	rnd.Read(p[size-size/4:])
	clear(p[4096:8192])
	return p
}

func sparseFile(t testing.TB, content []byte) string {
	t.Helper()
	path := diskFile(t, nil)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	check(t, f.Truncate(int64(len(content))))
	for off := 0; off < len(content); off += 4096 {
		block := content[off:min(off+4096, len(content))]
		if off == 4096 || !bytes.Equal(block, zeros[:len(block)]) {
			_, err := f.WriteAt(block, int64(off))
			check(t, err)
		}
	}
	return path
}

// TestConformance runs every kind of server through the same checks.
func TestConformance(t *testing.T) {
	const size = 3<<20 + 512
	data := content(size)
	odd := content(size - 211)
	rounded := append(bytes.Clone(odd), make([]byte, 211)...)
	for _, tc := range []struct {
		name string
		data []byte
		run  func(t *testing.T) *server
		o    Options

		multi     bool // several connections are allowed
		readOnly  bool
		noExtents bool // no block status
		noHoles   bool // block status that knows data only
	}{
		{name: "nbdkit file", data: odd, multi: true,
			run: func(t *testing.T) *server { return nbdkit(t, "file", sparseFile(t, odd)) }},
		{name: "nbdkit file read-only", data: data, multi: true, readOnly: true,
			run: func(t *testing.T) *server { return nbdkit(t, "-r", "file", sparseFile(t, data)) }},
		{name: "rounded up", data: rounded, multi: true, readOnly: true,
			run: func(t *testing.T) *server {
				return nbdkit(t, "-r", "--filter=truncate", "file", sparseFile(t, odd), "round-up=512")
			}},
		{name: "one connection of four", data: data, multi: true, o: Options{Connections: 1},
			run: func(t *testing.T) *server { return nbdkit(t, "file", sparseFile(t, data)) }},
		{name: "noextents", data: data, multi: true, noHoles: true,
			run: func(t *testing.T) *server { return nbdkit(t, "--filter=noextents", "file", sparseFile(t, data)) }},
		{name: "distrusted", data: data, multi: true, noExtents: true, o: Options{NoExtents: true},
			run: func(t *testing.T) *server { return nbdkit(t, "file", sparseFile(t, data)) }},
		{name: "nozero", data: data, multi: true,
			run: func(t *testing.T) *server { return nbdkit(t, "--filter=nozero", "file", sparseFile(t, data)) }},
		{name: "zero is not supported", data: data, multi: true,
			run: func(t *testing.T) *server {
				return nbdkit(t, "--filter=nozero", "file", sparseFile(t, data), "zeromode=notrim")
			}},
		{name: "noparallel", data: data, multi: true,
			run: func(t *testing.T) *server { return nbdkit(t, "--filter=noparallel", "file", sparseFile(t, data)) }},
		{name: "serialized connections", data: data,
			run: func(t *testing.T) *server {
				return nbdkit(t, "--filter=noparallel", "--filter=multi-conn", "file", sparseFile(t, data),
					"serialize=connections", "multi-conn-mode=disable")
			}},
		{name: "no structured replies", data: data, multi: true, noExtents: true,
			run: func(t *testing.T) *server { return nbdkit(t, "--no-sr", "file", sparseFile(t, data)) }},
		{name: "minimum of 4096", data: data[:size-512], multi: true,
			run: func(t *testing.T) *server {
				return nbdkit(t, "--filter=blocksize-policy", "file", sparseFile(t, data[:size-512]),
					"blocksize-minimum=4096", "blocksize-preferred=64k", "blocksize-maximum=192k", "blocksize-error-policy=error")
			}},
		{name: "minimum of 65536", data: data[:size-512], multi: true,
			run: func(t *testing.T) *server {
				return nbdkit(t, "--filter=blocksize-policy", "file", sparseFile(t, data[:size-512]),
					"blocksize-minimum=65536", "blocksize-preferred=1M", "blocksize-maximum=1M", "blocksize-error-policy=error")
			}},
		{name: "blocksize filter", data: data, multi: true,
			run: func(t *testing.T) *server {
				return nbdkit(t, "--filter=blocksize", "file", sparseFile(t, data), "minblock=512", "maxdata=64k", "maxlen=128k")
			}},
		{name: "exitlast", data: data, multi: true,
			run: func(t *testing.T) *server { return nbdkit(t, "--filter=exitlast", "file", sparseFile(t, data)) }},
		{name: "slow", data: data, multi: true,
			run: func(t *testing.T) *server {
				return nbdkit(t, "--filter=delay", "file", sparseFile(t, data), "rdelay=1ms", "wdelay=1ms")
			}},
		{name: "qemu-nbd -e 1", data: data,
			run: func(t *testing.T) *server { return qemuNBD(t, sparseFile(t, data), "-e", "1") }},
		{name: "qemu-nbd -e 8", data: data, multi: true,
			run: func(t *testing.T) *server { return qemuNBD(t, sparseFile(t, data), "-e", "8") }},
		{name: "qemu-nbd read-only", data: data, multi: true, readOnly: true,
			run: func(t *testing.T) *server { return qemuNBD(t, sparseFile(t, data), "-e", "8", "-r") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := tc.run(t)
			o := tc.o
			o.Writable = !tc.readOnly
			e := s.open(o)
			if e.Size() != int64(len(tc.data)) || e.ReadOnly() != tc.readOnly || e.MultiConn() != tc.multi || e.HasExtents() == tc.noExtents {
				t.Errorf("size %d, read-only %v, several connections %v, extents %v; server said %s",
					e.Size(), e.ReadOnly(), e.MultiConn(), e.HasExtents(), s.output)
			}
			model := bytes.Clone(tc.data)
			checkReads(t, e, model)
			checkQueues(t, e, model)
			checkExtents(t, e, model)
			zero := zeroBytes(t, e)
			if tc.noExtents || tc.noHoles {
				if zero > 0 {
					t.Errorf("%d bytes are zero, and nobody said so", zero)
				}
			} else if zero < size/3 {
				t.Errorf("%d bytes are zero", zero)
			}
			if tc.readOnly {
				checkRefused(t, e)
				return
			}
			checkWrites(t, e, model)
			checkExtents(t, e, model)
			check(t, e.Flush())
			want := 4
			if !tc.multi || tc.o.Connections == 1 {
				want = 1
			}
			until(t, "all connections are there", func() bool { return e.Connections() == want })
			checkReads(t, e, model)
			checkQueues(t, e, model)
		})
	}
}

// checkReads reads ranges of all kinds, several at once.
func checkReads(t *testing.T, e *Export, model []byte) {
	t.Helper()
	size := int64(len(model))
	ranges := [][2]int64{{0, size}, {0, 0}, {1, 1}, {511, 2}, {4095, 4098}, {size - 1, 1}, {size - 4097, 4097}, {65536, 262144}}
	for range 60 {
		off := rand.Int64N(size)
		ranges = append(ranges, [2]int64{off, 1 + rand.Int64N(min(size-off, 1<<uint(rand.IntN(21))))})
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for _, r := range ranges[i*len(ranges)/4 : (i+1)*len(ranges)/4] {
				p := bytes.Repeat([]byte{0xaa}, int(r[1]))
				n, err := e.ReadAt(p, r[0])
				if int64(n) != r[1] || err != nil {
					t.Errorf("read %v: %d, %v", r, n, err)
				} else if !bytes.Equal(p, model[r[0]:][:r[1]]) {
					t.Errorf("read %v: wrong bytes", r)
				}
			}
		})
	}
	wg.Wait()
	for _, off := range []int64{size - 10, size, size + 5} {
		p := make([]byte, 20)
		n, err := e.ReadAt(p, off)
		if want := max(0, size-off); int64(n) != want || err != io.EOF {
			t.Errorf("read at %d of %d: %d, %v", off, size, n, err)
		}
	}
	if _, err := e.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("read at -1")
	}
}

// extents lists extents, after checking that they cover the range in order.
func extents(t *testing.T, e *Export, off, length int64) (list []hasher.Extent) {
	t.Helper()
	pos := off
	check(t, e.Extents(t.Context(), off, length, func(x hasher.Extent) bool {
		if x.Offset != pos || x.Length <= 0 {
			t.Errorf("extent %+v at %d", x, pos)
		}
		pos = x.End()
		list = append(list, x)
		return true
	}))
	if pos != off+length {
		t.Errorf("extents of [%d, %d) end at %d", off, off+length, pos)
	}
	return list
}

func zeroBytes(t *testing.T, e *Export) (n int64) {
	t.Helper()
	for _, x := range extents(t, e, 0, e.Size()) {
		if x.Zero() {
			n += x.Length
		}
	}
	return n
}

// checkExtents checks that no zero extent holds data.
func checkExtents(t *testing.T, e *Export, model []byte) {
	t.Helper()
	size := int64(len(model))
	for _, r := range [][2]int64{{0, size}, {0, 0}, {1, size - 1}, {size - 1, 1}, {size / 3, size / 4}, {12345, 1000001}} {
		for _, x := range extents(t, e, r[0], r[1]) {
			if x.Zero() {
				for i, b := range model[x.Offset:x.End()] {
					if b != 0 {
						t.Fatalf("extent %+v: byte at %d is %d", x, x.Offset+int64(i), b)
					}
				}
			}
		}
	}
	n := 0
	check(t, e.Extents(t.Context(), 0, size, func(hasher.Extent) bool { n++; return false }))
	if n != 1 {
		t.Errorf("went on after yield returned false")
	}
}

// checkRefused checks that nothing can be written.
func checkRefused(t *testing.T, e *Export) {
	t.Helper()
	if e.Writable() {
		t.Error("is writable")
	}
	_, err := e.WriteAt([]byte{1}, 0)
	for op, err := range map[string]error{"write": err, "zero": e.Zero(0, 1, false), "punch": e.Zero(0, 1, true), "flush": e.Flush()} {
		if !errors.Is(err, hasher.ErrReadOnly) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// checkWrites writes, zeroes and punches ranges of all kinds, several at once
// in regions of their own whose borders no unit of alignment knows, and keeps
// model in step.
func checkWrites(t *testing.T, e *Export, model []byte) {
	t.Helper()
	if !e.Writable() {
		t.Fatal("is not writable")
	}
	size := int64(len(model))
	var wg sync.WaitGroup
	for i := range int64(4) {
		lo, hi := i*size/4+i, (i+1)*size/4+i+1
		hi = min(hi, size)
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 7))
			for step := range 40 {
				off := lo + rnd.Int64N(hi-lo)
				length := 1 + rnd.Int64N(min(hi-off, 1<<uint(rnd.IntN(19))))
				if step == 0 {
					off, length = lo, 1
				} else if step == 1 {
					off, length = hi-1, 1
				}
				p := model[off : off+length]
				var err error
				n := len(p)
				switch op := rnd.IntN(4); op {
				case 0, 1:
					rand.NewChaCha8([32]byte{byte(i), byte(step)}).Read(p)
					n, err = e.WriteAt(p, off)
				default:
					if err = e.Zero(off, length, op == 2); err == nil {
						clear(p)
					} else if op == 2 && errors.Is(err, hasher.ErrNotSupported) {
						err = nil
					}
				}
				if n != len(p) || err != nil {
					t.Errorf("[%d, %d): %d, %v", off, off+length, n, err)
				}
			}
		})
	}
	wg.Wait()
	if err := e.Allocate(0, 1); !errors.Is(err, hasher.ErrNotSupported) {
		t.Error("allocate:", err)
	}
	if n, err := e.WriteAt([]byte{1, 2}, size-1); n != 0 || err == nil {
		t.Errorf("write over the end: %d, %v", n, err)
	}
}
