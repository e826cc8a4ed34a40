package hasher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

// A nullSource costs next to nothing to read and to write, so that what is left
// is the engine's own. It repeats one piece of random bytes, and ignores what is
// written.
type nullSource struct {
	size  int64
	piece []byte
}

func newNullSource(size int64) *nullSource {
	s := &nullSource{size: size, piece: make([]byte, pieceBytes)}
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(s.piece)
	return s
}

func (s *nullSource) Size() int64    { return s.size }
func (s *nullSource) Close() error   { return nil }
func (s *nullSource) Writable() bool { return true }
func (s *nullSource) Flush() error   { return nil }

func (s *nullSource) ReadAt(p []byte, off int64) (int, error) {
	for n := 0; n < len(p); {
		n += copy(p[n:], s.piece[(off+int64(n))%int64(len(s.piece)):])
	}
	return len(p), nil
}

func (s *nullSource) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

const benchSize = 256 << 20

func checksum(b *testing.B, im *Image) {
	v, err := im.OpenView(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	defer v.Close()
	if _, err := v.Checksum(context.Background()); err != nil {
		b.Fatal(err)
	}
}

func write(b *testing.B, im *Image, p []byte, off int64) {
	if n, err := im.WriteAt(context.Background(), p, off); err != nil || n != len(p) {
		b.Fatalf("%d, %v", n, err)
	}
}

// All of an image, of which nothing is known and whose bytes cost nothing: two
// workers, as all here.
func BenchmarkChecksum_first(b *testing.B) {
	for _, name := range benchAlgorithms {
		b.Run(name, func(b *testing.B) {
			im := newTestImage(b, newNullSource(benchSize), mustSpec(b, name), 1<<30)
			b.SetBytes(benchSize)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				write(b, im, make([]byte, benchSize), 0) // nothing is known after it
				b.StartTimer()
				checksum(b, im)
			}
		})
	}
}

// The checksum once more: of an image that did not change, and after a write of
// 64 KiB at its start, which leaves no checkpoint, and at its end.
func BenchmarkChecksum_again(b *testing.B) {
	im := newTestImage(b, newNullSource(benchSize), mustSpec(b, "sha256"), 1<<30)
	checksum(b, im)
	b.Run("unchanged", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			checksum(b, im)
		}
	})
	p := make([]byte, 64<<10)
	for _, at := range []struct {
		name string
		off  int64
	}{{"start", 0}, {"end", benchSize - int64(len(p))}} {
		b.Run("written-at-"+at.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				write(b, im, p, at.off)
				checksum(b, im)
			}
		})
	}
}

// Digests that are known, as a read of digests.bin asks for them.
func BenchmarkReadDigests(b *testing.B) {
	im := newTestImage(b, newNullSource(benchSize), mustSpec(b, "sha256"), 1<<30)
	checksum(b, im)
	for _, n := range []int{1, 128, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			v := openView(b, im)
			dst := make([]byte, n*32)
			b.SetBytes(int64(len(dst)))
			b.ReportAllocs()
			for b.Loop() {
				if err := v.ReadDigests(context.Background(), dst, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Digests of which none is known, so many at a time and in order: what a pass loses
// between two reads.
func BenchmarkReadDigests_inOrder(b *testing.B) {
	im := newTestImage(b, newNullSource(benchSize), mustSpec(b, "sha256"), 1<<30)
	for _, n := range []int64{16, 128, 1024, im.blocks} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dst := make([]byte, n*32)
			b.SetBytes(benchSize)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				write(b, im, make([]byte, benchSize), 0) // nothing is known after it
				v := openView(b, im)
				b.StartTimer()
				for at := int64(0); at < im.blocks; at += n {
					if err := v.ReadDigests(context.Background(), dst, at); err != nil {
						b.Fatal(err)
					}
				}
				v.Close()
			}
		})
	}
}

// A write of 4 KiB: with no view open, and with one that keeps the digests of
// what is overwritten, once for each block.
func BenchmarkWriteAt(b *testing.B) {
	p := make([]byte, 4096)
	im := newTestImage(b, newNullSource(benchSize), mustSpec(b, "sha256"), 1<<30)
	checksum(b, im)
	random := func() int64 { return rand.Int64N(benchSize/4096) * 4096 }
	b.Run("no-view", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			write(b, im, p, random())
		}
	})
	checksum(b, im)
	b.Run("view", func(b *testing.B) {
		v := openView(b, im)
		b.ReportAllocs()
		for b.Loop() {
			write(b, im, p, random())
		}
		v.Close()
	})
	b.Run("open-and-close", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v, err := im.OpenView(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			v.Close()
		}
	})
}
