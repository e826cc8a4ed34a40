//go:build !amd64

package blake3x16

// hasAVX512 reports whether the CPU has all instructions of the assembly: there
// is none for this one.
func hasAVX512() bool { return false }

func hash32(*[1024]byte, *[32]*byte, *[32]uint32, int, uint32, uint32, uint32, uint32) {
	panic("blake3x16: no assembly for this CPU")
}
