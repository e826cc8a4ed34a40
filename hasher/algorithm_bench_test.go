package hasher

import (
	"fmt"
	"testing"
)

// A pass over the blocks of one request, warm: 4-byte blocks show what a
// digest costs by itself, large ones what a byte costs. A pass is of
// 256 blocks or 1 MiB, whichever is less, and of four blocks at least.
func BenchmarkAppendSums(b *testing.B) {
	for _, a := range Algorithms() {
		for _, bs := range []int{4, 64, 512, 4096, 65536, 1 << 20, 64 << 20} {
			b.Run(fmt.Sprintf("%s/%d", a.Name(), bs), func(b *testing.B) {
				n := max(4, min(256, 1<<20/bs))
				data := make([]byte, n*bs)
				for i := range data {
					data[i] = byte(i * i >> 8)
				}
				h := a.NewBlockHasher(bs)
				dst := make([]byte, 0, n*a.Size())
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				for b.Loop() {
					h.AppendSums(dst, data)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/block")
			})
		}
	}
}
