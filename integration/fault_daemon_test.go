package integration

import (
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A mount whose daemon was killed answers ENOTCONN. It is cleared by the next
// mount at the same place, and by umount; what was written through it is in
// the file.
func TestDaemon_killed(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		busy bool // a process has a file of the dead mount open
	}{
		{"idle", false},
		{"busy", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			data := random(50, ioSize)
			d := writableDisk(t, data)
			f := d.open(os.O_RDWR)
			if _, err := f.WriteAt([]byte("written before the end"), 4000); err != nil {
				t.Fatal(err)
			}
			copy(data[4000:], "written before the end")
			if !row.busy {
				f.Close()
			}
			d.kill()
			_, err := readAll(d.path("disk", "checksum"))
			wantErrno(t, "read of a dead mount", err, unix.ENOTCONN)
			if row.busy {
				_, err := f.WriteAt([]byte("x"), 0)
				wantErrno(t, "write to a dead mount", err, unix.ENOTCONN)
			}

			// Once by a mount at the same place, once by umount.
			again := &diskMount{mountWith(t, mountOptions{point: d.dir}, "--writable", "disk="+d.backing), d.backing, d.bs}
			again.expect("cleared a mount whose daemon is gone")
			sameBytes(t, "backing file", []byte(readFile(t, d.backing)), data)
			again.check("mounted again")
			again.kill()
			if r := run(t, program, "umount", d.dir); r.Status != 0 || r.Stderr != "" {
				t.Errorf("umount of a dead mount: %+v", r)
			}
			if left := mountsBelow(d.dir); len(left) > 0 {
				t.Errorf("still mounted: %q", left)
			}
			third := &diskMount{mountWith(t, mountOptions{point: d.dir}, "disk="+d.backing), d.backing, d.bs}
			third.check("mounted once more")
		})
	}
}

// The first signal ends a mount that nobody uses.
func TestDaemon_terminated(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		d := writableDisk(t, random(51, ioSize))
		d.signal(s)
		d.waitEnd()
		if left := mountsBelow(d.dir); len(left) > 0 || d.status != 0 {
			t.Errorf("%v: status %d, mounted: %q", s, d.status, left)
		}
	}
}

// A mount in use is detached by the first signal: nobody finds it any more, and
// who uses it goes on until the last file is closed.
func TestDaemon_terminated_while_busy(t *testing.T) {
	t.Parallel()
	data := random(52, ioSize)
	d := writableDisk(t, data)
	f := d.open(os.O_RDWR)
	view, err := os.Open(d.path("disk", "digests.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	before := newOracle(data)
	d.signal(syscall.SIGTERM)
	awaitUnmounted(t, d)
	if entries, err := os.ReadDir(d.dir); err != nil || len(entries) > 0 {
		t.Errorf("the mount point has %v, %v", entries, err)
	}

	p := random(53, 3*blockSize)
	if _, err := f.WriteAt(p, 1000); err != nil {
		t.Fatal(err)
	}
	copy(data[1000:], p)
	wantErrno(t, "fsync", f.Sync(), 0)
	wantErrno(t, "punch", fallocate(f, punch|keepSize, 9*blockSize, 5000), 0)
	clear(data[9*blockSize : 9*blockSize+5000])
	got := make([]byte, ioSize)
	if _, err := f.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	sameBytes(t, "image", got, data)
	digests := make([]byte, len(before.blocks))
	if _, err := view.ReadAt(digests, 0); err != nil {
		t.Fatal(err)
	}
	same(t, "digests.bin", string(digests), before.bin())
	view.Close()
	select {
	case <-d.ended:
		t.Error("the daemon has ended although a file is open")
	case <-time.After(100 * time.Millisecond):
	}
	f.Close()
	d.waitEnd()
	if d.status != 0 {
		t.Errorf("status %d, want 0", d.status)
	}
	d.gone = true
	sameBytes(t, "backing file", []byte(readFile(t, d.backing)), data)
}

// awaitUnmounted returns when nothing is mounted at the mount point.
func awaitUnmounted(t testing.TB, d *diskMount) {
	t.Helper()
	for range 3000 {
		if len(mountsBelow(d.dir)) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s is still mounted", d.dir)
}

// The second signal ends a daemon that is in use.
func TestDaemon_terminated_twice(t *testing.T) {
	t.Parallel()
	d := writableDisk(t, random(54, ioSize))
	f := d.open(os.O_RDWR)
	d.signal(syscall.SIGTERM)
	awaitUnmounted(t, d)
	d.signal(syscall.SIGTERM)
	d.expect("level=WARN msg=.*second signal")
	d.killed = true // its status is not 0
	d.waitEnd()
	if d.status != 1 {
		t.Errorf("status %d, want 1", d.status)
	}
	_, err := f.ReadAt(make([]byte, 1), 0)
	wantErrno(t, "read after the end", err, unix.ENOTCONN)
}
