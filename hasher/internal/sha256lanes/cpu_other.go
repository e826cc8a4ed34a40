//go:build !amd64

package sha256lanes

// There is no assembly for this CPU.

func hasSHA() bool { return false }

func hasAVX512() bool { return false }

const noAssembly = "sha256lanes: no assembly for this CPU"

func blocks2(*[2][8]uint32, *[2]*byte, int)    { panic(noAssembly) }
func blocks16(*[8][16]uint32, *[16]*byte, int) { panic(noAssembly) }
