// Command blake3x16 writes the assembly of the package of that name: `go generate`
// there runs it.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"hashfs/hasher/internal/asm/vector"
)

// A half is one of the two groups of 16 messages that take turns. Its state
// has 16 of the 32 vector registers, so the words of the message stay in
// memory: an addition can take them from there.
type half struct {
	state    [16]reg.VecPhysical
	words    Mem // the 64-byte block, 16 vectors
	chain    Mem // the chaining values, 8 vectors
	counters Mem // a vector, where the caller has it
	messages Mem // 16 addresses
	out      Mem // 16 chaining values of 32 bytes each
}

// nextGroup is how far on the messages of the next call are, where they are chunks
// of 1 KiB: too many streams for a processor to see that it could fetch ahead.
const nextGroup = 32 << 10

// lead is how many turns the first half is ahead of the second. Measured on a Xeon of
// 2023, in the core's cache, the best tenth: 6.43 GB/s so, 6.32 with 14 turns, 6.27
// with no loads beside the last turns, 6.25 with one turn and all loads before it.
const lead = 28

// turnsPerFetch spreads the requests for the next group over all turns. Measured
// there, in memory, when lead was one: 6.0 GB/s so, 5.5 with all of them beside the
// loads.
const turnsPerFetch = 6

// iv is the initial chaining value, that of SHA-256, in read-only memory.
var iv Mem

func main() {
	ConstraintExpr("amd64")
	iv = GLOBL("iv", RODATA|NOPTR)
	for i, word := range []uint32{
		0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
		0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
	} {
		DATA(4*i, U32(word))
	}
	hash()
	Generate()
}

// hash writes the function. The rounds are unrolled: then the permutation of the
// words is but another address in each addition.
func hash() {
	TEXT("hash32", 0, "func(out *[1024]byte, p *[32]*byte, counters *[32]uint32, blocks int, blockLen, start, middle, end uint32)")
	Pragma("noescape")
	Doc("hash32 hashes 32 messages, each of so many 64-byte blocks, more than 0, at p[i], and writes their",
		"chaining values, of 32 bytes each, to out; it reads all before. counters[i] is the low half of the",
		"chunk counter, whose high half is 0, and blockLen how many bytes of a block count. The flags of a",
		"block are middle, those of the first also start, those of the last also end. It needs AVX512F.")
	out := Mem{Base: Load(Param("out"), GP64())}
	p := Mem{Base: Load(Param("p"), GP64())}
	counters := Mem{Base: Load(Param("counters"), GP64())}
	blocks := Load(Param("blocks"), GP64())
	blockLen := Load(Param("blockLen"), GP32())
	flags := Load(Param("start"), GP32())
	middle := Load(Param("middle"), GP32())
	end := Load(Param("end"), GP32())
	ORL(middle, flags)
	at := GP64() // offset of the block in the messages
	XORQ(at, at)
	halves := newHalves(out, p, counters)
	for i := range 8 {
		VPBROADCASTD(iv.Offset(4*i), reg.Z0)
		for _, h := range halves {
			VMOVDQA32(reg.Z0, h.chain.Offset(vector.Bytes*i))
		}
	}

	next := GP64() // offset of the block after it, or of the last again
	for _, step := range halves[0].loadSteps(at) {
		step()
	}
	Label("block")
	LEAQ(Mem{Base: at, Disp: 64}, next)
	CMPQ(blocks, Imm(1))
	JNE(LabelRef("rounds"))
	ORL(end, flags)
	MOVQ(at, next)
	Label("rounds")
	halves[0].begin(blockLen, flags)
	rounds(&halves, at, next, blockLen, flags)
	halves[1].finish()
	MOVL(middle, flags)
	MOVQ(next, at)
	DECQ(blocks)
	JNZ(LabelRef("block"))

	for _, h := range halves {
		h.store()
	}
	VZEROUPPER()
	RET()
}

// newHalves makes the frame and divides all between the two halves.
func newHalves(out, p, counters Mem) (halves [2]half) {
	// A vector that spans two cache lines is slow, so the frame is aligned.
	const size = (16 + 8) * vector.Bytes
	frame := Mem{Base: GP64()}
	LEAQ(AllocLocal(2*size+vector.Bytes).Offset(vector.Bytes-1), frame.Base)
	ANDQ(I32(-vector.Bytes), frame.Base)
	for i := range halves {
		halves[i] = half{
			state:    [16]reg.VecPhysical(vector.All[16*i:]),
			words:    frame.Offset(size * i),
			chain:    frame.Offset(size*i + 16*vector.Bytes),
			counters: counters.Offset(vector.Bytes * i),
			messages: p.Offset(16 * 8 * i),
			out:      out.Offset(16 * 32 * i),
		}
	}
	return halves
}

// loadSteps returns what transposes the blocks at that offset in the 16 messages, so
// that each of h.words has the same word of all, in steps of an instruction or
// two. They take the registers of the half's state, and have the vectors that do not
// fit there in h.words.
func (h half) loadSteps(at reg.Register) (steps []func()) {
	step := func(f func()) { steps = append(steps, f) }
	word := func(i int) Mem { return h.words.Offset(vector.Bytes * i) }
	for q := range 4 {
		r := h.state[8*(q%2):]
		for i := range 4 {
			step(func() { vector.LoadBlock(h.messages, 4*q+i, at, r[i]) })
		}
		vector.Quad(r[:4], r[4:8], step)
		for i := range 4 {
			step(func() { VMOVDQA32(r[i], word(4*q+i)) })
		}
	}
	// word(4*q+j) has, in its quarter k, word 4*k+j of the messages 4*q to 4*q+3.
	for j := range 4 {
		r := h.state[8*(j%2):]
		x, t := r[:4], r[4:8]
		step(func() { VMOVDQA32(word(j), x[0]) })
		step(func() { VMOVDQA32(word(8+j), x[2]) })
		vector.Quarters([4]Op{x[0], word(4 + j), x[2], word(12 + j)}, t, x, step)
		for i := range 4 {
			step(func() { VMOVDQA32(x[i], word(4*i+j)) })
		}
	}
	return steps
}

// begin sets the state to that before the rounds.
func (h half) begin(blockLen, flags reg.Register) {
	for i := range 8 {
		VMOVDQA32(h.chain.Offset(vector.Bytes*i), h.state[i])
	}
	for i := range 4 {
		VPBROADCASTD(iv.Offset(4*i), h.state[8+i])
	}
	VMOVDQU32(h.counters, h.state[12])
	VPXORD(h.state[13], h.state[13], h.state[13])
	VPBROADCASTD(blockLen, h.state[14])
	VPBROADCASTD(flags, h.state[15])
}

// finish makes the chaining values out of the state after the rounds.
func (h half) finish() {
	for i := range 8 {
		VPXORD(h.state[8+i], h.state[i], h.state[i])
		VMOVDQA32(h.state[i], h.chain.Offset(vector.Bytes*i))
	}
}

// rounds does the seven rounds of both halves in turns of four instructions. While
// the first half is ahead alone the second loads its block, and while the second
// is left alone the first loads its next: of the units, the rotations need one and
// what transposes the words the other.
func rounds(halves *[2]half, at, next, blockLen, flags reg.Register) {
	first, second := halves[0].turns(), halves[1].turns()
	beside := func(load []func(), turn int) {
		for _, step := range load[len(load)*turn/lead : len(load)*(turn+1)/lead] {
			step()
		}
	}
	ahead, after := halves[1].loadSteps(at), halves[0].loadSteps(next)
	for i := range lead + len(second) {
		if i < lead {
			beside(ahead, i)
		} else {
			if i == lead {
				halves[1].begin(blockLen, flags)
			}
			second[i-lead]()
		}
		if i < len(first) {
			first[i]()
		} else {
			if i == len(first) {
				halves[0].finish()
			}
			beside(after, i-len(first))
		}
		if n := i / turnsPerFetch; i%turnsPerFetch == 0 && n < 2*vector.Lanes {
			vector.Fetch(halves[n/vector.Lanes].messages, n%vector.Lanes, at, nextGroup)
		}
	}
}

// turns returns what writes the seven rounds of one half, four instructions
// each that do not depend on each other.
func (h half) turns() (turns []func()) {
	words := [16]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	for range 7 {
		turns = append(turns, h.quarters(0, [8]int(words[:8]))...)
		turns = append(turns, h.quarters(1, [8]int(words[8:]))...)
		var next [16]int
		for i, from := range permutation {
			next[i] = words[from]
		}
		words = next
	}
	return turns
}

// permutation is that of the message words after each round.
var permutation = [16]int{2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8}

// quarters returns the turns that apply the function G to the four columns
// of the state, or, where skew is 1 and not 0, to its diagonals.
func (h half) quarters(skew int, words [8]int) (turns []func()) {
	type quarter struct{ a, b, c, d reg.VecPhysical }
	each := func(write func(i int, q quarter)) {
		turns = append(turns, func() {
			for i := range 4 {
				write(i, quarter{
					h.state[i], h.state[4+(i+skew)%4],
					h.state[8+(i+2*skew)%4], h.state[12+(i+3*skew)%4],
				})
			}
		})
	}
	for step, turn := range [2][2]uint64{{16, 12}, {8, 7}} {
		each(func(i int, q quarter) { VPADDD(h.words.Offset(vector.Bytes*words[2*i+step]), q.a, q.a) })
		each(func(i int, q quarter) { VPADDD(q.b, q.a, q.a) })
		each(func(i int, q quarter) { VPXORD(q.a, q.d, q.d) })
		each(func(i int, q quarter) { VPRORD(Imm(turn[0]), q.d, q.d) })
		each(func(i int, q quarter) { VPADDD(q.d, q.c, q.c) })
		each(func(i int, q quarter) { VPXORD(q.c, q.b, q.b) })
		each(func(i int, q quarter) { VPRORD(Imm(turn[1]), q.b, q.b) })
	}
	return turns
}

// store writes the 16 chaining values.
func (h half) store() {
	for i := range 8 {
		VMOVDQA32(h.chain.Offset(vector.Bytes*i), h.state[i])
	}
	// Quarter k of vector j has words 0 to 3 of message 4*k+j, or 4 to 7 of
	// message 4*k+j-4.
	vector.Quads(h.state[:8], h.state[8:])
	for j := range 4 {
		for k := range 4 {
			to := h.out.Offset(32 * (4*k + j))
			VEXTRACTI32X4(Imm(uint64(k)), h.state[j], to)
			VEXTRACTI32X4(Imm(uint64(k)), h.state[4+j], to.Offset(16))
		}
	}
}
