package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// attachLoop makes a loop device of a file, with further options of losetup,
// and returns its path. It is detached with the test at the latest.
func attachLoop(t testing.TB, file string, options ...string) (device string, detach func()) {
	t.Helper()
	needRoot(t)
	need(t, "losetup")
	argv := append([]string{"losetup", "--find", "--show"}, options...)
	var r result
	for range 50 {
		// Another process may take the free device first.
		if r = run(t, append(argv, file)...); r.Status == 0 || !strings.Contains(r.Stderr, "busy") {
			break
		}
	}
	if r.Status != 0 {
		t.Fatalf("losetup: %+v", r)
	}
	device = strings.TrimSpace(r.Stdout)
	done := false
	detach = func() {
		if !done {
			done = true
			output(t, "losetup", "--detach", device)
			awaitDetached(t, device)
		}
	}
	t.Cleanup(detach)
	return device, detach
}

// awaitDetached waits for the end of a loop device, which comes with its last
// user: a scan for partitions, perhaps.
func awaitDetached(t testing.TB, device string) {
	t.Helper()
	for range 500 {
		if r := run(t, "losetup", device); r.Status != 0 {
			return
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 10e6}, nil)
	}
	t.Errorf("%s is not detached", device)
}

// mountDevice mounts a file system, and unmounts it with the test at the latest.
func mountDevice(t testing.TB, options, device string) (dir string, unmount func()) {
	t.Helper()
	dir = filepath.Join(scratch(t), "fs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	output(t, "mount", "-o", options, device, dir)
	done := false
	unmount = func() {
		if !done {
			done = true
			output(t, "umount", dir)
		}
	}
	t.Cleanup(unmount)
	return dir, unmount
}

// A loop device with ext4 on it works on the image, and every digest is right
// after each step.
func TestLoop_ext4(t *testing.T) {
	t.Parallel()
	needRoot(t)
	need(t, "losetup", "mkfs.ext4", "e2fsck", "mount", "fstrim")
	for _, row := range []struct{ name, direct string }{
		{"buffered", "--direct-io=off"},
		{"direct", "--direct-io=on"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			const size = 24 * mib
			path := filepath.Join(scratch(t), "backing.img")
			writeSparse(t, path, size, piece{5 * mib, random(16, mib)}) // of another life
			d := mountDisk(t, path, "--writable")
			device, detach := attachLoop(t, d.image(), row.direct)
			output(t, "mkfs.ext4", "-q", device)
			d.checkHere("mkfs")

			dir, unmount := mountDevice(t, "discard", device)
			content := make(map[string]string)
			for i, length := range []int64{0, 1, 4096, 100001, mib, 4 * mib} {
				name := filepath.Join(dir, strings.Repeat("f", i+1))
				content[name] = string(random(uint64(100+i), length))
				if err := os.WriteFile(name, []byte(content[name]), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			output(t, "sync", "--file-system", dir)
			d.checkHere("copy")
			f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString("by the file's own fsync"); err != nil {
				t.Fatal(err)
			}
			wantErrno(t, "fsync", f.Sync(), 0)
			f.Close()
			content[f.Name()] = "by the file's own fsync"
			d.checkHere("fsync")
			big := filepath.Join(dir, "ffffff")
			if err := os.Remove(big); err != nil {
				t.Fatal(err)
			}
			delete(content, big)
			output(t, "sync", "--file-system", dir)
			output(t, "fstrim", dir)
			d.checkHere("fstrim")
			for name, want := range content {
				same(t, name, readFile(t, name), want)
			}
			unmount()
			d.checkHere("umount")
			if r := run(t, "e2fsck", "-fn", device); r.Status != 0 {
				t.Errorf("e2fsck of the device: %+v", r)
			}
			detach()
			d.check("detached")
			if r := run(t, "e2fsck", "-fn", d.backing); r.Status != 0 {
				t.Errorf("e2fsck of the backing file: %+v", r)
			}
			if i := d.info("disk"); i.Blocks.Zero == 0 || i.Blocks.Failed > 0 {
				t.Errorf("after fstrim the blocks are %+v", i.Blocks)
			}
		})
	}
}
