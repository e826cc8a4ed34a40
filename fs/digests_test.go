package fs

import (
	"bytes"
	"fmt"
	"testing"
)

func TestRecords_touched(t *testing.T) {
	for _, c := range []struct {
		why                        string
		off, length, record, total int64
		first, n, size             int64
	}{
		{"one line is one block", 0, 90, 90, 1000, 0, 1, 90},
		{"one byte more is two", 0, 91, 90, 1000, 0, 2, 91},
		{"within a line", 100, 10, 90, 1000, 1, 1, 10},
		{"over a border", 89, 2, 90, 1000, 0, 2, 2},
		{"cut at the end", 89_990, 4096, 90, 1000, 999, 1, 10},
		{"at the end", 90_000, 4096, 90, 1000, 0, 0, 0},
		{"beyond the end", 1 << 60, 4096, 90, 1000, 0, 0, 0},
		{"nothing", 0, 0, 90, 1000, 0, 0, 0},
		{"an empty image", 0, 4096, 90, 0, 0, 0, 0},
		{"the largest image", 154*(1<<32) - 1, 4096, 154, 1 << 32, 1<<32 - 1, 1, 1},
	} {
		t.Run(c.why, func(t *testing.T) {
			first, n, size := records(c.off, c.length, c.record, c.total)
			if first != c.first || n != c.n || size != c.size {
				t.Errorf("got [%d, +%d), %d bytes; want [%d, +%d), %d bytes", first, n, size, c.first, c.n, c.size)
			}
		})
	}
}

// Every read of digests gives what a file of these lines would.
func TestRenderLines_everyRange(t *testing.T) {
	const digest, blocks, blockSize = 3, 5, 1 << 16
	digests := []byte("abcdefghijklmno")
	var want []byte
	for i := range blocks {
		want = fmt.Appendf(want, "%x  blocks/%016x\n", digests[i*digest:(i+1)*digest], i*blockSize)
	}
	if int64(len(want)) != blocks*lineSize(digest) {
		t.Fatalf("%d bytes, want %d", len(want), blocks*lineSize(digest))
	}
	for off := range len(want) {
		for end := off + 1; end <= len(want); end++ {
			first, n, size := records(int64(off), int64(end-off), lineSize(digest), blocks)
			dest := make([]byte, size)
			touched := digests[first*digest : (first+n)*digest]
			renderLines(dest, int64(off)-first*lineSize(digest), touched, first, digest, blockSize)
			if !bytes.Equal(dest, want[off:end]) {
				t.Fatalf("[%d, %d) is %q, want %q", off, end, dest, want[off:end])
			}
		}
	}
}
