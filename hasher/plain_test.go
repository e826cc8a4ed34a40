package hasher

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// TestPlainSum: the digest is that of all bytes, also where they are read ahead of
// their turn, and a failure names the first byte that could not be read.
func TestPlainSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	spec := mustSpec(t, "sha256/64")
	for range 200 {
		src := newMemSource(1 + rng.IntN(2000))
		for range rng.IntN(4) {
			at := rng.Int64N(src.Size())
			src.unholeLocked(at, min(src.Size()-at, 1+rng.Int64N(1000)))
			src.data[at] = 1
		}
		im := newTestImage(t, queued{src}, spec, 1<<20)
		im.queuedBytes = 4 << rng.IntN(5)
		im.aheadBytes = im.queuedBytes << (1 + rng.IntN(3))
		if rng.IntN(3) == 0 {
			im.scan = partlyCached{src}
		}
		bad := int64(-1)
		if rng.IntN(3) == 0 {
			bad = rng.Int64N(src.Size()) / holeBlock
			src.bad[bad] = true
			src.unholeLocked(bad*holeBlock, min(holeBlock, src.Size()-bad*holeBlock))
		}
		sum, err := im.PlainSum(t.Context(), spec.Algorithm)
		h := spec.Algorithm.New()
		h.Write(src.data)
		var failure *ReadError
		switch {
		case bad < 0 && (err != nil || !bytes.Equal(sum, h.Sum(nil))):
			t.Fatalf("%d bytes: %x, %v, want %x", src.Size(), sum, err, h.Sum(nil))
		case bad >= 0 && (!errors.As(err, &failure) || failure.Offset != bad*holeBlock):
			t.Fatalf("a block at %d is bad: %x, %v", bad*holeBlock, sum, err)
		}
	}
}
