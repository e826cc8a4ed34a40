// Package blake3x16 computes BLAKE3 digests of messages of one length, with the
// chunks of one message and of its neighbours side by side in AVX-512 vectors.
//
// BLAKE3 hashes chunks of 1 KiB that do not depend on each other, then pairs of
// their chaining values up to a root. A vector holds a word of 16 chunks, or of
// 16 pairs. The instructions of one group of 16 wait for each other half of the
// time where an addition takes two cycles, as on Zen 5, so the assembly does two
// groups in turn: 32 chunks at once. Measured on an AMD EPYC (family 26),
// Go 1.26.8, November 2026, for 256 KiB in messages of 64 KiB, with both groups'
// words loaded before the rounds: 14 GB/s, one group at a time 10,
// github.com/zeebo/blake3, which has AVX2, 3.6.
//
// # What callers may rely on
//
// The digests are those of github.com/zeebo/blake3 for messages of any length,
// aligned or not. Only lengths that are powers of two to 1 MiB, as the
// blocks of hashfs are, gain anything: the chunks and the pairs of several
// messages in one call fill the vectors together. That library does the rest:
// other lengths, a shorter last message, a lone message of one chunk, and all
// where the CPU lacks AVX512F or the system does not save its registers. Nothing
// is allocated when dst has room. The assembly returns after at most 32 KiB, so
// that the scheduler and the garbage collector do not wait for it. All functions
// may be called from several goroutines at once.
//
// The environment variable HASHFS_CPU=generic, read once when the program
// starts, has the assembly unused. Other values mean nothing.
//
// # How it is tested
//
// Against github.com/zeebo/blake3 for each power of two and lengths around it,
// with every number of messages around the widths of the vectors, at unaligned
// addresses, by fuzzing, and with the published vectors in every place of the
// vectors: each with the assembly and without.
package blake3x16

import (
	"os"
	"slices"

	"github.com/zeebo/blake3"
)

//go:generate go -C ../asm run ./blake3x16 -out ../blake3x16/hash_amd64.s -stubs ../blake3x16/hash_amd64.go -pkg blake3x16

// vectors says whether the assembly is used. Only tests change it.
var vectors = hasAVX512() && os.Getenv("HASHFS_CPU") != "generic"

// Sizes in bytes.
const (
	lanes     = 32 // hashed at once: not bytes
	valueSize = 32 // a chaining value or a digest
	blockSize = 64 // two values, or a part of a chunk
	chunkSize = 1024

	// maxSize bounds the messages that the assembly hashes, and what it hashes at
	// a time, since the values of all their chunks are kept: 32 KiB. The more there
	// are, the fewer of the pairs further up leave a part of a vector empty.
	maxSize = 1 << 20
)

// The flags of a block.
const (
	chunkStart = 1 << iota
	chunkEnd
	parent
	root
)

// AppendSums appends to dst the BLAKE3 digests, of 32 bytes, of the consecutive
// messages in data, each of size bytes but for the last, which may be shorter.
// The size must be more than 0; empty data has no message.
func AppendSums(dst, data []byte, size int) []byte {
	if vectors && size&(size-1) == 0 && size <= maxSize {
		switch {
		case size > chunkSize:
			dst, data = appendTrees(dst, data, size)
		case len(data)/size < 2:
			// The library takes less time for a chunk than the assembly for 32.
		case size < blockSize:
			dst, data = appendShort(dst, data, size)
		default:
			whole := len(data) &^ (size - 1)
			dst = appendChunks(dst, data[:whole], size, 0, chunkEnd|root)
			data = data[whole:]
		}
	}
	for len(data) > 0 {
		n := min(size, len(data))
		sum := blake3.Sum256(data[:n])
		dst, data = append(dst, sum[:]...), data[n:]
	}
	return dst
}

// Faultable returns how many bytes of n, in messages of size bytes each, may be in
// memory where a load can fault: AppendSums reads those at the beginning by this
// package's assembly alone, which calls nothing and leaves the stack pointer alone,
// so that Go's runtime finds its way back from there.
func Faultable(size, n int) int {
	if !vectors || size&(size-1) != 0 || size > maxSize || size <= chunkSize && n/size < 2 {
		return 0
	}
	return n &^ (size - 1)
}

// appendTrees appends the digests of the messages of more than one chunk, and
// returns the data that is less than one.
func appendTrees(dst, data []byte, size int) (sums, rest []byte) {
	var space [maxSize / chunkSize * valueSize]byte
	for len(data) >= size {
		n := min(len(data), maxSize) &^ (size - 1)
		values := appendChunks(space[:0], data[:n], chunkSize, size/chunkSize-1, chunkEnd)
		for roots := n / size * valueSize; len(values) > 2*roots; {
			// What is written has been read before.
			values = appendParents(values[:0], values, parent)
		}
		dst = appendParents(dst, values, parent|root)
		data = data[n:]
	}
	return dst, data
}

// appendChunks appends the values of the chunks of size bytes, whole blocks,
// that data consists of. Their counters are their numbers and counterMask.
func appendChunks(dst, data []byte, size, counterMask int, end uint32) []byte {
	var p pass
	chunks := len(data) / size
	for first := 0; first < chunks; first += lanes {
		for i := range lanes {
			chunk := min(first+i, chunks-1) // some lane has to do the last again
			p.messages[i] = &data[chunk*size]
			p.counters[i] = uint32(chunk & counterMask)
		}
		dst = p.append(dst, chunks-first, size/blockSize, blockSize, chunkStart, 0, end)
	}
	return dst
}

// appendParents appends the values of the pairs of values.
func appendParents(dst, values []byte, flags uint32) []byte {
	var p pass
	pairs := len(values) / blockSize
	for first := 0; first < pairs; first += lanes {
		for i := range lanes {
			p.messages[i] = &values[min(first+i, pairs-1)*blockSize]
		}
		dst = p.append(dst, pairs-first, 1, blockSize, 0, flags, 0)
	}
	return dst
}

// appendShort appends the digests of the messages of less than a block, and
// returns the data that is less than one.
func appendShort(dst, data []byte, size int) (sums, rest []byte) {
	var p pass
	var blocks [lanes][blockSize]byte
	for i := range lanes {
		p.messages[i] = &blocks[i][0]
	}
	for len(data) >= size {
		n := min(len(data)/size, lanes)
		for i := range n {
			copy(blocks[i][:], data[i*size:(i+1)*size])
		}
		dst = p.append(dst, n, 1, uint32(size), chunkStart, 0, chunkEnd|root)
		data = data[n*size:]
	}
	return dst, data
}

// A pass is what the assembly hashes at once.
type pass struct {
	messages [lanes]*byte
	counters [lanes]uint32
}

// append appends the values of the first n messages, or of all if n is more.
// The other arguments are those of hash32.
func (p *pass) append(dst []byte, n, blocks int, blockLen, start, middle, end uint32) []byte {
	if n >= lanes {
		n = len(dst)
		dst = slices.Grow(dst, lanes*valueSize)[:n+lanes*valueSize]
		hash32((*[lanes * valueSize]byte)(dst[n:]), &p.messages, &p.counters, blocks, blockLen, start, middle, end)
		return dst
	}
	var out [lanes * valueSize]byte
	hash32(&out, &p.messages, &p.counters, blocks, blockLen, start, middle, end)
	return append(dst, out[:n*valueSize]...)
}
