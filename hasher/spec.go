package hasher

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limits of a block size in bytes, both inclusive, and the size of a spec that
// names none. nbdcopy's limits are wider: it takes 1 and 2, and more than 64 MiB,
// but here a block is hashed from one buffer.
const (
	MinBlockSize     = 4
	MaxBlockSize     = 64 << 20
	DefaultBlockSize = 64 << 10
)

// A Spec says how an image is hashed. It is comparable with ==.
type Spec struct {
	Algorithm *Algorithm
	BlockSize int // bytes, a power of two within the limits above
}

// ParseSpec parses DIGEST[/SIZE] as nbdcopy's option --blkhash is written:
// "sha256", "md5/4", "sha512/512k". The digest is a name that LookupAlgorithm
// knows, in any case. The size is a decimal number of bytes; a suffix in either
// case multiplies it: b by 1, s by 512, k by 1024, m by 1024k and so on up to e.
func ParseSpec(s string) (Spec, error) {
	name, size, sized := strings.Cut(s, "/")
	a, err := LookupAlgorithm(strings.ToLower(name))
	if err != nil {
		return Spec{}, fmt.Errorf("digest spec %q: %w", s, err)
	}
	spec := Spec{Algorithm: a, BlockSize: DefaultBlockSize}
	if sized {
		if spec.BlockSize, err = parseBlockSize(size); err != nil {
			return Spec{}, fmt.Errorf("digest spec %q: %w", s, err)
		}
	}
	return spec, nil
}

// String returns the spec with its size in plain bytes, as in "sha256/65536".
// ParseSpec gives the spec back.
func (s Spec) String() string {
	return s.Algorithm.Name() + "/" + strconv.Itoa(s.BlockSize)
}

// pieceBytes returns how many bytes a worker reads and hashes at a time: more than
// usual where several blocks together take less time.
func (s Spec) pieceBytes() int64 {
	n := min(s.wholeBytes(), waitedBytes)
	if n < 2*int64(s.BlockSize) {
		return pieceBytes
	}
	return max(pieceBytes, n)
}

// wholeBytes returns how many bytes the algorithm needs at a time to be at its
// fastest, or 0 where that does not matter.
func (s Spec) wholeBytes() int64 {
	if s.Algorithm.wholeBytes == nil {
		return 0
	}
	return int64(s.Algorithm.wholeBytes(s.BlockSize))
}

func parseBlockSize(s string) (int, error) {
	n, err := parseSize(s)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && n > MaxBlockSize:
		return 0, fmt.Errorf("block size %s is above the maximum of 64M", s)
	case err != nil:
		return 0, fmt.Errorf("block size %q is not a number of bytes with an optional suffix such as k or M", s)
	case n < MinBlockSize:
		return 0, fmt.Errorf("block size %s is below the minimum of %d bytes", s, MinBlockSize)
	case n&(n-1) != 0:
		return 0, fmt.Errorf("block size %s is not a power of two", s)
	}
	return int(n), nil
}

// parseSize returns the bytes that a size such as "64k" means. The error is
// strconv.ErrRange where there are too many for a uint64.
func parseSize(s string) (uint64, error) {
	digits := strings.TrimRight(s, "bBsSkKmMgGtTpPeE")
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, err
	}
	var unit uint64
	switch suffix := s[len(digits):]; strings.ToLower(suffix) {
	case "", "b":
		unit = 1
	case "s":
		unit = 512
	case "k", "m", "g", "t", "p", "e":
		unit = 1 << (10 * (1 + strings.Index("kmgtpe", strings.ToLower(suffix))))
	default:
		return 0, fmt.Errorf("size suffix %q: %w", suffix, strconv.ErrSyntax)
	}
	if n > (1<<64-1)/unit {
		return 0, strconv.ErrRange
	}
	return n * unit, nil
}
