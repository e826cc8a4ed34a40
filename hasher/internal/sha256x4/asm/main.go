// Command asm writes the assembly of package sha256x4: `go generate` in the
// directory above runs it. It is a module of its own so that hashfs does not
// depend on avo.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A lane is one of the messages that are hashed side by side. With the four
// scratch registers, four lanes take all 16 vector registers.
type lane struct {
	data       reg.GPVirtual   // address of the 64-byte block
	abef, cdgh reg.VecPhysical // state in the order of the SHA instructions
	last       reg.VecPhysical // the four words of the message schedule made last
	words      Mem             // the whole schedule of the block, 64 words
	saved      Mem             // state before the block
}

var lanes = [4]lane{
	{abef: reg.X1, cdgh: reg.X2, last: reg.X9},
	{abef: reg.X3, cdgh: reg.X4, last: reg.X10},
	{abef: reg.X5, cdgh: reg.X6, last: reg.X11},
	{abef: reg.X7, cdgh: reg.X8, last: reg.X12},
}

var (
	wk         = reg.X0 // words + constants: the operand that SHA256RNDS2 implies
	t0, t1, t2 = reg.X13, reg.X14, reg.X15
)

// Tables in read-only memory. The linker aligns a symbol of 16 bytes or more by
// at least 16, which PSHUFB needs.
var k256, reversal Mem

func main() {
	ConstraintExpr("amd64")
	tables()
	blocks(4)
	blocks(2)
	Generate()
}

// blocks writes the function that hashes n lanes. Its loops are not unrolled
// since that gains nothing: all waiting is for the SHA unit.
func blocks(n int) {
	TEXT(fmt.Sprintf("blocks%d", n), 0, fmt.Sprintf("func(states *[%d][8]uint32, p *[%d]*byte, blocks int)", n, n))
	Pragma("noescape")
	Doc(fmt.Sprintf("blocks%d hashes the 64-byte blocks at p[i], more than 0 in number, into states[i].", n),
		"The words of a state are in the order f, e, b, a, h, g, d, c. It needs SHA and SSSE3.")
	states := Mem{Base: Load(Param("states"), GP64())}
	p := Mem{Base: Load(Param("p"), GP64())}
	count := Load(Param("blocks"), GP64())
	at := GP64() // offset in bytes of a step's four words
	k := Mem{Base: GP64(), Index: at, Scale: 1}
	LEAQ(k256, k.Base)

	frame := AllocLocal(n * (256 + 32))
	lanes := lanes[:n]
	for i := range lanes {
		l := &lanes[i]
		l.data = GP64()
		l.words = frame.Offset(256*i).Idx(at, 1)
		l.saved = frame.Offset(256*n + 32*i)
		MOVQ(p.Offset(8*i), l.data)
		MOVOU(states.Offset(32*i), l.abef)
		MOVOU(states.Offset(32*i+16), l.cdgh)
	}

	Label("block")
	for _, l := range lanes {
		MOVOU(l.abef, l.saved)
		MOVOU(l.cdgh, l.saved.Offset(16))
	}
	loop("first", at, 4, func() {
		for _, l := range lanes {
			l.load(at)
			l.fourRounds(k)
		}
	})
	loop("later", at, 12, func() {
		for _, l := range lanes {
			l.schedule()
			l.fourRounds(k.Offset(64))
		}
	})
	for _, l := range lanes {
		MOVOU(l.saved, t0)
		PADDD(t0, l.abef)
		MOVOU(l.saved.Offset(16), t0)
		PADDD(t0, l.cdgh)
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

// loop runs body so often, with at going up from 0 by the size of four words.
func loop(label string, at reg.GPVirtual, times int, body func()) {
	XORQ(at, at)
	Label(label)
	body()
	ADDQ(Imm(16), at)
	CMPQ(at, U32(16*times))
	JNE(LabelRef(label))
}

// load takes four words from the message.
func (l *lane) load(at reg.GPVirtual) {
	MOVOU(Mem{Base: l.data, Index: at, Scale: 1}, l.last)
	PSHUFB(reversal, l.last)
	MOVOU(l.last, l.words)
}

// schedule makes the next four words, 64 bytes beyond l.words.
func (l *lane) schedule() {
	MOVOU(l.words, t0)
	MOVOU(l.words.Offset(16), t1)
	SHA256MSG1(t1, t0)
	MOVOU(l.words.Offset(32), t1)
	MOVO(l.last, t2)
	PALIGNR(Imm(4), t1, t2)
	PADDD(t2, t0)
	SHA256MSG2(l.last, t0)
	MOVO(t0, l.last)
	MOVOU(t0, l.words.Offset(64))
}

// fourRounds does the rounds of the words made last; k are their constants.
func (l *lane) fourRounds(k Mem) {
	MOVOU(k, wk)
	PADDD(l.last, wk)
	SHA256RNDS2(wk, l.abef, l.cdgh)
	PSHUFD(Imm(0x0e), wk, wk) // the upper two words
	SHA256RNDS2(wk, l.cdgh, l.abef)
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
