// Package sha256x4 computes SHA-256 and SHA-224 (FIPS 180-4) of independent
// messages of one length, four at a time, faster than one after the other.
//
// An x86 core with SHA extensions can start a SHA256RNDS2 every second cycle,
// but each of one message waits four cycles for the one before it. So half of
// the unit idles; the assembly here fills it with the rounds of other messages.
// Two could fill it, but do so only in some runs of the same code, as if they
// often met in one of two pipes; four always have one that is ready. Measured on
// an AMD EPYC (family 26), Go 1.26.8, November 2026, for 64 KiB messages, against
// crypto/sha256: four take 0.53 of its time, two 0.65. What is left over from
// the fours goes two at a time, and a last one to crypto/sha256.
//
// # What callers may rely on
//
// The digests are those of crypto/sha256 for messages of any length, aligned or
// not. Where the CPU lacks the instructions (SHA, SSSE3), crypto/sha256 does
// all the work. Nothing is allocated when dst has room. The assembly returns
// after at most 128 KiB, so that the scheduler and the garbage collector do not
// wait for it. All functions may be called from several goroutines at once.
//
// The environment variable HASHFS_CPU=generic, read once when the program
// starts, has crypto/sha256 used everywhere. Other values mean nothing.
//
// # How it is tested
//
// Against crypto/sha256 for each number of messages to nine, at every length to
// 300 bytes and around the borders of 64-byte blocks up to 1 MiB, at unaligned
// addresses, by fuzzing, and with the published vectors: each with the assembly
// and without.
package sha256x4

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
)

//go:generate go -C asm run . -out ../blocks_amd64.s -stubs ../blocks_amd64.go -pkg sha256x4

// interleave says whether the assembly is used. Only tests change it.
var interleave = hasSHA() && os.Getenv("HASHFS_CPU") != "generic"

// maxBlocks bounds what each message gets of one call of assembly, which
// cannot be preempted: 128 KiB for four take about 35 microseconds.
const maxBlocks = 32 << 10 / sha256.BlockSize

// A state is that of one message, its words in the order of the instructions:
// f, e, b, a, h, g, d, c.
type state = [8]uint32

var (
	initial256 = state{
		0x9b05688c, 0x510e527f, 0xbb67ae85, 0x6a09e667,
		0x5be0cd19, 0x1f83d9ab, 0xa54ff53a, 0x3c6ef372,
	}
	initial224 = state{
		0x68581511, 0xffc00b31, 0x367cd507, 0xc1059ed8,
		0xbefa4fa4, 0x64f98fa7, 0xf70e5939, 0x3070dd17,
	}
)

// AppendSums256 appends to dst the SHA-256 digests of the consecutive messages
// in data, each of size bytes but for the last, which may be shorter. The size
// must be more than 0; empty data has no message.
func AppendSums256(dst, data []byte, size int) []byte {
	if interleave {
		dst, data = appendLanes(dst, data, size, &initial256, 8)
	}
	for len(data) > 0 {
		n := min(size, len(data))
		sum := sha256.Sum256(data[:n])
		dst, data = append(dst, sum[:]...), data[n:]
	}
	return dst
}

// AppendSums224 does the same with SHA-224.
func AppendSums224(dst, data []byte, size int) []byte {
	if interleave {
		dst, data = appendLanes(dst, data, size, &initial224, 7)
	}
	for len(data) > 0 {
		n := min(size, len(data))
		sum := sha256.Sum224(data[:n])
		dst, data = append(dst, sum[:]...), data[n:]
	}
	return dst
}

// appendLanes appends the first words of the digests of all messages that it
// can do in fours and twos, and returns the data that is left.
func appendLanes(dst, data []byte, size int, initial *state, words int) (sums, rest []byte) {
	for _, lanes := range [...]int{4, 2} {
		for len(data)/size >= lanes {
			var states [4]state
			hash(states[:lanes], data[:lanes*size], initial)
			for i := range lanes {
				dst = appendWords(dst, &states[i], words)
			}
			data = data[lanes*size:]
		}
	}
	return dst, data
}

// hash sets the states, four or two, to those after the equally long messages
// that data consists of, and their padding.
func hash(states []state, data []byte, initial *state) {
	size := len(data) / len(states)
	var p [4]*byte
	for i := range states {
		states[i] = *initial
	}
	whole := size &^ (sha256.BlockSize - 1)
	for done := 0; done < whole; {
		n := min((whole-done)/sha256.BlockSize, maxBlocks)
		for i := range states {
			p[i] = &data[i*size+done]
		}
		blocks(states, &p, n)
		done += n * sha256.BlockSize
	}

	// A one bit, zeros, and the length in bits fill one block, or two.
	var tails [4][2 * sha256.BlockSize]byte
	tail := sha256.BlockSize
	if size-whole+1+8 > tail {
		tail = 2 * sha256.BlockSize
	}
	for i := range states {
		end := copy(tails[i][:], data[i*size+whole:(i+1)*size])
		tails[i][end] = 0x80
		binary.BigEndian.PutUint64(tails[i][tail-8:], uint64(size)*8)
		p[i] = &tails[i][0]
	}
	blocks(states, &p, tail/sha256.BlockSize)
}

// blocks hashes n blocks into each of the states.
func blocks(states []state, p *[4]*byte, n int) {
	if len(states) == 4 {
		blocks4((*[4]state)(states), p, n)
	} else {
		blocks2((*[2]state)(states), (*[2]*byte)(p[:]), n)
	}
}

// appendWords appends the first n of the words a to h.
func appendWords(dst []byte, s *state, n int) []byte {
	words := [8]uint32{s[3], s[2], s[7], s[6], s[1], s[0], s[5], s[4]}
	for _, w := range words[:n] {
		dst = binary.BigEndian.AppendUint32(dst, w)
	}
	return dst
}
