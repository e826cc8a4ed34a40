package integration

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// base is the directory below which all is made. Any user may enter it.
var base string

// program is the path of the program under test.
var program string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	// Messages of the clients are compared, and times are printed.
	os.Setenv("LC_ALL", "C.UTF-8")
	os.Setenv("TZ", "UTC")
	// A readiness socket that happens to be ours is not the program's.
	os.Unsetenv("NOTIFY_SOCKET")
	// The race detector's own wait at exit only costs time.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	code := m.Run()
	for _, what := range leftovers(base) {
		fmt.Fprintln(os.Stderr, "integration: left behind:", what)
		code = max(code, 1)
	}
	sweep()
	return code
}

// sweep ends and removes all that is left.
func sweep() {
	for _, pid := range processes("") {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	points := mountsBelow(base)
	for _, point := range slices.Backward(points) {
		unix.Unmount(point, unix.MNT_DETACH)
	}
	if len(mountsBelow(base)) == 0 {
		os.RemoveAll(base)
	}
}

// prepare makes the base directory and builds the program in it.
func prepare() (err error) {
	if base, err = os.MkdirTemp("", "hashfs-it-"); err != nil {
		return err
	}
	// The kernel names mounts by their real paths.
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return err
	}
	if err := os.Chmod(base, 0o755); err != nil {
		return err
	}
	program = filepath.Join(base, "hashfs")
	args := []string{"build", "-o", program}
	if raceEnabled {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "../cmd/hashfs")...)
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return noteSources()
}

// noteSources looks at all sources of the program: go test remembers a result
// for as long as the files that the test looked at are the same.
func noteSources() error {
	return filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && strings.HasSuffix(path, ".go") {
			_, err = os.Stat(path)
		}
		return err
	})
}

// leftovers tells of mounts below dir and of processes of the program.
func leftovers(dir string) []string {
	var found []string
	for _, point := range mountsBelow(dir) {
		found = append(found, "the mount "+point)
	}
	for _, pid := range processes("") {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		found = append(found, fmt.Sprintf("process %d: %s", pid, strings.ReplaceAll(string(line), "\x00", " ")))
	}
	return found
}

// mountsBelow returns the mount points at or below dir, the innermost last.
func mountsBelow(dir string) []string {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var points []string
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			point := unescapeMount(fields[4])
			if point == dir || strings.HasPrefix(point, dir+"/") {
				points = append(points, point)
			}
		}
	}
	return points
}

// unescapeMount undoes the \040 of a mount table.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// processes returns the processes that run the program, those with the argument
// arg, or all if that is empty.
func processes(arg string) []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A zombie has no exe any more.
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != program {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && (arg == "" || strings.Contains("\x00"+string(line), "\x00"+arg+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// scratch returns a new directory that any user may enter, which is removed
// when the test has ended.
func scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(base, "t-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Never into something that is still mounted.
		if left := mountsBelow(dir); len(left) > 0 {
			t.Errorf("still mounted: %q", left)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
