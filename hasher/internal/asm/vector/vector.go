// Package vector has what the programs that write AVX-512 assembly share.
package vector

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	// Lanes is how many messages have a word in one vector.
	Lanes = 16

	// Bytes is the size of a vector.
	Bytes = 4 * Lanes
)

// All are all the vector registers.
var All = [32]reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7,
	reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
	reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
	reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
}

// LoadWords loads 64 bytes of each of 16 messages, at an offset in them, and
// transposes them: then words[i] has word i of all. messages are their
// addresses. It spoils all registers of All that words are not: words are the
// lower or the upper half of them.
func LoadWords(messages Mem, at reg.Register, words, spoilt []reg.VecPhysical) {
	for i := range words {
		LoadBlock(messages, i, at, words[i])
	}
	Quads(words, spoilt)
	// words[4*q+j] has, in its quarter k, word 4*k+j of the messages 4*q to 4*q+3.
	for j := range 4 {
		x := []reg.VecPhysical{words[j], words[4+j], words[8+j], words[12+j]}
		Quarters([4]Op{x[0], x[1], x[2], x[3]}, spoilt[4*j:], x, atOnce)
	}
}

// Quarters transposes four vectors, four quarters by four: to[k] gets quarter k of
// all. The second and the fourth may be in memory, and to may be the same as they.
// It spoils t, and calls do with each step.
func Quarters(x [4]Op, t, to []reg.VecPhysical, do func(step func())) {
	do(func() { VSHUFI32X4(Imm(0x88), x[1], x[0], t[0]) })
	do(func() { VSHUFI32X4(Imm(0xdd), x[1], x[0], t[1]) })
	do(func() { VSHUFI32X4(Imm(0x88), x[3], x[2], t[2]) })
	do(func() { VSHUFI32X4(Imm(0xdd), x[3], x[2], t[3]) })
	do(func() { VSHUFI32X4(Imm(0x88), t[2], t[0], to[0]) })
	do(func() { VSHUFI32X4(Imm(0x88), t[3], t[1], to[1]) })
	do(func() { VSHUFI32X4(Imm(0xdd), t[2], t[0], to[2]) })
	do(func() { VSHUFI32X4(Imm(0xdd), t[3], t[1], to[3]) })
}

// atOnce does a step where it stands.
func atOnce(step func()) { step() }

// LoadBlock loads 64 bytes at an offset in message i. messages are their addresses.
func LoadBlock(messages Mem, i int, at, to reg.Register) {
	VMOVDQU32(block(messages, i, at), to)
}

// Fetch asks for what is at an offset in message i and ahead bytes further on. One
// such request every now and then costs nothing; all at once they take all of the
// core's buffers for fills, and loads wait behind them.
func Fetch(messages Mem, i int, at reg.Register, ahead int) {
	PREFETCHT1(block(messages, i, at).Offset(ahead))
}

// block loads the address of message i, and returns what is at an offset in it.
func block(messages Mem, i int, at reg.Register) Mem {
	message := GP64()
	MOVQ(messages.Offset(8*i), message)
	return Mem{Base: message, Index: at, Scale: 1}
}

// Quads transposes each four vectors of a, four words by four in each quarter.
// It spoils b.
func Quads(a, b []reg.VecPhysical) {
	for q := 0; q < len(a); q += 4 {
		Quad(a[q:q+4], b[q:q+4], atOnce)
	}
}

// Quad calls do with each step that transposes four vectors as Quads does.
func Quad(a, b []reg.VecPhysical, do func(step func())) {
	do(func() { VPUNPCKLDQ(a[1], a[0], b[0]) })
	do(func() { VPUNPCKHDQ(a[1], a[0], b[1]) })
	do(func() { VPUNPCKLDQ(a[3], a[2], b[2]) })
	do(func() { VPUNPCKHDQ(a[3], a[2], b[3]) })
	do(func() { VPUNPCKLQDQ(b[2], b[0], a[0]) })
	do(func() { VPUNPCKHQDQ(b[2], b[0], a[1]) })
	do(func() { VPUNPCKLQDQ(b[3], b[1], a[2]) })
	do(func() { VPUNPCKHQDQ(b[3], b[1], a[3]) })
}
