// Package sha256lanes computes SHA-256 and SHA-224 (FIPS 180-4) of independent
// messages of one length side by side, faster than one after the other.
//
// Where the CPU has AVX-512, a vector holds a word of each of 16 messages, and a
// core hashes 16 in less than half of the time that its SHA extensions take for
// one after the other.
//
// Where it has the SHA extensions, two messages share them: each SHA256RNDS2 of
// one message waits four cycles for the one before it, and a core can start one
// every second or third cycle. The words of the message schedule are made well
// before their rounds, so that only those wait. On the Xeon below a start takes
// three cycles: two messages cannot take less than 0.75.
//
// What is left over from the sixteens goes by twos, and a last one to
// crypto/sha256. Measured on an Intel Xeon (Emerald Rapids), Go 1.26.8, November
// 2026, for 64 KiB messages, against crypto/sha256: 16 take 0.46 of its time, two
// 0.76.
//
// # What callers may rely on
//
// The digests are those of crypto/sha256 for messages of any length, aligned or
// not. Where the CPU lacks the instructions (SHA and AVX; AVX512F and AVX512BW),
// crypto/sha256 does all the work. Nothing is allocated when dst has room. The
// assembly returns after at most 128 KiB, so that the scheduler and the garbage
// collector do not wait for it. All functions may be called from several
// goroutines at once.
//
// The environment variable HASHFS_CPU=generic, read once when the program
// starts, has crypto/sha256 used everywhere. Other values mean nothing.
//
// # How it is tested
//
// Against crypto/sha256 for each number of messages to 21, at every length to
// 300 bytes and around the borders of 64-byte blocks up to 1 MiB, at unaligned
// addresses, by fuzzing, and with the published vectors: each with all of the
// assembly, with either half, and without.
package sha256lanes

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
)

//go:generate go -C ../asm run ./sha256lanes -out ../sha256lanes/blocks_amd64.s -stubs ../sha256lanes/blocks_amd64.go -pkg sha256lanes

// A path is what of the assembly is used.
type path struct {
	vectors    bool // 16 messages in AVX-512 vectors
	interleave bool // two messages by the SHA extensions
}

// current is the path in use. Only tests change it.
var current = choose()

func choose() path {
	if os.Getenv("HASHFS_CPU") == "generic" {
		return path{}
	}
	return path{vectors: hasAVX512(), interleave: hasSHA()}
}

const (
	// vectorLanes is how many messages the vectors hold.
	vectorLanes = 16

	// vectorLeast is from how many on it takes less time to hash 16, some of
	// them for nothing, than to hash these by twos.
	vectorLeast = 10

	// maxBytes bounds what one call of assembly, which cannot be preempted,
	// hashes of all messages: it takes about 40 microseconds.
	maxBytes = 128 << 10
)

// WholeBytes is the length of data, in bytes, of which messages of size bytes
// each fill the widest of the assembly.
func WholeBytes(size int) int {
	switch {
	case current.vectors:
		return vectorLanes * size
	case current.interleave:
		return 2 * size
	}
	return size
}

// Faultable returns how many bytes of n, in messages of size bytes each, may be in
// memory where a load can fault: AppendSums256 and AppendSums224 read those at the
// beginning by this package's assembly alone, which calls nothing and leaves the
// stack pointer alone, so that Go's runtime finds its way back from there.
func Faultable(size, n int) int {
	messages, done := n/size, 0
	for lanes := width(messages); lanes > 0; lanes = width(messages - done) {
		done += lanes
	}
	return done * size
}

// A state is that of one message, its words in the order of the SHA
// instructions: f, e, b, a, h, g, d, c.
type state = [8]uint32

// inOrder are the places of the words a to h in a state.
var inOrder = [8]int{3, 2, 7, 6, 1, 0, 5, 4}

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
	dst, data = appendLanes(dst, data, size, &initial256, 8)
	for len(data) > 0 {
		n := min(size, len(data))
		sum := sha256.Sum256(data[:n])
		dst, data = append(dst, sum[:]...), data[n:]
	}
	return dst
}

// AppendSums224 does the same with SHA-224.
func AppendSums224(dst, data []byte, size int) []byte {
	dst, data = appendLanes(dst, data, size, &initial224, 7)
	for len(data) > 0 {
		n := min(size, len(data))
		sum := sha256.Sum224(data[:n])
		dst, data = append(dst, sum[:]...), data[n:]
	}
	return dst
}

// appendLanes appends the first words of the digests of all messages that the
// assembly can do, and returns the data that is left.
func appendLanes(dst, data []byte, size int, initial *state, words int) (sums, rest []byte) {
	for {
		lanes := width(len(data) / size)
		if lanes == 0 {
			return dst, data
		}
		var states [vectorLanes]state
		hash(states[:lanes], data[:lanes*size], initial)
		for i := range lanes {
			dst = appendWords(dst, &states[i], words)
		}
		data = data[lanes*size:]
	}
}

// width returns how many of the messages are to be hashed next.
func width(messages int) int {
	switch {
	case current.vectors && messages >= vectorLeast:
		return min(messages, vectorLanes)
	case current.interleave && messages >= 2:
		return 2
	}
	return 0
}

// hash sets the states to those after the equally long messages that data
// consists of, and their padding.
func hash(states []state, data []byte, initial *state) {
	size := len(data) / len(states)
	for i := range states {
		states[i] = *initial
	}
	var p [vectorLanes]*byte
	whole := size &^ (sha256.BlockSize - 1)
	for done := 0; done < whole; {
		n := min((whole-done)/sha256.BlockSize, maxBytes/sha256.BlockSize/len(states))
		for i := range states {
			p[i] = &data[i*size+done]
		}
		blocks(states, &p, n)
		done += n * sha256.BlockSize
	}

	// A one bit, zeros, and the length in bits fill one block, or two.
	var tails [vectorLanes][2 * sha256.BlockSize]byte
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

// blocks hashes n blocks into each of the states, of which there are as many as
// width returns.
func blocks(states []state, p *[vectorLanes]*byte, n int) {
	if len(states) == 2 {
		blocks2((*[2]state)(states), (*[2]*byte)(p[:]), n)
		return
	}
	var vectors [8][vectorLanes]uint32
	for i := range vectorLanes {
		from := min(i, len(states)-1) // the last lanes do the same again
		p[i] = p[from]
		for j, k := range inOrder {
			vectors[j][i] = states[from][k]
		}
	}
	blocks16(&vectors, p, n)
	for i := range states {
		for j, k := range inOrder {
			states[i][k] = vectors[j][i]
		}
	}
}

// appendWords appends the first n of the words a to h.
func appendWords(dst []byte, s *state, n int) []byte {
	for _, k := range inOrder[:n] {
		dst = binary.BigEndian.AppendUint32(dst, s[k])
	}
	return dst
}
