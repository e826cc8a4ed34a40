package hasher

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A vector is a row of testdata/vectors.tsv: checksums that nbdcopy computed.
type vector struct {
	image    string // as the file describes it
	spec     Spec
	checksum []byte
}

func readVectors(tb testing.TB) []vector {
	tb.Helper()
	text, err := os.ReadFile("testdata/vectors.tsv")
	if err != nil {
		tb.Fatal(err)
	}
	var vectors []vector
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		column := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(column) != 3 {
			tb.Fatalf("%q: %d columns", line, len(column))
		}
		spec, err := ParseSpec(column[1])
		if err != nil {
			tb.Fatal(err)
		}
		checksum, err := hex.DecodeString(column[2])
		if err != nil {
			tb.Fatalf("%q: %v", line, err)
		}
		vectors = append(vectors, vector{column[0], spec, checksum})
	}
	return vectors
}

func TestVectors(t *testing.T) {
	vectors := readVectors(t)
	if len(vectors) < 14 {
		t.Fatalf("only %d vectors", len(vectors))
	}
	for _, v := range vectors {
		t.Run(fmt.Sprintf("%.30s,%s", v.image, v.spec), func(t *testing.T) {
			var got []byte
			if size, ok := zeroImage(v.image); ok {
				got = blkhashOfZeros(v.spec, size)
			} else {
				data, err := dataImage(v.image)
				if err != nil {
					t.Fatal(err)
				}
				got = blkhash(v.spec, data)
			}
			if !bytes.Equal(got, v.checksum) {
				t.Errorf("got %x, want %x", got, v.checksum)
			}
		})
	}
}

// blkhash is the formula of the checksum, written plainly:
// H( H(block 1) || ... || H(block N) || LE64(size) ).
func blkhash(spec Spec, data []byte) []byte {
	outer := spec.Algorithm.New()
	for off := 0; off < len(data); off += spec.BlockSize {
		block := spec.Algorithm.New()
		block.Write(data[off:min(off+spec.BlockSize, len(data))])
		outer.Write(block.Sum(nil))
	}
	outer.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(data))))
	return outer.Sum(nil)
}

// blkhashOfZeros is the same for an image that may be too large to make.
func blkhashOfZeros(spec Spec, size int64) []byte {
	sum := func(n int64) []byte {
		block := spec.Algorithm.New()
		block.Write(make([]byte, n))
		return block.Sum(nil)
	}
	const run = 1024 // digests a write, for speed
	whole, tail := size/int64(spec.BlockSize), size%int64(spec.BlockSize)
	digests := bytes.Repeat(sum(int64(spec.BlockSize)), run)
	outer := spec.Algorithm.New()
	for ; whole > 0; whole -= min(whole, run) {
		outer.Write(digests[:min(whole, run)*int64(spec.Algorithm.Size())])
	}
	if tail > 0 {
		outer.Write(sum(tail))
	}
	outer.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
	return outer.Sum(nil)
}

// zeroImage returns the size of an image that has only zeros.
func zeroImage(image string) (size int64, ok bool) {
	m := regexp.MustCompile(`^(?:hole of (\d+) bytes|(\d+) zero bytes)$`).FindStringSubmatch(image)
	if m == nil {
		return 0, false
	}
	size, err := strconv.ParseInt(m[1]+m[2], 10, 64)
	return size, err == nil
}

// dataImage makes an image of nbdkit's data format, as far as the file uses it:
// strings, which *N repeats, and @N, which goes to that offset.
func dataImage(image string) ([]byte, error) {
	token := regexp.MustCompile(`^(?:"([^"]*)"(?:\*(\d+))?|@(\d+))(?: |$)`)
	var data []byte
	for rest := image; rest != ""; {
		m := token.FindStringSubmatch(rest)
		if m == nil {
			return nil, fmt.Errorf("image %q: cannot parse %q", image, rest)
		}
		rest = rest[len(m[0]):]
		if m[3] != "" {
			off, err := strconv.Atoi(m[3])
			if err != nil || off < len(data) {
				return nil, fmt.Errorf("image %q: offset %s", image, m[3])
			}
			data = append(data, make([]byte, off-len(data))...)
			continue
		}
		times := 1
		if m[2] != "" {
			var err error
			if times, err = strconv.Atoi(m[2]); err != nil {
				return nil, fmt.Errorf("image %q: %w", image, err)
			}
		}
		data = append(data, strings.Repeat(m[1], times)...)
	}
	return data, nil
}
