package integration

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// hashed returns how many bytes of the image were read and hashed so far.
func (d *diskMount) hashed() int64 {
	d.t.Helper()
	n, err := strconv.ParseFloat(d.metric(`hashfs_image_hashed_bytes_total{image="disk"}`), 64)
	if err != nil {
		d.t.Fatal(err)
	}
	return int64(n)
}

// Of a sparse image of a tebibyte, a line of digests costs one block, where it
// is data, and nothing where it is a hole.
func TestCost_one_line_of_digests(t *testing.T) {
	t.Parallel()
	need(t, "head", "tail")
	path := filepath.Join(scratch(t), "disk.img")
	const size = tib
	data := random(60, 10*blockSize)
	writeSparse(t, path, size, piece{0, data}, piece{tib / 2, data})
	d := mountDisk(t, path)
	digests := d.path("disk", "digests")
	line := func(content []byte, off int64) string {
		return fmt.Sprintf("%x  blocks/%016x\n", sha256.Sum256(content), off)
	}
	for _, row := range []struct {
		name string
		argv []string
		want string
		most int64 // bytes hashed
	}{
		{"the first", []string{"head", "-c", "90", digests}, line(data[:blockSize], 0), blockSize},
		{"the first, again", []string{"head", "-c", "90", digests}, line(data[:blockSize], 0), 0},
		{"the last, in a hole", []string{"tail", "-c", "90", digests}, line(make([]byte, blockSize), size-blockSize), 0},
		{"one in the midst", []string{"dd", "if=" + digests, "bs=90", "count=1", "status=none", fmt.Sprint("skip=", (tib/2)/blockSize+3)},
			line(data[3*blockSize:4*blockSize], tib/2+3*blockSize), blockSize},
	} {
		before := d.hashed()
		same(t, row.name, output(t, row.argv...), row.want)
		if n := d.hashed() - before; n > row.most {
			t.Errorf("%s: %d bytes were hashed, want at most %d", row.name, n, row.most)
		}
	}
}

// A checksum after a write reads what was written and no more.
func TestCost_checksum_after_a_write(t *testing.T) {
	t.Parallel()
	const size = 64 * mib
	data := random(61, size)
	d := writableDisk(t, data)
	same(t, "checksum", d.read("disk", "checksum"), newOracle(data).checksum())
	if n := d.hashed(); n != size {
		t.Errorf("%d bytes were hashed for the first checksum, want %d", n, size)
	}
	f := d.open(os.O_RDWR)
	for _, row := range []struct {
		name        string
		off, length int64
		want        int64 // bytes hashed
	}{
		{"a block", 100 * blockSize, blockSize, blockSize},
		{"a block again", 100 * blockSize, blockSize, blockSize},
		{"a byte", 555*blockSize + 5, 1, blockSize},
		{"across a border", 777*blockSize - 10, 20, 2 * blockSize},
		{"the last block", size - blockSize, blockSize, blockSize},
		{"nothing", 0, 0, 0},
	} {
		before := d.hashed()
		p := random(uint64(row.off+row.length), row.length)
		if _, err := f.WriteAt(p, row.off); err != nil {
			t.Fatal(err)
		}
		copy(data[row.off:], p)
		same(t, row.name+": checksum", d.read("disk", "checksum"), newOracle(data).checksum())
		if n := d.hashed() - before; n != row.want {
			t.Errorf("%s: %d bytes were hashed, want %d", row.name, n, row.want)
		}
	}

	// What is known from hashing it is not hashed for a view; nor is a hole.
	view := d.openMoment(data)[0]
	before := d.hashed()
	if _, err := f.WriteAt(random(62, 10*blockSize), 200*blockSize); err != nil {
		t.Fatal(err)
	}
	same(t, "checksum of before", readOpen(t, view.File), view.want)
	if n := d.hashed() - before; n != 0 {
		t.Errorf("%d bytes were hashed for a view that had all digests, want none", n)
	}
}

// readOpen reads an open file from its start.
func readOpen(t testing.TB, f *os.File) string {
	t.Helper()
	p := make([]byte, 1<<20)
	n, _ := f.ReadAt(p, 0)
	return string(p[:n])
}

// The checksum of a hole of four tebibytes costs no more than its data, and its
// map a line an extent.
func TestCost_sparse_4_TiB(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "disk.img")
	const size, bs = 4*tib + 12345, 4 * mib
	data := random(63, blockSize)
	at := 3*tib + 5*blockSize
	writeSparse(t, path, size, piece{at, data})
	d := mountDisk(t, path, fmt.Sprintf("--digest=sha256/%d", bs))
	same(t, "checksum", d.read("disk", "checksum"), sparseChecksum(bs, size, at, data)+"\n")
	if n := d.hashed(); n > bs {
		t.Errorf("%d bytes were hashed, want at most %d", n, bs)
	}
	same(t, "map", d.read("disk", "map"), extentLines([]extent{
		{0, at, false}, {at, blockSize, true}, {at + blockSize, size - at - blockSize, false},
	}))
	if st, err := os.Stat(d.path("disk", "digests.bin")); err != nil || st.Size() != (size+bs-1)/bs*32 {
		t.Errorf("digests.bin: %v, %v", st, err)
	}
}

// sparseChecksum returns the checksum of an image of size bytes that is zeros
// but for data within one block, in the memory of a few blocks.
func sparseChecksum(bs, size, off int64, data []byte) string {
	outer := sha256.New()
	block := make([]byte, bs)
	zero := sha256.Sum256(block)
	for at := int64(0); at < size; at += bs {
		switch length := min(bs, size-at); {
		case at <= off && off < at+bs:
			copy(block[off-at:], data)
			sum := sha256.Sum256(block[:length])
			outer.Write(sum[:])
			clear(block)
		case length < bs:
			sum := sha256.Sum256(block[:length])
			outer.Write(sum[:])
		default:
			outer.Write(zero[:])
		}
	}
	outer.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
	return fmt.Sprintf("%x", outer.Sum(nil))
}
