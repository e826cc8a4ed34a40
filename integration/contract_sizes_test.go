package integration

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A dimension is one image of a mount with its digests.
type dimension struct {
	name   string
	spec   string // DIGEST/SIZE
	alg    algorithm
	bs     int64
	size   int64
	pieces []piece
}

func (d dimension) oracle() *oracle {
	return newSparseOracle(d.alg.new, d.bs, d.size, d.pieces...)
}

// sizes are the stat sizes of the files of an image whose length depends on it.
func (d dimension) sizes() map[string]int64 {
	n, digest := (d.size+d.bs-1)/d.bs, int64(d.alg.new().Size())
	want := map[string]int64{
		"checksum":           2*digest + 1,
		"digests":            n * (2*digest + 26),
		"digests.bin":        n * digest,
		"image":              d.size,
		"sums/" + d.alg.name: 2*digest + 1,
		"sums/sha512":        129,
		"blocks":             0,
	}
	if n > 0 {
		want[fmt.Sprintf("blocks/%016x", (n-1)*d.bs)] = d.size - (n-1)*d.bs
		want["blocks/0000000000000000"] = min(d.bs, d.size)
	}
	return want
}

// mountDimensions mounts the images, which checkDimensions then looks at.
func mountDimensions(t *testing.T, all []dimension) *mounted {
	t.Helper()
	dir := scratch(t)
	var args []string
	for _, d := range all {
		path := filepath.Join(dir, d.name)
		writeSparse(t, path, d.size, d.pieces...)
		args = append(args, path+",digest="+d.spec)
	}
	m := mount(t, args...)
	// All is looked at before anything is read.
	for _, d := range all {
		for file, want := range d.sizes() {
			info, err := os.Stat(m.path(d.name, file))
			if err != nil {
				t.Errorf("%s: %v", d.name, err)
			} else if info.Size() != want {
				t.Errorf("%s: the size of %s is %d, want %d", d.name, file, info.Size(), want)
			}
		}
	}
	for _, d := range all {
		i := m.info(d.name)
		if n := (d.size + d.bs - 1) / d.bs; i.Blocks.Unknown != n || i.Blocks.Total != n || i.Size != d.size || i.BlockSize != d.bs || i.Digest != d.alg.name {
			t.Errorf("%s: %+v", d.name, i)
		}
	}
	return m
}

// checkDimensions compares every file with the plain computation.
func (m *mounted) checkDimensions(all []dimension) {
	t := m.t
	t.Helper()
	for _, d := range all {
		o := d.oracle()
		m.checkDigests(d.name, o)
		data := make([]byte, d.size)
		for _, p := range d.pieces {
			copy(data[p.offset:], p.data)
		}
		same(t, d.name+"/image", m.read(d.name, "image"), string(data))
		same(t, d.name+"/sums/"+d.alg.name, m.read(d.name, "sums", d.alg.name), hex.EncodeToString(digest(d.alg.new, data))+"\n")
		if d.size > 0 {
			last := (d.size - 1) / d.bs * d.bs
			same(t, d.name+", last block", m.read(d.name, "blocks", fmt.Sprintf("%016x", last)), string(data[last:]))
		}
		checkMapSums(t, d.name, m.read(d.name, "map"), d.size)
		i := m.info(d.name)
		if i.Blocks.Unknown != 0 || i.Blocks.Failed != 0 || i.Blocks.Zero+i.Blocks.Data != i.Blocks.Total {
			t.Errorf("%s: after all was read: %+v", d.name, i.Blocks)
		}
	}
}

// checkMapSums checks that a map is one run of extents from 0 to size, none of
// them empty and no two alike beside each other.
func checkMapSums(t testing.TB, name, text string, size int64) {
	t.Helper()
	var at int64
	before := ""
	for line := range strings.Lines(text) {
		var off, length, bits int64
		var kind string
		if _, err := fmt.Sscanf(line, "%d %d %d %s", &off, &length, &bits, &kind); err != nil {
			t.Fatalf("%s: map line %q: %v", name, line, err)
		}
		if line != fmt.Sprintf("%10d  %10d  %3d  %s\n", off, length, bits, kind) || off != at || length <= 0 || kind == before {
			t.Errorf("%s: map line %q after %d, %s", name, line, at, before)
		}
		at, before = off+length, kind
	}
	if at != size {
		t.Errorf("%s: the map ends at %d, the image at %d", name, at, size)
	}
}

// Every algorithm at every size around the borders of blocks.
func TestSizes_algorithms(t *testing.T) {
	t.Parallel()
	const bs = 4096
	var all []dimension
	for _, a := range algorithms {
		for _, size := range []int64{0, 1, bs - 1, bs, bs + 1, 5*bs + 77} {
			d := dimension{fmt.Sprintf("%s-%d", a.name, size), a.name + "/4k", a, bs, size, nil}
			if size > 0 {
				d.pieces = []piece{{0, random(uint64(size), size)}}
			}
			all = append(all, d)
		}
	}
	mountDimensions(t, all).checkDimensions(all)
}

// Blocks from the smallest to the largest.
func TestSizes_blocks(t *testing.T) {
	t.Parallel()
	md5, sha256 := algorithms[0], algorithms[3]
	var all []dimension
	add := func(a algorithm, suffix string, bs int64, sizes ...int64) {
		for _, size := range sizes {
			d := dimension{fmt.Sprintf("%s-%s-%d", a.name, suffix, size), a.name + "/" + suffix, a, bs, size, nil}
			// Data at the start, in the midst and at the end; the rest is a hole.
			for i, at := range []int64{0, size / 2, size - 5000} {
				if at >= 0 && at < size {
					d.pieces = append(d.pieces, piece{at, random(uint64(i), min(5000, size-at))})
				}
			}
			all = append(all, d)
		}
	}
	for _, a := range []algorithm{md5, sha256} {
		add(a, "4", 4, 0, 1, 3, 4, 5, 23, 100003)
		add(a, "8", 8, 7, 8, 9, 100003)
		add(a, "512", 512, 511, 512, 513, 100003)
		add(a, "64k", 65536, 65535, 65536, 65537, 1000003)
		add(a, "1M", mib, mib-1, mib, mib+1, 3*mib+77)
	}
	add(sha256, "64m", 64*mib, 1, 64*mib-1, 64*mib, 64*mib+1)
	mountDimensions(t, all).checkDimensions(all)
}

// sumOfRuns is the checksum of an image in runs of blocks with one digest.
func sumOfRuns(size int64, runs []run256) string {
	h := sha256.New()
	for _, r := range runs {
		many := []byte(strings.Repeat(string(r.digest), 1024))
		for left := r.blocks; left > 0; {
			n := min(left, 1024)
			h.Write(many[:n*int64(len(r.digest))])
			left -= n
		}
	}
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
	return hex.EncodeToString(h.Sum(nil))
}

// run256 is a number of blocks with the same SHA-256.
type run256 struct {
	blocks int64
	digest []byte
}

// An image of 4 TiB, with data far from its start and a tail, costs what its
// data costs, and the single pass over its digests.
func TestSizes_4TiB(t *testing.T) {
	t.Parallel()
	const size = 4*tib + 1000
	const at = 3*tib + 5*blockSize
	block, tail := random(20, blockSize), random(21, 1000)
	path := filepath.Join(scratch(t), "huge.img")
	writeSparse(t, path, size, piece{at, block}, piece{4 * tib, tail})
	m := mount(t, path)

	const blocks = 4*tib/blockSize + 1
	for file, want := range map[string]int64{"digests": blocks * 90, "digests.bin": blocks * 32, "image": size, "checksum": 65} {
		if info, err := os.Stat(m.path("huge", file)); err != nil || info.Size() != want {
			t.Errorf("%s: %v, %v, want %d bytes", file, info, err, want)
		}
	}
	line := func(content []byte, off int64) string {
		return fmt.Sprintf("%x  blocks/%016x\n", sha256.Sum256(content), off)
	}
	zero := make([]byte, blockSize)
	same(t, "the last line of digests", output(t, "tail", "-c", "90", m.path("huge", "digests")), line(tail, 4*tib))
	same(t, "three lines of digests", output(t, "dd", "status=none", "bs=90", "count=3", fmt.Sprintf("skip=%d", at/blockSize-1), "if="+m.path("huge", "digests")),
		line(zero, at-blockSize)+line(block, at)+line(zero, at+blockSize))
	same(t, "a block", m.read("huge", "blocks", fmt.Sprintf("%016x", at)), string(block))
	same(t, "the tail", m.read("huge", "blocks", fmt.Sprintf("%016x", 4*tib)), string(tail))
	same(t, "map", m.read("huge", "map"), output(t, "printf", `%10d  %10d  %3d  %s\n`,
		"0", fmt.Sprint(at), "3", "hole,zero",
		fmt.Sprint(at), "65536", "0", "data",
		fmt.Sprint(at+blockSize), fmt.Sprint(4*tib-at-blockSize), "3", "hole,zero",
		fmt.Sprint(4*tib), "1000", "0", "data"))

	zeroDigest := digest(sha256.New, zero)
	want := sumOfRuns(size, []run256{
		{at / blockSize, zeroDigest}, {1, digest(sha256.New, block)},
		{(4*tib-at)/blockSize - 1, zeroDigest}, {1, digest(sha256.New, tail)},
	})
	same(t, "checksum", m.read("huge", "checksum"), want+"\n")
	if hashed := m.metric(`hashfs_image_hashed_bytes_total{image="huge"}`); hashed > 2*blockSize {
		t.Errorf("%.0f bytes were read and hashed, the data is less than two blocks", hashed)
	}
	same(t, "hashfs sum", output(t, program, "sum", path), want+"  "+path+"\n")
}

// The first line of digests costs one block, however large the image.
func TestSizes_first_line(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "big.img")
	data := random(22, 4*mib)
	writeSparse(t, path, tib, piece{0, data}, piece{tib / 2, data})
	m := mount(t, path)
	for _, argv := range [][]string{{"head", "-c", "90"}, {"busybox", "head", "-c", "90"}, {"head", "-n", "1"}, {"sed", "1q"}} {
		need(t, argv[0])
		got := output(t, append(argv, m.path("big", "digests"))...)
		same(t, argv[0], got, fmt.Sprintf("%x  blocks/%016x\n", sha256.Sum256(data[:blockSize]), 0))
	}
	// head -n and sed read a buffer's worth of lines; head -c must not.
	m2 := mount(t, path)
	output(t, "head", "-c", "90", m2.path("big", "digests"))
	i := m2.info("big")
	if known := i.Blocks.Total - i.Blocks.Unknown; known > 1 || i.Cache.Misses > 1 {
		t.Errorf("after head -c 90: %d blocks are known, %d were hashed", known, i.Cache.Misses)
	}
	if hashed := m2.metric(`hashfs_image_hashed_bytes_total{image="big"}`); hashed != blockSize {
		t.Errorf("after head -c 90: %.0f bytes were hashed", hashed)
	}
}
