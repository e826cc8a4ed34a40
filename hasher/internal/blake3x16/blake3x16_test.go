package blake3x16

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/zeebo/blake3"
)

func pathName(fast bool) string {
	if fast {
		return "vectors"
	}
	return "plain"
}

// usePath has the assembly used or not until the test ends.
func usePath(tb testing.TB, fast bool) {
	if fast && !hasAVX512() {
		tb.Skip("this CPU has no AVX-512")
	}
	before := vectors
	vectors = fast
	tb.Cleanup(func() { vectors = before })
}

func eachPath(t *testing.T, f func(t *testing.T)) {
	for _, fast := range []bool{false, true} {
		t.Run(pathName(fast), func(t *testing.T) {
			usePath(t, fast)
			f(t)
		})
	}
}

// check compares AppendSums with the library's stream.
func check(t *testing.T, data []byte, size int) {
	t.Helper()
	want := []byte("before")
	h := blake3.New()
	for rest := data; len(rest) > 0; {
		n := min(size, len(rest))
		h.Reset()
		h.Write(rest[:n])
		want, rest = h.Sum(want), rest[n:]
	}
	if got := AppendSums([]byte("before"), data, size); !bytes.Equal(got, want) {
		t.Errorf("%d bytes by %d: got %x, want %x", len(data), size, got, want)
	}
}

func randomBytes(n int) []byte {
	rng := rand.New(rand.NewPCG(5, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// Each number of messages of a chunk or less that fills no, one or two vectors
// of each half, or all but one place.
func TestAppendSums_chunks(t *testing.T) {
	data := randomBytes(66*chunkSize + 64)
	eachPath(t, func(t *testing.T) {
		for size := 1; size <= chunkSize; size *= 2 {
			for messages := range 66 {
				check(t, data[:messages*size], size)
				// An odd address, and a part of a further message.
				check(t, data[1+messages%63:][:messages*size+size/2], size)
			}
		}
	})
}

// Trees of each height, so many that their chunks or their pairs fill the
// vectors just so, or not quite; and so many that they need a second turn.
func TestAppendSums_trees(t *testing.T) {
	data := randomBytes(3*maxSize + 64)
	eachPath(t, func(t *testing.T) {
		for size := 2 * chunkSize; size <= maxSize; size *= 2 {
			for _, messages := range []int{1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33} {
				if n := messages * size; n < len(data) {
					check(t, data[:n], size)
				}
			}
			for _, n := range []int{maxSize - 1, maxSize + 1, 2*maxSize - size, 2 * maxSize, 2*maxSize + size - 1, 3 * maxSize} {
				check(t, data[n%61:][:n], size)
			}
		}
	})
}

// Messages of each length around the borders of blocks, chunks and passes, as
// a whole and as the last of some.
func TestAppendSums_borders(t *testing.T) {
	data := randomBytes(5 * maxSize / 2)
	eachPath(t, func(t *testing.T) {
		for border := 64; border <= maxSize; border *= 2 {
			for _, d := range []int{-chunkSize - 1, -chunkSize, -64, -1, 0, 1, 63, 64, 65, chunkSize, chunkSize + 1} {
				n := border + d
				if n <= 0 {
					continue
				}
				check(t, data[3:][:n], n)
				check(t, data[:n], border/2)
				check(t, data[:2*n], n)
				check(t, data[:2*n], border)
			}
		}
		check(t, data, 2*maxSize) // larger than the assembly takes
		for size := 1; size < 200; size++ {
			check(t, data[size%7:][:3*size+1], size)
		}
	})
}

// Equal chunks differ in nothing but their counters.
func TestAppendSums_equalChunks(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		check(t, make([]byte, 3*maxSize/2), maxSize/2)
		check(t, bytes.Repeat([]byte{1}, 70*chunkSize), 4*chunkSize)
	})
}

// The input and the digests to 16384 bytes are those of test_vectors.json in the
// reference implementation, the three longest digests are from its b3sum 1.2.0.
func TestAppendSums_publishedVectors(t *testing.T) {
	rows := []struct {
		size int
		want string
	}{
		{1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
		{4, "f30f5ab28fe047904037f77b6da4fea1e27241c5d132638d8bedce9d40494f32"},
		{64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98"},
		{1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
		{2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
		{4096, "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969"},
		{8192, "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63"},
		{16384, "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4"},
		{65536, "68d647e619a930e7b1082f74f334b0c65a315725569bdc123f0ee11881717bfe"},
		{262144, "d57dc906e20d3fd326ffaa85535500486f46a0979f5a323f028dcabfd381fd4a"},
		{1048576, "74cb441fd087764ca9c3694da742ebe30cbeb3060a17009ca81825c7a8d10343"},
	}
	eachPath(t, func(t *testing.T) {
		for _, row := range rows {
			message := make([]byte, row.size)
			for i := range message {
				message[i] = byte(i % 251)
			}
			const messages = 65 // in every place, and in another turn
			data := bytes.Repeat(message, messages)
			got := hex.EncodeToString(AppendSums(nil, data, row.size))
			if got != strings.Repeat(row.want, messages) {
				t.Errorf("%d bytes: got %s, want %d times %s", row.size, got, messages, row.want)
			}
		}
	})
}

func TestAppendSums_writesItsDigestsOnly(t *testing.T) {
	data := randomBytes(maxSize)
	eachPath(t, func(t *testing.T) {
		for _, size := range []int{4, 64, chunkSize, 4096, 65536} {
			for _, messages := range []int{2, 31, 33, 64} {
				n := min(messages*size, len(data))
				page := bytes.Repeat([]byte{0xaa}, 32+n/size*32+2048)
				dst := AppendSums(page[32:32], data[:n], size)
				if &dst[0] != &page[32] || len(dst) != n/size*32 {
					t.Fatalf("%d of %d: moved though there was room, or %d bytes", messages, size, len(dst))
				}
				if clean := bytes.TrimLeft(page[32+len(dst):], "\xaa"); len(clean) != 0 || bytes.Count(page[:32], []byte{0xaa}) != 32 {
					t.Errorf("%d of %d: bytes beside the digests were written", messages, size)
				}
			}
		}
	})
}

func TestAppendSums_allocatesNothing(t *testing.T) {
	data := randomBytes(70*chunkSize + 1)
	dst := make([]byte, 0, len(data)*32)
	eachPath(t, func(t *testing.T) {
		for _, size := range []int{1, 4, 64, 300, chunkSize, 2048, 65536} {
			if n := testing.AllocsPerRun(10, func() { AppendSums(dst, data, size) }); n != 0 {
				t.Errorf("size %d: %v allocations", size, n)
			}
		}
	})
}

// The choice is made when the program starts, so it is asked of a new process.
func TestVectors_environment(t *testing.T) {
	if os.Getenv("HASHFS_CPU_REPORT") != "" {
		os.Stdout.WriteString("path=" + pathName(vectors) + "\n")
		return
	}
	for _, row := range []struct {
		name, value string
		want        bool
	}{
		{"unset", "", hasAVX512()},
		{"generic", "generic", false},
		{"another value", "fast", hasAVX512()},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestVectors_environment$")
		cmd.Env = append(os.Environ(), "HASHFS_CPU_REPORT=1", "HASHFS_CPU="+row.value)
		out, err := cmd.CombinedOutput()
		if err != nil {
			if runtime.GOARCH != "amd64" {
				t.Skip("cannot start itself, emulated perhaps:", err)
			}
			t.Fatalf("%s: %v: %s", row.name, err, out)
		}
		if want := "path=" + pathName(row.want) + "\n"; !strings.Contains(string(out), want) {
			t.Errorf("%s: got %q, want %q", row.name, out, want)
		}
	}
}

func FuzzAppendSums(f *testing.F) {
	f.Add([]byte("abc"), uint8(0), uint16(1), true)
	f.Add([]byte("abc"), uint8(10), uint16(3000), true)
	f.Add([]byte("abcde"), uint8(12), uint16(9000), true)
	f.Add([]byte("a"), uint8(9), uint16(1000), false)
	f.Fuzz(func(t *testing.T, data []byte, log uint8, repeat uint16, fast bool) {
		usePath(t, fast)
		// Long data, which the fuzzer would not make, but not too many messages.
		size := 1 << (log % 22) // to twice what the assembly takes
		limit := max(min(100*size, 300<<10), size+size/2)
		data = data[:min(len(data), limit)]
		data = bytes.Repeat(data, min(1+int(repeat), limit/max(1, len(data))))
		check(t, data, size)
	})
}
