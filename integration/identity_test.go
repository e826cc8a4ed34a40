package integration

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deviceOf returns the device number of what is mounted.
func deviceOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Dev
}

// TestIdentity_device_number: the kernel gives the number of a mount that is
// gone to the next one, which a daemon that looked for its own by that number
// took for its own, and unmounted.
func TestIdentity_device_number(t *testing.T) {
	needRoot(t)
	image := filepath.Join(scratch(t), "disk.img")
	writeImage(t, image, random(81, blockSize))
	for range 50 {
		first := mount(t, image)
		device := deviceOf(t, first.dir)
		first.signal(syscall.SIGSTOP)
		err := unix.Unmount(first.dir, 0)
		second := mount(t, image)
		same := deviceOf(t, second.dir) == device
		first.signal(syscall.SIGCONT)
		if err != nil {
			t.Fatal(err)
		}
		first.waitEnd()
		if deviceOf(t, second.dir) == deviceOf(t, filepath.Dir(second.dir)) {
			t.Fatal("the daemon of a mount that was gone took another away")
		}
		second.unmount()
		if same {
			return
		}
	}
	t.Error("the number of a mount is not given to the next one any more: this test shows nothing")
}

// TestIdentity_mount_point: a daemon that still serves an open file of a mount
// that was detached is told to end. What is mounted there by now is not its own.
func TestIdentity_mount_point(t *testing.T) {
	needRoot(t)
	image := filepath.Join(scratch(t), "disk.img")
	writeImage(t, image, random(82, blockSize))
	for _, row := range []struct {
		name    string
		signals int
		status  int
	}{
		{"one signal", 1, 0},
		{"two signals", 2, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			first := mount(t, image)
			open, err := os.Open(first.path("disk", "digests"))
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			output(t, program, "umount", "--lazy", first.dir)
			second := mountWith(t, mountOptions{point: first.dir}, image)
			first.signal(syscall.SIGTERM)
			for deadline := time.Now().Add(endTime); !strings.Contains(first.log(), "msg=ending"); {
				if time.Now().After(deadline) {
					t.Fatal("the signal did not arrive")
				}
				time.Sleep(time.Millisecond)
			}
			if row.signals == 2 {
				first.expect("ended by a second signal")
				first.signal(syscall.SIGTERM)
			} else {
				time.Sleep(time.Second) // for what it does upon the signal
				open.Close()
			}
			first.waitEnd()
			if first.status != row.status {
				t.Errorf("exit status %d, want %d", first.status, row.status)
			}
			first.gone, first.killed = true, true
			if len(mountsBelow(second.dir)) != 1 {
				t.Error("the daemon of the detached mount took the new one away")
			}
			second.read("disk", "checksum")
		})
	}
}
