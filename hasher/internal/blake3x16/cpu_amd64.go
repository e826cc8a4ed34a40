package blake3x16

import "github.com/klauspost/cpuid/v2"

// hasAVX512 reports whether the CPU has all instructions of the assembly, and
// whether the system saves the registers.
func hasAVX512() bool { return cpuid.CPU.Supports(cpuid.AVX512F) }
