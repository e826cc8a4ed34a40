package hasher

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

// TestBuffers: buffers are as long as was asked for, nobody has a byte of another's,
// large ones lie within as few huge pages as they can, and those that were given
// back are used again.
func TestBuffers(t *testing.T) {
	var b buffers
	rng := rand.New(rand.NewPCG(1, 1))
	held := map[byte][]byte{}
	for step := range 200 {
		name := byte(step)
		if p := held[name]; p != nil || len(held) > 6 {
			for name, p = range held {
				break
			}
			for i, v := range p {
				if v != name {
					t.Fatalf("byte %d of a buffer of %d was written by another's holder", i, len(p))
				}
			}
			b.give(p)
			delete(held, name)
			continue
		}
		n := []int{1, 4096, pieceBytes, largeBytes - 1, largeBytes, largeBytes + 1, hugeBytes, 3 * hugeBytes}[rng.IntN(8)]
		p := b.take(n)
		if len(p) < n {
			t.Fatalf("%d bytes, want %d", len(p), n)
		}
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(p))); n >= largeBytes && at%largeBytes != 0 {
			t.Fatalf("a buffer of %d bytes is at %#x", n, at)
		}
		for i := range p {
			p[i] = name
		}
		held[name] = p
	}
	mapped := 0
	for _, m := range b.maps {
		mapped += len(m)
	}
	if limit := 7 * 2 * 4 * hugeBytes; mapped > limit {
		t.Errorf("%d bytes are mapped for 7 buffers at a time, more than %d", mapped, limit)
	}
	for _, p := range held {
		b.give(p)
	}
	b.release()
	if p := b.take(hugeBytes); p[0] != 0 || p[hugeBytes-1] != 0 {
		t.Error("memory that was released is given out again")
	}
	b.release()
}
