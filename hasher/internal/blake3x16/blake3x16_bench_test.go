package blake3x16

import (
	"fmt"
	"slices"
	"testing"
)

// The same messages with the library and with the assembly, in a piece as
// hashfs reads it and alone. 4 MiB is what the assembly leaves to the library.
func BenchmarkAppendSums(b *testing.B) {
	for _, size := range []int{4, 64, 512, 1024, 4096, 65536, 256 << 10, 4 << 20} {
		for _, messages := range slices.Compact([]int{1, 2, max(2, 256<<10/size)}) {
			data := make([]byte, messages*size)
			for i := range data {
				data[i] = byte(i * i >> 8)
			}
			dst := make([]byte, 0, messages*32)
			for _, fast := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d/messages=%d/%s", size, messages, pathName(fast)), func(b *testing.B) {
					usePath(b, fast)
					b.SetBytes(int64(len(data)))
					b.ReportAllocs()
					for b.Loop() {
						AppendSums(dst, data, size)
					}
				})
			}
		}
	}
}

// Data that is in no cache, which the assembly has to ask for ahead of its turn.
func BenchmarkAppendSums_memory(b *testing.B) {
	const piece = 1 << 20
	data := make([]byte, 1<<30)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	dst := make([]byte, 0, piece/65536*32)
	b.SetBytes(piece)
	for off := 0; b.Loop(); off = (off + piece) % len(data) {
		AppendSums(dst, data[off:off+piece], 65536)
	}
}
