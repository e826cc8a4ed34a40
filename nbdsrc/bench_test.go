//go:build cgo

package nbdsrc

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"hashfs/hasher"
)

// BenchmarkNothing is what a call of C costs, without any work.
func BenchmarkNothing(b *testing.B) {
	for b.Loop() {
		nothing()
	}
}

// BenchmarkReadAt reads zeros from memory, so that what is measured is the way
// there and back. callers is how many read at once.
func BenchmarkReadAt(b *testing.B) {
	for _, tc := range []struct{ connections, callers, length int }{
		{1, 1, 4 << 10}, {1, 16, 4 << 10}, {1, 1, 256 << 10}, {1, 8, 256 << 10}, {4, 8, 256 << 10}, {1, 1, 1 << 20},
	} {
		b.Run(fmt.Sprintf("connections=%d/callers=%d/length=%d", tc.connections, tc.callers, tc.length), func(b *testing.B) {
			e := nbdkit(b, "memory", "1G").open(Options{Connections: tc.connections})
			until(b, "all connections are there", func() bool { return e.Connections() == tc.connections })
			b.SetBytes(int64(tc.length))
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range tc.callers {
				wg.Go(func() {
					p := make([]byte, tc.length)
					for k := i; k < b.N; k += tc.callers {
						if _, err := e.ReadAt(p, int64(k%512)*int64(tc.length)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkExtents lists a hole of 1000 GiB.
func BenchmarkExtents(b *testing.B) {
	path := diskFile(b, nil)
	check(b, os.Truncate(path, 1000<<30))
	e := nbdkit(b, "file", path).open(Options{})
	for b.Loop() {
		check(b, e.Extents(b.Context(), 0, e.Size(), func(hasher.Extent) bool { return true }))
	}
}
