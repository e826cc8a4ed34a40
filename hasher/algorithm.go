package hasher

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/sha512"
	"encoding"
	"fmt"
	"hash"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/crypto/blake2b"
	"golang.org/x/crypto/blake2s"
)

// An Algorithm is one of the digest algorithms that Algorithms lists. There
// is one value of each, so that pointers can be compared; none of its methods
// changes it, and all may be called from several goroutines at once.
type Algorithm struct {
	name string
	size int // digest bytes
	new  func() hash.Hash
}

// The names are blksum's, in the order in which the user is shown them.
var algorithms = []*Algorithm{
	{"md5", md5.Size, md5.New},
	{"sha1", sha1.Size, sha1.New},
	{"sha224", sha256.Size224, sha256.New224},
	{"sha256", sha256.Size, sha256.New},
	{"sha384", sha512.Size384, sha512.New384},
	{"sha512", sha512.Size, sha512.New},
	{"sha512-224", sha512.Size224, sha512.New512_224},
	{"sha512-256", sha512.Size256, sha512.New512_256},
	{"sha3-224", 28, func() hash.Hash { return sha3.New224() }},
	{"sha3-256", 32, func() hash.Hash { return sha3.New256() }},
	{"sha3-384", 48, func() hash.Hash { return sha3.New384() }},
	{"sha3-512", 64, func() hash.Hash { return sha3.New512() }},
	{"blake2b512", blake2b.Size, unkeyed(blake2b.New512)},
	{"blake2b256", blake2b.Size256, unkeyed(blake2b.New256)},
	{"blake2s256", blake2s.Size, unkeyed(blake2s.New256)},
	{"blake3", 32, func() hash.Hash { return blake3.New() }},
}

// unkeyed turns a constructor of a keyed hash into that of the plain one.
func unkeyed(keyed func(key []byte) (hash.Hash, error)) func() hash.Hash {
	return func() hash.Hash {
		h, err := keyed(nil)
		if err != nil {
			panic(err) // only a key can be wrong
		}
		return h
	}
}

// Algorithms returns all algorithms, always in the same order.
func Algorithms() []*Algorithm { return slices.Clone(algorithms) }

// LookupAlgorithm returns the algorithm of exactly that name, which is lower
// case. The error lists the names that there are.
func LookupAlgorithm(name string) (*Algorithm, error) {
	for _, a := range algorithms {
		if a.name == name {
			return a, nil
		}
	}
	names := make([]string, len(algorithms))
	for i, a := range algorithms {
		names[i] = a.name
	}
	return nil, fmt.Errorf("unknown digest %q: use one of %s", name, strings.Join(names, ", "))
}

// Name returns the name by which LookupAlgorithm finds the algorithm.
func (a *Algorithm) Name() string { return a.name }

// Size returns the length of a digest in bytes, at most 64.
func (a *Algorithm) Size() int { return a.size }

// New returns a stream of the algorithm. Where Resumable says so it is an
// encoding.BinaryMarshaler and encoding.BinaryUnmarshaler: a stream that is
// given the saved state of another goes on from there.
func (a *Algorithm) New() hash.Hash { return a.new() }

// Resumable reports whether the state of New's stream can be saved. That of
// blake3 cannot, since its library does not export it.
func (a *Algorithm) Resumable() bool {
	_, ok := a.new().(interface {
		encoding.BinaryMarshaler
		encoding.BinaryUnmarshaler
	})
	return ok
}

// A BlockHasher computes the digests of consecutive blocks. It is not for
// concurrent use: make one for each goroutine.
type BlockHasher struct {
	blockSize int // bytes
	size      int // digest bytes
	stream    hash.Hash
}

// NewBlockHasher returns a hasher of blocks of blockSize bytes. It panics
// unless blockSize is more than 0.
func (a *Algorithm) NewBlockHasher(blockSize int) *BlockHasher {
	if blockSize <= 0 {
		panic(fmt.Sprintf("hasher: block size %d", blockSize))
	}
	return &BlockHasher{blockSize: blockSize, size: a.size, stream: a.new()}
}

// AppendSums hashes data as consecutive blocks, of which the last may be
// shorter, and appends their digests to dst without anything between them.
// Empty data has no block. It allocates nothing when dst has the capacity.
func (h *BlockHasher) AppendSums(dst, data []byte) []byte {
	blocks := len(data) / h.blockSize
	if len(data)%h.blockSize != 0 {
		blocks++
	}
	dst = slices.Grow(dst, blocks*h.size)
	for len(data) > 0 {
		n := min(h.blockSize, len(data))
		h.stream.Reset()
		h.stream.Write(data[:n]) // a hash.Hash never fails
		dst = h.stream.Sum(dst)
		data = data[n:]
	}
	return dst
}
