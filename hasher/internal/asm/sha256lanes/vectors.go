package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"hashfs/hasher/internal/asm/vector"
)

// The registers of blocks16. The schedule, 16 words at a time, stays in them.
var (
	words = vector.All[:16]
	state = vector.All[16:24] // a to h, at the beginning of each eight rounds
	temps = vector.All[24:]
)

// nextBlocks is how far ahead of the rounds data is fetched. The processor does so
// by itself, but begins anew in each page.
const nextBlocks = 2 * 64

// blocks16 writes the function that hashes 16 messages, a vector for each word.
//
// The rounds are unrolled 16 times: so each finds its words and its state in
// registers that are known.
func blocks16() {
	TEXT("blocks16", 0, "func(states *[8][16]uint32, p *[16]*byte, blocks int)")
	Pragma("noescape")
	Doc("blocks16 hashes the 64-byte blocks at p[i], more than 0 in number, into states[j][i], words a to h",
		"for j from 0. It needs AVX512F and AVX512BW.")
	states := Mem{Base: Load(Param("states"), GP64())}
	p := Mem{Base: Load(Param("p"), GP64())}
	blocks := Load(Param("blocks"), GP64())
	at := GP64() // offset of the block in the messages
	XORQ(at, at)
	k, kEnd := GP64(), GP64()
	LEAQ(k256.Offset(4*48), kEnd)

	Label("block")
	vector.LoadWords(p, at, words, vector.All[16:])
	VBROADCASTI32X4(reversal, temps[0])
	for _, w := range words {
		VPSHUFB(temps[0], w, w)
	}
	for i, s := range state {
		VMOVDQU32(states.Offset(vector.Bytes*i), s)
	}
	LEAQ(k256, k)
	Label("rounds")
	for i := range 16 {
		round(i, Mem{Base: k}.Offset(4*i))
		extend(i)
	}
	ADDQ(Imm(4*16), k)
	CMPQ(k, kEnd)
	JNE(LabelRef("rounds"))
	for i := range vector.Lanes {
		round(i, Mem{Base: k}.Offset(4*i))
		vector.Fetch(p, i, at, nextBlocks)
	}
	for i, s := range state {
		VPADDD(states.Offset(vector.Bytes*i), s, s)
		VMOVDQU32(s, states.Offset(vector.Bytes*i))
	}
	ADDQ(Imm(64), at)
	DECQ(blocks)
	JNZ(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// The truth tables of VPTERNLOGD.
const (
	parity   = 0x96
	choice   = 0xca // of the first operand: the second, else the third
	majority = 0xe8
)

// xor3 sets x to the sum of three words, bit by bit.
func xor3(x, y, z reg.Register) { VPTERNLOGD(Imm(parity), z, y, x) }

// round does the round of the i-th word of 16. Its constant is at k.
func round(i int, k Mem) {
	// Instead of moving the state from a to b and so on, each round finds it
	// in other registers.
	s := func(j int) reg.VecPhysical { return state[(j-i%8+8)%8] }
	a, b, c, d, e, f, g, h := s(0), s(1), s(2), s(3), s(4), s(5), s(6), s(7)
	t := temps
	VPADDD_BCST(k, words[i], t[0])
	VPRORD(Imm(6), e, t[1])
	VPRORD(Imm(11), e, t[2])
	VPRORD(Imm(25), e, t[3])
	VMOVDQA32(e, t[4])
	VPADDD(t[0], h, h)
	VPTERNLOGD(Imm(choice), g, f, t[4])
	xor3(t[1], t[2], t[3])
	VPRORD(Imm(2), a, t[5])
	VPRORD(Imm(13), a, t[6])
	VPRORD(Imm(22), a, t[7])
	VPADDD(t[4], h, h)
	VMOVDQA32(a, t[0])
	VPADDD(t[1], h, h)
	VPTERNLOGD(Imm(majority), c, b, t[0])
	xor3(t[5], t[6], t[7])
	VPADDD(h, d, d)
	VPADDD(t[0], h, h)
	VPADDD(t[5], h, h)
}

// extend replaces the i-th word by the one 16 further in the schedule.
func extend(i int) {
	w := func(j int) reg.VecPhysical { return words[(i+j)%16] }
	t := temps
	VPRORD(Imm(7), w(1), t[1])
	VPRORD(Imm(18), w(1), t[2])
	VPSRLD(Imm(3), w(1), t[3])
	VPRORD(Imm(17), w(14), t[4])
	VPRORD(Imm(19), w(14), t[5])
	VPSRLD(Imm(10), w(14), t[6])
	VPADDD(w(9), w(0), w(0))
	xor3(t[1], t[2], t[3])
	xor3(t[4], t[5], t[6])
	VPADDD(t[1], w(0), w(0))
	VPADDD(t[4], w(0), w(0))
}
