package sha256lanes

import (
	"fmt"
	"testing"
)

// The same messages with crypto/sha256 and with the assembly: the ratio of the
// times is what it is for. A few messages take the smaller steps.
func BenchmarkAppendSums256(b *testing.B) {
	for _, size := range []int{4, 64, 512, 4096, 65536, 1 << 20, 64 << 20} {
		for _, messages := range []int{1, 2, 3, 4, 10, 16} {
			if size*messages > 256<<20 {
				continue
			}
			data := make([]byte, messages*size)
			for i := range data {
				data[i] = byte(i * i >> 8)
			}
			dst := make([]byte, 0, messages*32)
			for _, p := range paths {
				b.Run(fmt.Sprintf("%d/messages=%d/%s", size, messages, p), func(b *testing.B) {
					usePath(b, p)
					b.SetBytes(int64(len(data)))
					b.ReportAllocs()
					for b.Loop() {
						AppendSums256(dst, data, size)
					}
				})
			}
		}
	}
}

// Data that is in no cache, which the assembly has to ask for ahead of its turn.
func BenchmarkAppendSums256_memory(b *testing.B) {
	const piece = 1 << 20
	data := make([]byte, 1<<30)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	dst := make([]byte, 0, piece/65536*32)
	b.SetBytes(piece)
	for off := 0; b.Loop(); off = (off + piece) % len(data) {
		AppendSums256(dst, data[off:off+piece], 65536)
	}
}
