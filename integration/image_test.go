package integration

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/crypto/blake2b"
	"golang.org/x/crypto/blake2s"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
	tib = int64(1) << 40

	// blockSize is the default.
	blockSize = 65536
)

// random returns n bytes that depend on seed alone.
func random(seed uint64, n int64) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	data := make([]byte, n)
	rand.NewChaCha8(key).Read(data)
	return data
}

// A piece is data at an offset of an image.
type piece struct {
	offset int64
	data   []byte
}

// writeImage writes an image of these bytes.
func writeImage(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeSparse writes an image of size bytes that is a hole but for the pieces.
func writeSparse(t testing.TB, path string, size int64, pieces ...piece) {
	t.Helper()
	if err := writePieces(path, size, pieces); err != nil {
		t.Fatal(err)
	}
}

func writePieces(path string, size int64, pieces []piece) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	for _, p := range pieces {
		if _, err := f.WriteAt(p.data, p.offset); err != nil {
			return err
		}
	}
	return f.Close()
}

// writeAt writes into a file that is there.
func writeAt(t testing.TB, path string, data []byte, offset int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// setAge sets the time of a file's last change to a time ago.
func setAge(t testing.TB, path string, age time.Duration) {
	t.Helper()
	then := time.Now().Add(-age)
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
}

// algorithm is a digest as the tests compute it.
type algorithm struct {
	name string
	new  func() hash.Hash
}

// keyless makes a constructor of one that can fail for a bad key only.
func keyless(new func([]byte) (hash.Hash, error)) func() hash.Hash {
	return func() hash.Hash {
		h, err := new(nil)
		if err != nil {
			panic(err)
		}
		return h
	}
}

// newSlowest is the slowest.
func newSlowest() hash.Hash { return sha3.New512() }

// algorithms are all that there are, in the order of info.json.
var algorithms = []algorithm{
	{"md5", md5.New},
	{"sha1", sha1.New},
	{"sha224", sha256.New224},
	{"sha256", sha256.New},
	{"sha384", sha512.New384},
	{"sha512", sha512.New},
	{"sha512-224", sha512.New512_224},
	{"sha512-256", sha512.New512_256},
	{"sha3-224", func() hash.Hash { return sha3.New224() }},
	{"sha3-256", func() hash.Hash { return sha3.New256() }},
	{"sha3-384", func() hash.Hash { return sha3.New384() }},
	{"sha3-512", newSlowest},
	{"blake2b512", keyless(blake2b.New512)},
	{"blake2b256", keyless(blake2b.New256)},
	{"blake2s256", keyless(blake2s.New256)},
	{"blake3", func() hash.Hash { return blake3.New() }},
}

// An oracle computes the digests of an image by the formula.
type oracle struct {
	newHash func() hash.Hash
	bs      int64
	size    int64
	blocks  []byte // the packed digests, as digests.bin
}

// newOracle computes the digests of data, by sha256 in the default blocks.
func newOracle(data []byte) *oracle { return newOracleOf(sha256.New, blockSize, data) }

func newOracleOf(newHash func() hash.Hash, bs int64, data []byte) *oracle {
	return newSparseOracle(newHash, bs, int64(len(data)), piece{0, data})
}

// newSparseOracle computes the digests of an image as writeSparse writes it.
func newSparseOracle(newHash func() hash.Hash, bs, size int64, pieces ...piece) *oracle {
	o := &oracle{newHash: newHash, bs: bs, size: size}
	zeros := make([]byte, bs)
	zero := digest(newHash, zeros)
	o.blocks = bytes.Repeat(zero, int((size+bs-1)/bs))
	if tail := size % bs; tail > 0 {
		o.put(size/bs, digest(newHash, zeros[:tail]))
	}
	touched := map[int64][]byte{}
	for _, p := range pieces {
		for at := int64(0); at < int64(len(p.data)); {
			off := p.offset + at
			b := off / bs
			if touched[b] == nil {
				touched[b] = make([]byte, min(bs, size-b*bs))
			}
			at += int64(copy(touched[b][off-b*bs:], p.data[at:]))
		}
	}
	for b, content := range touched {
		o.put(b, digest(newHash, content))
	}
	return o
}

func digest(newHash func() hash.Hash, data []byte) []byte {
	h := newHash()
	h.Write(data)
	return h.Sum(nil)
}

func (o *oracle) put(block int64, digest []byte) {
	copy(o.blocks[block*int64(len(digest)):], digest)
}

// bin is the content of digests.bin.
func (o *oracle) bin() string { return string(o.blocks) }

// sum is the checksum, in hex.
func (o *oracle) sum() string {
	h := o.newHash()
	h.Write(o.blocks)
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(o.size)))
	return hex.EncodeToString(h.Sum(nil))
}

// checksum is the content of the file checksum.
func (o *oracle) checksum() string { return o.sum() + "\n" }

// digests is the content of the file digests.
func (o *oracle) digests() string {
	var b strings.Builder
	d := o.newHash().Size()
	for i := range len(o.blocks) / d {
		fmt.Fprintf(&b, "%x  blocks/%016x\n", o.blocks[i*d:(i+1)*d], int64(i)*o.bs)
	}
	return b.String()
}

// checkDigests compares the three files of digests of an image with data.
func (m *mounted) checkDigests(image string, o *oracle) {
	m.t.Helper()
	same(m.t, "digests.bin", m.read(image, "digests.bin"), o.bin())
	same(m.t, "digests", m.read(image, "digests"), o.digests())
	same(m.t, "checksum", m.read(image, "checksum"), o.checksum())
}

// same compares bytes that may be many.
func same(t testing.TB, what, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	part := func(s string) string { return s[max(0, at-20):min(len(s), at+60)] }
	t.Errorf("%s: %d bytes, want %d; they differ at %d:\n got %q\nwant %q", what, len(got), len(want), at, part(got), part(want))
}
