package integration

import (
	"encoding/binary"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// A plan is what the processes of the model test have in common. All of it
// follows from its fields, so that each process knows what the others do.
type plan struct {
	Seed    uint64
	Size    int64 // of the image, bytes
	Bs      int64 // block size
	Writers int
	Mount   string // the mount point
	Dir     string // where the processes share files
	Stale   bool   // views may end with ESTALE, since the cache is small
}

// A segment is a run of bytes that one writer alone changes. Segments end
// anywhere, so that writers share blocks, but not bytes.
type segment struct{ lo, hi int64 }

// segments returns those of a writer, in order.
func (p *plan) segments(writer int) (own []segment) {
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	for i, at := 0, int64(0); at < p.Size; i++ {
		length := 1 + rng.Int64N(12<<10)
		if rng.IntN(10) == 0 {
			length = 1 + rng.Int64N(200<<10)
		}
		end := min(p.Size, at+length)
		if i%p.Writers == writer {
			own = append(own, segment{at, end})
		}
		at = end
	}
	return own
}

// An op is one request that changes the image.
type op struct {
	mode   uint32 // of fallocate(2), or 0 for a write
	lo, hi int64  // bytes
	fill   uint64 // what is written follows from it
}

// op returns the k-th one of a writer, who has these segments.
func (p *plan) op(writer int, k uint64, own []segment) op {
	rng := rand.New(rand.NewPCG(p.Seed^uint64(writer+1)<<32, k))
	s := own[rng.IntN(len(own))]
	lo := s.lo + rng.Int64N(s.hi-s.lo)
	hi := lo + 1 + rng.Int64N(s.hi-lo)
	if rng.IntN(4) == 0 {
		lo, hi = s.lo, s.hi
	}
	o := op{lo: lo, hi: hi, fill: rng.Uint64() | 1}
	switch rng.IntN(10) {
	case 0:
		o.mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	case 1:
		o.mode = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
	}
	return o
}

// apply does the op to data, which begins at byte 0 of the image.
func (o op) apply(data []byte) {
	if o.mode != 0 {
		clear(data[o.lo:o.hi])
		return
	}
	o.content(data[o.lo:o.hi])
}

// content fills p, hi-lo bytes, with what the op writes. No two ops of a run
// write the same.
func (o op) content(p []byte) {
	for i := 0; len(p) >= 8; i++ {
		binary.LittleEndian.PutUint64(p, o.fill+uint64(i)*0x9e3779b97f4a7c15)
		p = p[8:]
	}
	for i := range p {
		p[i] = byte(o.fill>>(8*i)) | 1
	}
}
