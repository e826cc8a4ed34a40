package sha256x4

import "github.com/klauspost/cpuid/v2" // golang.org/x/sys/cpu does not tell SHA

// hasSHA reports whether the CPU has all instructions of the assembly.
func hasSHA() bool { return cpuid.CPU.Supports(cpuid.SHA, cpuid.SSSE3) }
