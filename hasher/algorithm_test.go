package hasher

import (
	"bytes"
	"encoding"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sumsOfABC are the published digests of "abc" (FIPS 180-4, FIPS 202, RFC 1321,
// RFC 7693; blake2b256 and blake3 from their reference programs).
var sumsOfABC = [][2]string{
	{"md5", "900150983cd24fb0d6963f7d28e17f72"},
	{"sha1", "a9993e364706816aba3e25717850c26c9cd0d89d"},
	{"sha224", "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7"},
	{"sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
	{"sha384", "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7"},
	{"sha512", "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"},
	{"sha512-224", "4634270f707b6a54daae7530460842e20e37ed265ceee9a43e8924aa"},
	{"sha512-256", "53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23"},
	{"sha3-224", "e642824c3f8cf24ad09234ee7d3c766fc9a3a5168d0c94ad73b46fdf"},
	{"sha3-256", "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"},
	{"sha3-384", "ec01498288516fc926459f58e2c6ad8df9b473cb0fc08c2596da7cf0e49be4b298d88cea927ac7f539f1edf228376d25"},
	{"sha3-512", "b751850b1a57168a5693cd924b6b096e08f621827444f70d884f5d0240d2712e10e116e9192af3c91a7ec57647e3934057340b4cf408d5a56592f8274eec53f0"},
	{"blake2b512", "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d17d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923"},
	{"blake2b256", "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"},
	{"blake2s256", "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"},
	{"blake3", "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"},
}

func TestAlgorithms_namesAndSums(t *testing.T) {
	var got [][2]string
	for _, a := range Algorithms() {
		h := a.New()
		h.Write([]byte("a"))
		h.Write([]byte("bc"))
		sum := h.Sum(nil)
		got = append(got, [2]string{a.Name(), hex.EncodeToString(sum)})
		if a.Size() != len(sum) || a.Size() != h.Size() {
			t.Errorf("%s: size %d, stream's %d, digest of %d bytes", a.Name(), a.Size(), h.Size(), len(sum))
		}
		if found, err := LookupAlgorithm(a.Name()); found != a || err != nil {
			t.Errorf("%s: lookup gives %v, %v", a.Name(), found, err)
		}
	}
	if diff := cmp.Diff(sumsOfABC, got); diff != "" {
		t.Error(diff)
	}
}

func TestAlgorithms_listIsACopy(t *testing.T) {
	Algorithms()[0] = nil
	if Algorithms()[0] == nil {
		t.Error("a caller can change the list")
	}
}

func TestLookupAlgorithm_unknown(t *testing.T) {
	for _, name := range []string{"", "SHA256", "sha-256", "sha512/256", "sha256 ", "crc32"} {
		a, err := LookupAlgorithm(name)
		if a != nil || err == nil {
			t.Errorf("%q: got %v, %v", name, a, err)
			continue
		}
		for _, row := range sumsOfABC {
			if !strings.Contains(err.Error(), row[0]) {
				t.Errorf("%q: error does not name %s: %v", name, row[0], err)
			}
		}
	}
}

func TestAlgorithm_resume(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	data := randomBytes(rng, 1000)
	for _, a := range Algorithms() {
		if want := a.Name() != "blake3"; a.Resumable() != want {
			t.Errorf("%s: resumable is %v, want %v", a.Name(), a.Resumable(), want)
		}
		if !a.Resumable() {
			continue
		}
		for range 200 {
			n := rng.IntN(len(data) + 1)
			split := rng.IntN(n + 1)
			whole, first, second := a.New(), a.New(), a.New()
			whole.Write(data[:n])

			first.Write(data[:split])
			state, err := first.(encoding.BinaryMarshaler).MarshalBinary()
			if err != nil {
				t.Fatalf("%s: save after %d bytes: %v", a.Name(), split, err)
			}
			second.Write(data[:rng.IntN(100)]) // must be forgotten
			if err := second.(encoding.BinaryUnmarshaler).UnmarshalBinary(state); err != nil {
				t.Fatalf("%s: restore after %d bytes: %v", a.Name(), split, err)
			}
			second.Write(data[split:n])
			if !bytes.Equal(second.Sum(nil), whole.Sum(nil)) {
				t.Fatalf("%s: resumed at %d of %d bytes: wrong digest", a.Name(), split, n)
			}
		}
	}
}

func TestBlockHasher_equalsStream(t *testing.T) {
	data := randomBytes(rand.New(rand.NewPCG(3, 4)), 9*4096+1)
	for _, a := range Algorithms() {
		for _, bs := range []int{4, 8, 32, 64, 128, 256, 1024, 4096} {
			h := a.NewBlockHasher(bs)
			for _, n := range []int{0, 1, 3, 4, 5, bs - 1, bs, bs + 1, 2*bs - 1, 2 * bs, 2*bs + 1,
				3 * bs, 3*bs + 2, 4 * bs, 5*bs - 1, 7*bs + 3, 9 * bs} {
				n = min(n, len(data)-1)
				for align := range 2 {
					got := h.AppendSums([]byte("before"), data[align:align+n])
					want := plainSums(a, []byte("before"), data[align:align+n], bs)
					if !bytes.Equal(got, want) {
						t.Fatalf("%s/%d: %d bytes at %d: got %x, want %x", a.Name(), bs, n, align, got, want)
					}
				}
			}
		}
	}
}

// Only what was asked for may be written: digests go into pages whose
// neighbours are live.
func TestBlockHasher_writesItsDigestsOnly(t *testing.T) {
	data := make([]byte, 5*64+1)
	for _, a := range Algorithms() {
		page := bytes.Repeat([]byte{0xaa}, 16*a.Size())
		h := a.NewBlockHasher(64)
		dst := h.AppendSums(page[a.Size():a.Size()], data)
		if &dst[0] != &page[a.Size()] {
			t.Errorf("%s: moved though there was room", a.Name())
		}
		if len(dst) != 6*a.Size() {
			t.Errorf("%s: %d bytes for 6 digests", a.Name(), len(dst))
		}
		for i, c := range page {
			if (i < a.Size() || i >= 7*a.Size()) && c != 0xaa {
				t.Fatalf("%s: byte %d beside the digests was written", a.Name(), i)
			}
		}
	}
}

func TestBlockHasher_allocatesNothing(t *testing.T) {
	data := make([]byte, 2*65536+5)
	for _, a := range Algorithms() {
		for _, bs := range []int{4, 64, 65536} {
			h, in := a.NewBlockHasher(bs), data
			if bs == 4 {
				in = data[:41]
			}
			dst := make([]byte, 0, len(h.AppendSums(nil, in)))
			if n := testing.AllocsPerRun(2, func() { h.AppendSums(dst, in) }); n != 0 {
				t.Errorf("%s/%d: %v allocations", a.Name(), bs, n)
			}
		}
	}
}

func TestNewBlockHasher_badSize(t *testing.T) {
	for _, bs := range []int{0, -4} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("block size %d: no panic", bs)
				}
			}()
			algorithms[0].NewBlockHasher(bs)
		}()
	}
}

func FuzzBlockHasher(f *testing.F) {
	f.Add(uint8(3), uint16(4), []byte("hello"))
	f.Add(uint8(2), uint16(64), make([]byte, 193))
	f.Fuzz(func(t *testing.T, alg uint8, bs uint16, data []byte) {
		a := algorithms[int(alg)%len(algorithms)]
		size := int(bs) + 1
		got := a.NewBlockHasher(size).AppendSums(nil, data)
		if want := plainSums(a, nil, data, size); !bytes.Equal(got, want) {
			t.Errorf("%s/%d: %d bytes: got %x, want %x", a.Name(), size, len(data), got, want)
		}
	})
}

// plainSums is the twin of AppendSums that can be seen to be right.
func plainSums(a *Algorithm, dst, data []byte, blockSize int) []byte {
	for len(data) > 0 {
		n := min(blockSize, len(data))
		h := a.New()
		h.Write(data[:n])
		dst = append(dst, h.Sum(nil)...)
		data = data[n:]
	}
	return dst
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
