package filesrc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Root tries more file systems than it finds; they are mounted at first use
// and unmounted at the end.
var mounted struct {
	once sync.Once
	dir  string
	fs   []string
	err  error
}

func TestMain(m *testing.M) {
	if spec := os.Getenv("FILESRC_TEST_LOCK"); spec != "" {
		lockAndWait(spec)
		return
	}
	code := m.Run()
	unmounted := true
	for _, fs := range mounted.fs {
		if out, err := exec.Command("umount", filepath.Join(mounted.dir, fs)).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "umount %s: %v: %s\n", fs, err, out)
			code, unmounted = 1, false
		}
	}
	if mounted.dir != "" && unmounted {
		os.RemoveAll(mounted.dir)
	}
	os.Exit(code)
}

var moreFS = []string{"xfs", "btrfs", "ramfs", "overlay"}

// eachFS runs a test in a directory of each file system that there is.
func eachFS(t *testing.T, test func(t *testing.T, fs, dir string)) {
	t.Run("disk", func(t *testing.T) { test(t, "disk", t.TempDir()) })
	t.Run("tmpfs", func(t *testing.T) {
		dir, err := os.MkdirTemp("/dev/shm", "filesrc-test-")
		if err != nil {
			t.Skip("no tmpfs on /dev/shm:", err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		test(t, "tmpfs", dir)
	})
	for _, fs := range moreFS {
		t.Run(fs, func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("mounting needs root")
			}
			tool(t, "mkfs.xfs")
			tool(t, "mkfs.btrfs")
			mounted.once.Do(mountAll)
			if mounted.err != nil {
				t.Fatal(mounted.err)
			}
			dir, err := os.MkdirTemp(filepath.Join(mounted.dir, fs), "")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			test(t, fs, dir)
		})
	}
}

func mountAll() {
	dir, err := os.MkdirTemp("", "filesrc-test-")
	if err != nil {
		mounted.err = err
		return
	}
	mounted.dir = dir
	for _, fs := range moreFS {
		at, dev := filepath.Join(dir, fs), filepath.Join(dir, fs+".dev")
		script := `set -e; mkdir "$1"; `
		switch fs {
		case "ramfs":
			script += `mount -t ramfs ramfs "$1"`
		case "overlay":
			script += `mkdir "$2" "$2/lower" "$2/upper" "$2/work"
				mount -t overlay -o "lowerdir=$2/lower,upperdir=$2/upper,workdir=$2/work" overlay "$1"`
		default:
			script += `truncate -s 512M "$2"; mkfs.` + fs + ` "$2"; mount -o loop "$2" "$1"`
		}
		out, err := exec.Command("sh", "-c", script, "sh", at, dev).CombinedOutput()
		if err != nil {
			mounted.err = fmt.Errorf("mount %s: %w: %s", fs, err, out)
			return
		}
		mounted.fs = append(mounted.fs, fs)
	}
}

// tool skips the test when a program is missing, and fails it in CI.
func tool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func writeFile(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string, writable bool) *File {
	t.Helper()
	f, err := Open(path, Options{Writable: writable})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // closed already in some tests
	return f
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
