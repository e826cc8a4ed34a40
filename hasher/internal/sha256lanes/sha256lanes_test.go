package sha256lanes

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

func (p path) String() string {
	switch p {
	case path{}:
		return "plain"
	case path{interleave: true}:
		return "interleaved"
	case path{vectors: true}:
		return "vectors"
	}
	return "all"
}

var paths = []path{{}, {interleave: true}, {vectors: true}, {true, true}}

// usePath has that assembly used until the test ends.
func usePath(tb testing.TB, p path) {
	if p.interleave && !hasSHA() || p.vectors && !hasAVX512() {
		tb.Skip("this CPU lacks the instructions")
	}
	before := current
	current = p
	tb.Cleanup(func() { current = before })
}

func eachPath(t *testing.T, f func(t *testing.T)) {
	for _, p := range paths {
		t.Run(p.String(), func(t *testing.T) {
			usePath(t, p)
			f(t)
		})
	}
}

// check compares both functions with crypto/sha256.
func check(t *testing.T, data []byte, size int) {
	t.Helper()
	want256, want224 := []byte("before"), []byte("before")
	for rest := data; len(rest) > 0; {
		n := min(size, len(rest))
		sum256, sum224 := sha256.Sum256(rest[:n]), sha256.Sum224(rest[:n])
		want256, want224 = append(want256, sum256[:]...), append(want224, sum224[:]...)
		rest = rest[n:]
	}
	if got := AppendSums256([]byte("before"), data, size); !bytes.Equal(got, want256) {
		t.Errorf("sha256 of %d bytes by %d: got %x, want %x", len(data), size, got, want256)
	}
	if got := AppendSums224([]byte("before"), data, size); !bytes.Equal(got, want224) {
		t.Errorf("sha224 of %d bytes by %d: got %x, want %x", len(data), size, got, want224)
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

func TestAppendSums_everyLength(t *testing.T) {
	data := randomBytes(21*300 + 16)
	eachPath(t, func(t *testing.T) {
		for size := 1; size <= 300; size++ {
			for messages := range 22 {
				check(t, data[:messages*size], size)
				// An odd address, and one byte of a further message.
				check(t, data[1+size%15:][:messages*size+1], size)
			}
		}
	})
}

func TestAppendSums_blockBorders(t *testing.T) {
	const messages = vectorLanes + 2
	data := randomBytes(messages*(1<<20+65) + 3)
	eachPath(t, func(t *testing.T) {
		for _, size := range []int{512, 4096, maxBytes / vectorLanes, maxBytes / 2, 65536, 1 << 20} {
			for _, d := range []int{-65, -64, -63, -9, -8, -1, 0, 1, 55, 56, 57, 63, 64} {
				check(t, data[:messages*(size+d)], size+d)
			}
			check(t, data[3:][:6*size+1], size)
		}
	})
}

// The vectors of FIPS 180-4's examples, in each place of the lanes.
func TestAppendSums_publishedVectors(t *testing.T) {
	rows := []struct{ name, message, sha256, sha224 string }{
		{"one block", "abc",
			"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
			"23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7"},
		{"padding takes a second block", "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
			"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
			"75388b16512776cc5dba5da1fd890150b0c6455cb4f58b1952522525"},
		{"a million a's", strings.Repeat("a", 1e6),
			"cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
			"20794655980c91d8bbb4c1ea97618a4bf03f42581948b2ee4ee7ad67"},
	}
	const places = vectorLanes + 2 + 1
	eachPath(t, func(t *testing.T) {
		for _, row := range rows {
			data := []byte(strings.Repeat(row.message, places))
			if got, want := hex.EncodeToString(AppendSums256(nil, data, len(row.message))), strings.Repeat(row.sha256, places); got != want {
				t.Errorf("%s: sha256: got %s, want %s", row.name, got, want)
			}
			if got, want := hex.EncodeToString(AppendSums224(nil, data, len(row.message))), strings.Repeat(row.sha224, places); got != want {
				t.Errorf("%s: sha224: got %s, want %s", row.name, got, want)
			}
		}
	})
}

func TestAppendSums_allocatesNothing(t *testing.T) {
	data := randomBytes(19 * 300)
	dst := make([]byte, 0, 19*300*32)
	eachPath(t, func(t *testing.T) {
		for _, size := range []int{1, 4, 64, 300} {
			if n := testing.AllocsPerRun(10, func() {
				AppendSums256(dst, data, size)
				AppendSums224(dst, data, size)
			}); n != 0 {
				t.Errorf("size %d: %v allocations", size, n)
			}
		}
	})
}

// The choice is made when the program starts, so it is asked of a new process.
func TestChoose_environment(t *testing.T) {
	if os.Getenv("HASHFS_CPU_REPORT") != "" {
		os.Stdout.WriteString("path=" + current.String() + "\n")
		return
	}
	for _, row := range []struct {
		name, value string
		want        path
	}{
		{"unset", "", path{vectors: hasAVX512(), interleave: hasSHA()}},
		{"generic", "generic", path{}},
		{"another value", "fast", path{vectors: hasAVX512(), interleave: hasSHA()}},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChoose_environment$")
		cmd.Env = append(os.Environ(), "HASHFS_CPU_REPORT=1", "HASHFS_CPU="+row.value)
		out, err := cmd.CombinedOutput()
		if err != nil {
			if runtime.GOARCH != "amd64" {
				t.Skip("cannot start itself, emulated perhaps:", err)
			}
			t.Fatalf("%s: %v: %s", row.name, err, out)
		}
		if want := "path=" + row.want.String() + "\n"; !strings.Contains(string(out), want) {
			t.Errorf("%s: got %q, want %q", row.name, out, want)
		}
	}
}

func FuzzAppendSums(f *testing.F) {
	f.Add([]byte("abc"), uint16(1), uint8(3))
	f.Add(make([]byte, 1025), uint16(256), uint8(1))
	f.Add(make([]byte, 56*17), uint16(56), uint8(2))
	f.Add(make([]byte, 56*7), uint16(56), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, size uint16, p uint8) {
		usePath(t, paths[int(p)%len(paths)])
		check(t, data, int(size)+1)
	})
}
