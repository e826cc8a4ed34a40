package hasher

import (
	"fmt"
	"testing"
)

func BenchmarkIsZero(b *testing.B) {
	for _, size := range []int{4, 64, 512, 4096, 65536, 1 << 20, 64 << 20} {
		buf := make([]byte, size)
		for i := range buf {
			buf[i] = 0 // maps the pages: the shared zero page flatters
		}
		b.Run(fmt.Sprintf("zero/%d", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if !IsZero(buf) {
					b.Fatal("zeros taken for data")
				}
			}
		})
	}
	// Data ends the scan at once, or late where it begins with zeros.
	for _, at := range []int{0, 4096, 65535} {
		buf := make([]byte, 65536)
		buf[at] = 1
		b.Run(fmt.Sprintf("data/65536/at%d", at), func(b *testing.B) {
			b.SetBytes(int64(at + 1))
			b.ReportAllocs()
			for b.Loop() {
				if IsZero(buf) {
					b.Fatal("data taken for zeros")
				}
			}
		})
	}
}
