package hasher

import (
	"fmt"
	"testing"
)

func TestIsZero_everyByteCounts(t *testing.T) {
	// Unaligned starts, and a byte on either side that must not count.
	buf := make([]byte, 300)
	for start := range 9 {
		for n := range 201 {
			b := buf[start+1 : start+1+n]
			buf[start], buf[start+1+n] = 1, 1
			if !IsZero(b) {
				t.Fatalf("%d zeros at offset %d: not zero", n, start+1)
			}
			for i := range b {
				b[i] = 1 << (i % 8)
				if IsZero(b) {
					t.Fatalf("byte %d of %d at offset %d is set: zero", i, n, start+1)
				}
				b[i] = 0
			}
			buf[start], buf[start+1+n] = 0, 0
		}
	}
}

func TestIsZero_largeBlock(t *testing.T) {
	for _, n := range []int{4096, 65535, 65536, 65537, 1 << 20} {
		b := make([]byte, n)
		if !IsZero(b) {
			t.Errorf("%d zeros: not zero", n)
		}
		for _, i := range []int{0, 63, 64, 65, n / 2, n - 65, n - 64, n - 1} {
			b[i] = 0x80
			if IsZero(b) {
				t.Errorf("byte %d of %d is set: zero", i, n)
			}
			b[i] = 0
		}
	}
}

// A period of one line is what the comparison with itself cannot see.
func TestIsZero_repeatedLine(t *testing.T) {
	b := make([]byte, 1024)
	for i := range b {
		b[i] = byte(i % zeroLine)
	}
	if IsZero(b) {
		t.Error("a repeated line of data is taken for zeros")
	}
}

func TestIsZero_allocatesNothing(t *testing.T) {
	b := make([]byte, 65536)
	if n := testing.AllocsPerRun(100, func() { IsZero(b); IsZero(b[:7]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzIsZero(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 65))
	f.Add(append(make([]byte, 127), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		want := true
		for _, c := range b {
			want = want && c == 0
		}
		if got := IsZero(b); got != want {
			t.Errorf("got %v, want %v for %s", got, want, fmt.Sprintf("%x", b))
		}
	})
}
