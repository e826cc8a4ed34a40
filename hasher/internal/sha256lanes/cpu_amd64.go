package sha256lanes

import "github.com/klauspost/cpuid/v2" // golang.org/x/sys/cpu does not tell SHA

// hasSHA reports whether the CPU has the instructions of blocks2.
func hasSHA() bool { return cpuid.CPU.Supports(cpuid.SHA, cpuid.AVX) }

// hasAVX512 reports whether the CPU has the instructions of blocks16, and whether
// the system saves the registers.
func hasAVX512() bool { return cpuid.CPU.Supports(cpuid.AVX512F, cpuid.AVX512BW) }
