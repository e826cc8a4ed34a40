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

	"hashfs/hasher/internal/blake3x16"
	"hashfs/hasher/internal/sha256lanes"

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

	// appendSums, where there is one, does what BlockHasher.AppendSums does
	// faster than a stream can.
	appendSums func(dst, data []byte, blockSize int) []byte

	// wholeBytes, where there is one, returns how many bytes of data appendSums
	// needs at a time to be at its fastest.
	wholeBytes func(blockSize int) int

	// faultable, where there is one, returns how many of n bytes, from the
	// beginning, appendSums may be given where a load can fault.
	faultable func(blockSize, n int) int
}

// The names are blksum's, in the order in which the user is shown them.
var algorithms = []*Algorithm{
	{name: "md5", size: md5.Size, new: md5.New},
	{name: "sha1", size: sha1.Size, new: sha1.New},
	{name: "sha224", size: sha256.Size224, new: sha256.New224, appendSums: sha256lanes.AppendSums224, wholeBytes: sha256lanes.WholeBytes, faultable: sha256lanes.Faultable},
	{name: "sha256", size: sha256.Size, new: sha256.New, appendSums: sha256lanes.AppendSums256, wholeBytes: sha256lanes.WholeBytes, faultable: sha256lanes.Faultable},
	{name: "sha384", size: sha512.Size384, new: sha512.New384},
	{name: "sha512", size: sha512.Size, new: sha512.New},
	{name: "sha512-224", size: sha512.Size224, new: sha512.New512_224},
	{name: "sha512-256", size: sha512.Size256, new: sha512.New512_256},
	{name: "sha3-224", size: 28, new: func() hash.Hash { return sha3.New224() }},
	{name: "sha3-256", size: 32, new: func() hash.Hash { return sha3.New256() }},
	{name: "sha3-384", size: 48, new: func() hash.Hash { return sha3.New384() }},
	{name: "sha3-512", size: 64, new: func() hash.Hash { return sha3.New512() }},
	{name: "blake2b512", size: blake2b.Size, new: unkeyed(blake2b.New512)},
	{name: "blake2b256", size: blake2b.Size256, new: unkeyed(blake2b.New256)},
	{name: "blake2s256", size: blake2s.Size, new: unkeyed(blake2s.New256)},
	{name: "blake3", size: 32, new: func() hash.Hash { return blake3.New() }, appendSums: blake3x16.AppendSums, faultable: blake3x16.Faultable},
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
	algorithm *Algorithm
	blockSize int       // bytes
	stream    hash.Hash // nil where the algorithm has appendSums
}

// NewBlockHasher returns a hasher of blocks of blockSize bytes. It panics
// unless blockSize is more than 0.
func (a *Algorithm) NewBlockHasher(blockSize int) *BlockHasher {
	if blockSize <= 0 {
		panic(fmt.Sprintf("hasher: block size %d", blockSize))
	}
	h := &BlockHasher{algorithm: a, blockSize: blockSize}
	if a.appendSums == nil {
		h.stream = a.new()
	}
	return h
}

// AppendSums hashes data as consecutive blocks, of which the last may be
// shorter, and appends their digests to dst without anything between them.
// Empty data has no block. It allocates nothing when dst has the capacity.
//
// Data of several blocks is worth more than a call a block: sha256 and sha224
// hash up to 16 side by side, and blake3 as many as have 32 chunks of 1 KiB
// together.
func (h *BlockHasher) AppendSums(dst, data []byte) []byte {
	blocks := len(data) / h.blockSize
	if len(data)%h.blockSize != 0 {
		blocks++
	}
	dst = slices.Grow(dst, blocks*h.algorithm.size)
	if h.algorithm.appendSums != nil {
		return h.algorithm.appendSums(dst, data, h.blockSize)
	}
	for len(data) > 0 {
		n := min(h.blockSize, len(data))
		h.stream.Reset()
		h.stream.Write(data[:n]) // a hash.Hash never fails
		dst = h.stream.Sum(dst)
		data = data[n:]
	}
	return dst
}

// faultable returns how many of n bytes, from the beginning and in blocks,
// AppendSums may be given where a load can fault. The assembly of other packages
// may not be made for that: some moves the stack pointer, and Go's runtime could
// not find its way back then.
func (h *BlockHasher) faultable(n int) int {
	if h.algorithm.faultable == nil {
		return 0
	}
	return h.algorithm.faultable(h.blockSize, n)
}
