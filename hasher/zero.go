package hasher

import "bytes"

// zeroLine is the distance in bytes at which IsZero compares its argument with
// itself: a cache line, so that the second load finds what the first brought in.
const zeroLine = 64

var zeros [zeroLine]byte

// IsZero reports whether all of b is zero; the empty slice is. It reads b to
// the end only if it is, since data differs from zero in its first line
// nearly always.
func IsZero(b []byte) bool {
	if len(b) <= zeroLine {
		return bytes.Equal(b, zeros[:len(b)])
	}
	// The first line is zero, and each byte equals the one a line before it:
	// so all are. bytes.Equal is the fastest loop over memory that Go has.
	return bytes.Equal(b[:zeroLine], zeros[:]) &&
		bytes.Equal(b[:len(b)-zeroLine], b[zeroLine:])
}
