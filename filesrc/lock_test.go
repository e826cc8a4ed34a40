package filesrc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// lockAndWait is the other program of the tests below: it locks as its
// specification "COMMAND TYPE START LENGTH PATH" says, until its input ends.
func lockAndWait(spec string) {
	var cmd, start, length int
	var typ int16
	var path string
	var f *os.File
	_, err := fmt.Sscanf(spec, "%d %d %d %d %s", &cmd, &typ, &start, &length, &path)
	if err == nil {
		if f, err = os.OpenFile(path, os.O_RDWR, 0); err == nil {
			lk := unix.Flock_t{Type: typ, Start: int64(start), Len: int64(length)}
			err = unix.FcntlFlock(f.Fd(), cmd, &lk)
		}
	}
	fmt.Println(err)
	io.Copy(io.Discard, os.Stdin)
	f.Close() // not collected, and unlocked, any earlier
}

// lockElsewhere returns the first line of another program's answer, which
// holds its lock until the test ends.
func lockElsewhere(t *testing.T, cmd int, typ int16, start, length int, path string) (answer string, pid int) {
	t.Helper()
	exe, err := os.Executable()
	check(t, err)
	c := exec.Command(exe)
	// The race detector sleeps for a second at exit unless told not to.
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", fmt.Sprintf("FILESRC_TEST_LOCK=%d %d %d %d %s", cmd, typ, start, length, path))
	in, out := pipes(t, c)
	t.Cleanup(func() { in.Close(); c.Wait() })
	answer, err = bufio.NewReader(out).ReadString('\n')
	check(t, err)
	return strings.TrimSpace(answer), c.Process.Pid
}

func pipes(t *testing.T, c *exec.Cmd) (io.WriteCloser, io.Reader) {
	t.Helper()
	in, err := c.StdinPipe()
	check(t, err)
	out, err := c.StdoutPipe()
	check(t, err)
	check(t, c.Start())
	return in, out
}

func image(t *testing.T) string {
	path := writeFile(t, filepath.Join(t.TempDir(), "image.raw"), []byte("x"))
	check(t, os.Truncate(path, 1<<20))
	return path
}

func TestLock_otherPrograms(t *testing.T) {
	for _, tc := range []struct {
		name          string
		cmd           int
		typ           int16
		start, length int
	}{
		{"posix, whole, exclusive", unix.F_SETLK, unix.F_WRLCK, 0, 0},
		{"posix, whole, shared", unix.F_SETLK, unix.F_RDLCK, 0, 0},
		{"posix, first byte, exclusive", unix.F_SETLK, unix.F_WRLCK, 0, 1},
		{"posix, first byte, shared", unix.F_SETLK, unix.F_RDLCK, 0, 1},
		{"posix, beyond qemu's bytes", unix.F_SETLK, unix.F_WRLCK, 4096, 10},
		{"ofd, whole, exclusive", unix.F_OFD_SETLK, unix.F_WRLCK, 0, 0},
		{"ofd, whole, shared", unix.F_OFD_SETLK, unix.F_RDLCK, 0, 0},
		{"ofd, a qemu that writes", unix.F_OFD_SETLK, unix.F_RDLCK, 101, 1},
		{"ofd, a qemu that resizes", unix.F_OFD_SETLK, unix.F_RDLCK, 103, 1},
		{"ofd, a qemu that wants no writer", unix.F_OFD_SETLK, unix.F_RDLCK, 201, 1},
		{"ofd, a qemu that wants no reader", unix.F_OFD_SETLK, unix.F_RDLCK, 200, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Run("first", func(t *testing.T) {
				path := image(t)
				answer, pid := lockElsewhere(t, tc.cmd, tc.typ, tc.start, tc.length, path)
				if answer != "<nil>" {
					t.Fatal(answer)
				}
				_, err := Open(path, Options{Writable: true})
				exe, _ := os.Executable()
				comm := filepath.Base(exe)
				want := fmt.Sprintf("open %s for writing: in use by %q (process %d): "+
					"end that first, or serve it read-only", path, comm[:min(len(comm), 15)], pid)
				if !errors.Is(err, ErrInUse) || err.Error() != want {
					t.Errorf("got  %v\nwant %s", err, want)
				}
				open(t, path, false)
			})
			t.Run("second", func(t *testing.T) {
				if tc.length == 1 && tc.start >= 100 {
					t.Skip("qemu looks at other bytes than it locks")
				}
				path := image(t)
				f := open(t, path, true)
				if answer, _ := lockElsewhere(t, tc.cmd, tc.typ, tc.start, tc.length, path); answer == "<nil>" {
					t.Error("locked, though the image is served writable")
				}
				check(t, f.Close())
				if answer, _ := lockElsewhere(t, tc.cmd, tc.typ, tc.start, tc.length, path); answer != "<nil>" {
					t.Error("not locked after Close:", answer)
				}
			})
		})
	}
}

func TestLock_compatible(t *testing.T) {
	path := image(t)
	// What qemu-img --force-share holds while it reads.
	if answer, _ := lockElsewhere(t, unix.F_OFD_SETLK, unix.F_RDLCK, 100, 1, path); answer != "<nil>" {
		t.Fatal(answer)
	}
	open(t, path, true)
}

// TestLock_twice also shows that the holder is found where a lock's device
// number is not that of stat(2), as on Btrfs.
func TestLock_twice(t *testing.T) {
	eachFS(t, func(t *testing.T, fs, dir string) {
		path := writeFile(t, filepath.Join(dir, "image"), []byte("x"))
		open(t, path, false)
		f := open(t, path, true)
		open(t, path, false)
		hard := path + "-hard"
		check(t, os.Link(path, hard))
		_, err := Open(hard, Options{Writable: true})
		want := "open " + hard + " for writing: in use by this hashfs itself (is it given twice?): " +
			"end that first, or serve it read-only"
		if !errors.Is(err, ErrInUse) || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		check(t, f.Close())
		open(t, path, true)
	})
}

// TestLock_qemu has real tools come second, and first.
func TestLock_qemu(t *testing.T) {
	tool(t, "qemu-io")
	tool(t, "qemu-img")
	for _, tc := range []struct {
		name    string
		args    []string
		refused bool
	}{
		{"qemu-img info", []string{"qemu-img", "info", "-f", "raw"}, false},
		{"qemu-img info -U", []string{"qemu-img", "info", "-U", "-f", "raw"}, false},
		{"qemu-img convert", []string{"qemu-img", "convert", "-f", "raw", "-O", "raw", "IMAGE", "IMAGE-copy"}, true},
		{"qemu-img convert -U", []string{"qemu-img", "convert", "-U", "-f", "raw", "-O", "raw", "IMAGE", "IMAGE-copy"}, false},
		{"qemu-img bench", []string{"qemu-img", "bench", "-w", "-c", "1", "-f", "raw"}, true},
		{"qemu-img resize", []string{"qemu-img", "resize", "-f", "raw", "IMAGE", "+1M"}, true},
		{"qemu-io read", []string{"qemu-io", "-r", "-f", "raw", "-c", "read 0 512"}, false},
		{"qemu-io write", []string{"qemu-io", "-f", "raw", "-c", "write 0 512"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := image(t)
			f := open(t, path, true)
			out, err := qemu(tc.args, path).CombinedOutput()
			refused := err != nil && strings.Contains(string(out), "lock")
			if refused != tc.refused {
				t.Errorf("refused: %v, %v\n%s", refused, err, out)
			}
			check(t, f.Close())
			if out, err := qemu(tc.args, path).CombinedOutput(); err != nil {
				t.Errorf("after Close: %v\n%s", err, out)
			}
		})
	}
	for _, tc := range []struct {
		name    string
		args    []string
		refused bool
	}{
		{"writing", []string{"qemu-io", "-f", "raw"}, true},
		{"reading", []string{"qemu-io", "-r", "-f", "raw"}, false},
		{"reading, force share", []string{"qemu-io", "-r", "-U", "-f", "raw"}, false},
	} {
		t.Run("qemu-io first, "+tc.name, func(t *testing.T) {
			path := image(t)
			c := qemu(tc.args, path)
			in, out := pipes(t, c)
			defer func() { in.Close(); c.Wait() }()
			fmt.Fprintln(in, "length") // answered once the image is open
			for r := bufio.NewReader(out); ; {
				line, err := r.ReadString('\n')
				check(t, err)
				if strings.Contains(line, "MiB") {
					break
				}
			}
			f, err := Open(path, Options{Writable: true})
			if err == nil {
				f.Close()
			}
			if errors.Is(err, ErrInUse) != tc.refused {
				t.Errorf("got %v", err)
			}
			want := fmt.Sprintf("in use by \"qemu-io\" (process %d)", c.Process.Pid)
			if tc.refused && !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

// qemu puts the image's path in place of IMAGE, or at the end.
func qemu(args []string, path string) *exec.Cmd {
	line := strings.Join(args[1:], "\x00")
	if !strings.Contains(line, "IMAGE") {
		line += "\x00IMAGE"
	}
	return exec.Command(args[0], strings.Split(strings.ReplaceAll(line, "IMAGE", path), "\x00")...)
}
