//go:build !amd64

package sha256x4

// hasSHA reports whether the CPU has all instructions of the assembly: there
// is none for this one.
func hasSHA() bool { return false }

func blocks4(*[4][8]uint32, *[4]*byte, int) { panic("sha256x4: no assembly for this CPU") }
func blocks2(*[2][8]uint32, *[2]*byte, int) { panic("sha256x4: no assembly for this CPU") }
