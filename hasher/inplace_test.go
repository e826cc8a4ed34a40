package hasher

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFaultable: where a load of the assembly fails, the goroutine's stack can be
// scanned and can grow, and it goes on.
func TestFaultable(t *testing.T) {
	const size = 1 << 20
	path := filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(path, bytes.Repeat([]byte("data"), size/4), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range []string{"sha256", "sha224", "blake3"} {
		for _, blockSize := range []int{4, 64, 512, 1024, 4096, 65536, 262144, 1 << 20} {
			h := mustSpec(t, name).Algorithm.NewBlockHasher(blockSize)
			for _, n := range []int{size, 16 * blockSize, 9 * blockSize, 2 * blockSize, blockSize} {
				n := h.faultable(min(n, size))
				if n%blockSize != 0 {
					t.Fatalf("%s/%d: %d bytes", name, blockSize, n)
				}
				for _, there := range []int{0, n / 2, n - 1} {
					if n > 0 {
						faultAt(t, f, h, size, n, there)
					}
				}
			}
		}
	}
}

// faultAt has n bytes hashed of which only those before the page of there exist.
func faultAt(t *testing.T, f *os.File, h *BlockHasher, size, n, there int) {
	t.Helper()
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	p, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(p)
	if err := f.Truncate(int64(there &^ (os.Getpagesize() - 1))); err != nil {
		t.Fatal(err)
	}
	done := make(chan any)
	go func() { // with a stack that is small yet
		defer func() {
			cause := recover()
			done <- cause
		}()
		defer deep(100)
		defer runtime.GC()
		debug.SetPanicOnFault(true)
		h.AppendSums(nil, p[:n])
	}()
	if cause, ok := (<-done).(interface{ Addr() uintptr }); !ok {
		t.Errorf("%s/%d: %d bytes of %d: %v", h.algorithm.name, h.blockSize, there, n, cause)
	}
}

// deep makes the stack grow.
func deep(n int) byte {
	var frame [1024]byte
	if n > 0 {
		frame[n] = deep(n - 1)
	}
	return frame[n/2]
}

// TestInPlace: data is looked at in place where that can be had, whole pieces of
// it, also with zeros between; what is left at in its midst is read.
func TestInPlace(t *testing.T) {
	for _, name := range []string{"sha256/64k", "sha224/4k", "sha256/256k", "sha256/1m", "blake3/64k", "blake3/512", "blake3/512k", "blake3/1m", "blake3/2m", "md5/64k", "md5/1m"} {
		spec := mustSpec(t, name)
		src := newMemSource(8<<20 + 5)
		src.unholeLocked(0, src.Size())
		for i := range src.data {
			if i>>16%7 != 0 {
				src.data[i] = byte(i * 31 >> 3)
			}
		}
		maps := &inPlace{memSource: src}
		im := newTestImage(t, cachedSource{src}, spec, 1<<20)
		im.maps = maps
		sum, err := openView(t, im).Checksum(t.Context())
		if want := plainChecksum(spec, src.data); err != nil || !bytes.Equal(sum, want) {
			t.Errorf("%s: checksum %x, want %x (%v)", name, sum, want, err)
		}
		h := spec.Algorithm.NewBlockHasher(spec.BlockSize)
		short := spec.BlockSize <= int(im.pieceBytes)
		if looks := maps.looks.Load(); (looks > 0) != (short || h.faultable(mappedBytes) == mappedBytes) {
			t.Errorf("%s: %d looks", name, looks)
		}
	}
}

// TestInPlace_resident: less is looked at in place while memory is taken for reads.
func TestInPlace_resident(t *testing.T) {
	spec := mustSpec(t, "blake3/64k")
	src := newMemSource(32 << 20)
	src.unholeLocked(0, src.Size())
	for _, large := range []bool{false, true} {
		maps := &inPlace{memSource: src}
		im := newTestImage(t, cachedSource{src}, spec, 1<<20)
		im.maps = maps
		want := int64(mappedBytes)
		if large {
			im.pool.takeBuffer(largeBytes)
			want /= 2
		}
		if _, err := openView(t, im).Checksum(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := maps.longest.Load(); got != want {
			t.Errorf("large buffers %t: %d bytes at a time in place, want %d", large, got, want)
		}
	}
}
