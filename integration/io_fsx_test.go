package integration

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

var (
	fsxOps  = flag.Int("fsx.ops", 500, "operations of each run of TestFSX")
	fsxSeed = flag.Uint64("fsx.seed", 1, "seed of TestFSX")
)

// An fsx does random operations on an image, one after the other, and knows
// what they must come to. It is named after the program by which file systems
// are tested, which compares bytes; here digests are compared too.
type fsx struct {
	*diskMount
	rng    *rand.Rand
	model  []byte
	plain  *os.File // as most programs open it
	direct *os.File // by O_DIRECT
	mem    []byte   // a shared mapping of the whole image
	page   []byte   // a buffer of maxOp bytes that begins at a page
	views  []fsxView
}

// An fsxView is a handle of a file of digests with what it must show.
type fsxView struct {
	file *os.File
	want string
	born int // number of the operation before which it was opened
}

const maxOp = 300 << 10

func TestFSX(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		size int64
		bs   int64
	}{
		{"blocks as large as pages", 3*mib + 777, 4096},
		{"blocks of the default", 5*mib + 1, blockSize},
		{"blocks larger than requests", 9 * mib, 4 * mib},
		{"blocks smaller than sectors", 200*kib + 3, 64},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			x := &fsx{rng: rand.New(rand.NewPCG(*fsxSeed, uint64(row.bs))), model: random(19, row.size)}
			x.diskMount = writableDisk(t, x.model, "--digest", fmt.Sprintf("sha256/%d", row.bs))
			x.bs = row.bs
			x.plain, x.direct = x.open(os.O_RDWR), x.open(os.O_RDWR|unix.O_DIRECT)
			x.page = aligned(t, maxOp)
			var err error
			x.mem, err = unix.Mmap(int(x.plain.Fd()), 0, len(x.model), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(x.mem)
			defer func() {
				for _, v := range x.views {
					v.file.Close()
				}
			}()
			for i := range *fsxOps {
				what, err := x.step(i)
				if err != nil {
					t.Fatalf("seed %d, operation %d: %s: %v", *fsxSeed, i, what, err)
				}
			}
			sameBytes(t, "backing file", []byte(readFile(t, x.backing)), x.model)
			x.check("after all")
		})
	}
}

// step does one operation, and returns what it was.
func (x *fsx) step(i int) (what string, err error) {
	length := 1 + x.rng.Int64N(maxOp)
	if x.rng.IntN(3) > 0 {
		length = 1 + x.rng.Int64N(5000)
	}
	length = min(length, int64(len(x.model)))
	off := x.rng.Int64N(int64(len(x.model)) - length + 1)
	at := func(op string) string { return fmt.Sprintf("%s of %d at %d", op, length, off) }
	file, how := x.plain, ""
	if x.rng.IntN(2) == 0 {
		file, how = x.direct, ", direct"
	}
	switch n := x.rng.IntN(100); {
	case n < 30:
		return at("write" + how), x.write(file, off, length, i)
	case n < 38:
		return at("store" + how), x.store(off, length, i)
	case n < 50:
		return at("punch"), x.allocate(punch|keepSize, off, length)
	case n < 58:
		return at("zero"), x.allocate(zero, off, length)
	case n < 60:
		return at("allocate"), x.allocate(0, off, length)
	case n < 75:
		return at("read" + how), x.read(file, off, length)
	case n < 80:
		return at("load"), diff(x.mem[off:off+length], x.model[off:off+length])
	case n < 82:
		return "fsync", file.Sync()
	case n < 90:
		return "open digests", x.openView(i)
	case n < 95:
		return "read digests", x.readView(i)
	}
	return "compare digests", x.compare(off, length)
}

func (x *fsx) write(f *os.File, off, length int64, i int) error {
	p := x.page[:length]
	copy(p, random(uint64(i), length))
	copy(x.model[off:], p)
	n, err := f.WriteAt(p, off)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// store writes through the mapping.
func (x *fsx) store(off, length int64, i int) error {
	p := random(uint64(i), length)
	copy(x.mem[off:], p)
	copy(x.model[off:], p)
	page := int64(os.Getpagesize())
	return uninterrupted(func() error { return unix.Msync(x.mem[off&^(page-1):off+length], unix.MS_SYNC) })
}

func (x *fsx) allocate(mode uint32, off, length int64) error {
	if mode != 0 {
		clear(x.model[off : off+length])
	}
	return fallocate(x.plain, mode, off, length)
}

func (x *fsx) read(f *os.File, off, length int64) error {
	p := x.page[:length]
	if _, err := f.ReadAt(p, off); err != nil {
		return err
	}
	return diff(p, x.model[off:off+length])
}

func (x *fsx) oracle() *oracle { return newOracleOf(sha256.New, x.bs, x.model) }

func (x *fsx) openView(i int) error {
	name, want := "checksum", x.oracle().checksum()
	if x.rng.IntN(2) == 0 {
		name, want = "digests.bin", x.oracle().bin()
	}
	f, err := os.Open(x.path("disk", name))
	if err == nil {
		x.views = append(x.views, fsxView{f, want, i})
	}
	return err
}

// readView reads one of the handles that were opened, the whole or a part, and
// closes it now and then.
func (x *fsx) readView(i int) error {
	if len(x.views) == 0 {
		return nil
	}
	k := x.rng.IntN(len(x.views))
	v := x.views[k]
	from := x.rng.IntN(len(v.want))
	to := from + x.rng.IntN(len(v.want)-from) + 1
	got := make([]byte, to-from)
	if _, err := v.file.ReadAt(got, int64(from)); err != nil && err != io.EOF {
		return fmt.Errorf("%s, opened before operation %d: %w", v.file.Name(), v.born, err)
	}
	if err := diff(got, []byte(v.want[from:to])); err != nil {
		return fmt.Errorf("%s, opened before operation %d: bytes [%d, %d): %w", v.file.Name(), v.born, from, to, err)
	}
	if x.rng.IntN(3) == 0 || len(x.views) > 10 {
		v.file.Close()
		x.views = append(x.views[:k], x.views[k+1:]...)
	}
	return nil
}

// compare looks at the digests of now, of the whole or of the blocks in a range.
func (x *fsx) compare(off, length int64) error {
	o := x.oracle()
	if x.rng.IntN(2) == 0 {
		sum, err := readAll(x.path("disk", "checksum"))
		if err != nil {
			return err
		}
		return diff([]byte(sum), []byte(o.checksum()))
	}
	f, err := os.Open(x.path("disk", "digests.bin"))
	if err != nil {
		return err
	}
	defer f.Close()
	from, to := off/x.bs*sha256.Size, (off+length-1)/x.bs*sha256.Size+sha256.Size
	got := make([]byte, to-from)
	if _, err := f.ReadAt(got, from); err != nil {
		return err
	}
	return diff(got, o.blocks[from:to])
}

// diff returns an error that says where two equally long byte slices differ.
func diff(got, want []byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d is %#x, want %#x", i, got[i], want[i])
		}
	}
	return nil
}
