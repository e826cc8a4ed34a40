package fs

import (
	"fmt"
	"testing"
)

func TestParseBlockName(t *testing.T) {
	const size, bs = 3*65536 + 1, 65536
	for _, c := range []struct {
		why, name string
		off       int64
		ok        bool
	}{
		{"the first", "0000000000000000", 0, true},
		{"the short last", "0000000000030000", 3 * bs, true},
		{"none beyond the end", "0000000000040000", 0, false},
		{"no multiple", "0000000000008000", 0, false},
		{"upper case", "000000000001000A", 0, false},
		{"short", "000000000010000", 0, false},
		{"long", "00000000000010000", 0, false},
		{"a sign", "+000000000010000", 0, false},
		{"an underscore", "0000_00000010000", 0, false},
		{"a prefix", "0x00000000010000", 0, false},
		{"above 2^63", "ffffffffffff0000", 0, false},
		{"empty", "", 0, false},
	} {
		t.Run(c.why, func(t *testing.T) {
			off, ok := parseBlockName(c.name, size, bs)
			if ok != c.ok || ok && off != c.off {
				t.Errorf("parseBlockName(%q) = %d, %v, want %d, %v", c.name, off, ok, c.off, c.ok)
			}
		})
	}
}

func FuzzParseBlockName(f *testing.F) {
	f.Add("0000000000010000", int64(1<<20), uint8(16))
	f.Add("7fffffffffffffff", int64(1<<62), uint8(2))
	f.Add("00000000000G0000", int64(0), uint8(26))
	f.Fuzz(func(t *testing.T, name string, size int64, shift uint8) {
		blockSize := int64(1) << (2 + shift%25)
		off, ok := parseBlockName(name, size, blockSize)
		if !ok {
			return
		}
		if off < 0 || off >= size || off%blockSize != 0 {
			t.Errorf("%q is at %d in an image of %d bytes in blocks of %d", name, off, size, blockSize)
		}
		if again := fmt.Sprintf("%016x", off); again != name {
			t.Errorf("%q is also %q", name, again)
		}
		if again := string(appendBlockName(nil, off)); again != name {
			t.Errorf("%q is written %q", name, again)
		}
	})
}
