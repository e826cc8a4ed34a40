// Command sha256lanes writes the assembly of the package of that name: `go generate`
// there runs it.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A lane is one of the messages that are hashed side by side.
type lane struct {
	data       reg.GPVirtual      // address of the 64-byte block
	abef, cdgh reg.VecPhysical    // state in the order of the SHA instructions
	saved      Mem                // state before the block
	words      [4]reg.VecPhysical // the last 16 of the message schedule
	wk         reg.VecPhysical    // four words + constants
}

var lanes = [2]lane{
	{abef: reg.X1, cdgh: reg.X2, words: [4]reg.VecPhysical{reg.X3, reg.X4, reg.X5, reg.X6}, wk: reg.X13},
	{abef: reg.X7, cdgh: reg.X8, words: [4]reg.VecPhysical{reg.X9, reg.X10, reg.X11, reg.X12}, wk: reg.X14},
}

var (
	wk  = reg.X0 // words + constants: the operand that SHA256RNDS2 implies
	tmp = reg.X15
)

// Tables in read-only memory. The linker aligns a symbol of 16 bytes or more by
// at least 16, which PSHUFB needs.
var k256, reversal Mem

func main() {
	ConstraintExpr("amd64")
	tables()
	blocks2()
	blocks16()
	Generate()
}

// blocks2 writes the function that hashes two lanes.
func blocks2() {
	TEXT("blocks2", 0, "func(states *[2][8]uint32, p *[2]*byte, blocks int)")
	Pragma("noescape")
	Doc("blocks2 hashes the 64-byte blocks at p[i], more than 0 in number, into states[i].",
		"The words of a state are in the order f, e, b, a, h, g, d, c. It needs SHA and AVX.")
	states := Mem{Base: Load(Param("states"), GP64())}
	p := Mem{Base: Load(Param("p"), GP64())}
	count := Load(Param("blocks"), GP64())
	k := Mem{Base: GP64()}
	LEAQ(k256, k.Base)
	frame := Mem{Base: GP64()}
	LEAQ(AllocLocal(len(lanes)*32+16).Offset(15), frame.Base)
	ANDQ(I32(-16), frame.Base)
	VZEROUPPER() // what others left there slows the SHA instructions
	for i := range lanes {
		l := &lanes[i]
		l.data = GP64()
		l.saved = frame.Offset(32 * i)
		MOVQ(p.Offset(8*i), l.data)
		MOVOU(states.Offset(32*i), l.abef)
		MOVOU(states.Offset(32*i+16), l.cdgh)
	}
	Label("block")
	for _, l := range lanes {
		MOVOU(l.abef, l.saved)
		MOVOU(l.cdgh, l.saved.Offset(16))
	}
	for _, l := range lanes {
		for i, w := range l.words {
			MOVOU(Mem{Base: l.data}.Offset(16*i), w)
			PSHUFB(reversal, w)
		}
	}
	for i := range 16 {
		for _, l := range lanes {
			MOVO(l.words[i%4], wk)
			PADDD(k.Offset(16*i), wk)
			PSHUFD(Imm(0x0e), wk, l.wk) // the upper two words
			SHA256RNDS2(wk, l.abef, l.cdgh)
		}
		for _, l := range lanes {
			MOVO(l.wk, wk)
			SHA256RNDS2(wk, l.cdgh, l.abef)
			if i < 12 {
				l.extend(i)
			}
		}
	}
	for _, l := range lanes {
		PADDD(l.saved, l.abef)
		PADDD(l.saved.Offset(16), l.cdgh)
		ADDQ(Imm(64), l.data)
	}
	DECQ(count)
	JNZ(LabelRef("block"))
	for i, l := range lanes {
		MOVOU(l.abef, states.Offset(32*i))
		MOVOU(l.cdgh, states.Offset(32*i+16))
	}
	RET()
}

// extend replaces the i-th four words by those 16 further in the schedule.
func (l *lane) extend(i int) {
	w := func(j int) reg.VecPhysical { return l.words[(i+j)%4] }
	SHA256MSG1(w(1), w(0))
	MOVO(w(3), tmp)
	PALIGNR(Imm(4), w(2), tmp)
	PADDD(tmp, w(0))
	SHA256MSG2(w(3), w(0))
}

func tables() {
	k256 = GLOBL("k256", RODATA|NOPTR)
	for i, word := range roundConstants {
		DATA(4*i, U32(word))
	}
	reversal = GLOBL("reversal", RODATA|NOPTR) // of the bytes in each word
	for i, word := range []uint64{0x0405060700010203, 0x0c0d0e0f08090a0b} {
		DATA(8*i, U64(word))
	}
}

// roundConstants are the first 32 bits of the fractional parts of the cube roots of the
// first 64 primes.
var roundConstants = [64]uint32{
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}
