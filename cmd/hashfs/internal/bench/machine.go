package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// A fact is a line about where it was measured.
type fact struct{ Name, Value string }

// describe returns the facts that numbers mean nothing without.
func describe(ctx context.Context, l *lab) []fact {
	cpu, flags := processor()
	goVersion, modules, err := l.libraries()
	if err != nil {
		goVersion = err.Error()
	}
	facts := []fact{
		{"date", time.Now().UTC().Format(time.DateOnly)},
		{"processor", cpu},
		{"topology", readTopology("/sys/devices/system/cpu").String()},
		{"instructions", strings.Join(flags, " ")},
		{"memory", memory()},
		{"kernel", kernel()},
		{"file system of the data", fileSystem(l.data.dir)},
		{"load before", loadAverage()},
		{"runs of each side", l.howOften()},
		{"Go", goVersion},
	}
	for _, m := range modules {
		facts = append(facts, fact{"module", m})
	}
	for _, v := range l.versions(ctx) {
		facts = append(facts, fact{"program", v})
	}
	return facts
}

// interesting are the features that decide how fast digests are.
var interesting = []string{
	"sha_ni", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512vbmi", "vaes", // x86
	"sha2", "sha3", "sha512", "asimd", "sve", // arm64
	"hypervisor", // a virtual machine: its processors may be anything
}

// processor returns the model, and which interesting features it has.
func processor() (model string, flags []string) {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown", nil
	}
	return parseProcessor(string(text))
}

func parseProcessor(cpuinfo string) (model string, flags []string) {
	model = "unknown"
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			model = strings.TrimSpace(value)
		case "flags", "Features":
			all := strings.Fields(value)
			flags = flags[:0]
			for _, f := range interesting {
				if slices.Contains(all, f) {
					flags = append(flags, f)
				}
			}
		}
	}
	return model, flags
}

// A topology says what processors share: two threads of one core are far less
// than two cores.
type topology struct{ sockets, cores, threads int }

func (t topology) String() string {
	if t.threads == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%d processors: %d sockets, %d cores, %.3g threads a core",
		t.threads, t.sockets, t.cores, float64(t.threads)/float64(t.cores))
}

// readTopology reads what Linux tells below /sys/devices/system/cpu.
func readTopology(dir string) topology {
	sockets, cores := map[string]bool{}, map[string]bool{}
	found, _ := filepath.Glob(filepath.Join(dir, "cpu[0-9]*/topology"))
	t := topology{}
	for _, cpu := range found {
		socket, err := os.ReadFile(filepath.Join(cpu, "physical_package_id"))
		if err != nil {
			continue
		}
		core, err := os.ReadFile(filepath.Join(cpu, "core_id"))
		if err != nil {
			continue
		}
		sockets[string(socket)] = true
		cores[string(socket)+string(core)] = true
		t.threads++
	}
	t.sockets, t.cores = len(sockets), len(cores)
	return t
}

func memory() string {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.3g GiB", float64(info.Totalram)*float64(info.Unit)/(1<<30))
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " +
		unix.ByteSliceToString(u.Machine[:])
}

// fileSystem returns the type and the options of that which holds dir.
func fileSystem(dir string) string {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "unknown"
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil || len(mounts) == 0 {
		return "unknown"
	}
	m := slices.MaxFunc(mounts, func(a, b *mountinfo.Info) int { return len(a.Mountpoint) - len(b.Mountpoint) })
	return m.FSType + " (" + m.Options + ")"
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
