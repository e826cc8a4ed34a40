package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newTmpfs mounts a file system of size bytes.
func newTmpfs(t testing.TB, size int64) string {
	t.Helper()
	needRoot(t)
	dir := filepath.Join(scratch(t), "tmpfs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A write for which the file system of a sparse image has no space is done in
// part, says so, and leaves right digests.
func TestFault_no_space_for_the_image(t *testing.T) {
	t.Parallel()
	path := filepath.Join(newTmpfs(t, 2*mib), "disk.img")
	const size = 8 * mib
	writeSparse(t, path, size, piece{blockSize, random(33, 100)})
	d := mountDisk(t, path, "--writable")
	d.read("disk", "checksum")
	f := d.open(os.O_RDWR)

	// Not by os.File, which would try again with what is left.
	n, err := pwrite(f, random(34, 4*mib), 12345)
	if err != nil || n < int(mib) || n >= 4*int(mib) {
		t.Errorf("write of more than there is space for: %d bytes, %v; want some", n, err)
	}
	d.checkHere("partial write")
	_, err = pwrite(f, []byte("x"), 7*mib)
	wantErrno(t, "write of a byte", err, unix.ENOSPC)
	d.checkHere("no write")
	err = fallocate(f, 0, 0, size)
	wantErrno(t, "allocate all", err, unix.ENOSPC)
	d.checkHere("no allocation")

	err = fallocate(f, punch|keepSize, 0, mib)
	wantErrno(t, "punch", err, 0)
	_, err = f.WriteAt(random(35, blockSize), 7*mib)
	wantErrno(t, "write into space that was given back", err, 0)
	d.check("punched and written")
}

// When the image cannot be flushed nobody knows what is on the disk: who asked
// gets the error, views of before end, and what is read then is what is there.
func TestFault_flush(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.ext4", "mount")
	tmpfs := newTmpfs(t, 8*mib)
	device := filepath.Join(tmpfs, "device")
	writeSparse(t, device, 64*mib)
	output(t, "mkfs.ext4", "-q", "-O", "^has_journal", device)
	loop, _ := attachLoop(t, device, "--direct-io=off")
	dir, _ := mountDevice(t, "noatime", loop)
	path := filepath.Join(dir, "disk.img")
	writeSparse(t, path, 4*mib, piece{0, random(36, 3*blockSize)})
	output(t, "sync", "--file-system", dir)
	d := mountDisk(t, path, "--writable")
	d.read("disk", "checksum")
	view, err := os.Open(d.path("disk", "digests"))
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	if _, err := view.ReadAt(make([]byte, 90), 0); err != nil {
		t.Fatal(err)
	}

	filler := filepath.Join(tmpfs, "filler")
	if err := os.WriteFile(filler, make([]byte, 16*mib), 0o600); err == nil {
		t.Fatal("the file system of the device is not full")
	}
	f := d.open(os.O_RDWR)
	if _, err := f.WriteAt(random(37, 2*mib), mib); err != nil {
		t.Fatal(err) // it is in the page cache only
	}
	wantErrno(t, "fsync", f.Sync(), unix.ENOSPC) // as ext4 says it
	_, err = view.ReadAt(make([]byte, 90), 0)
	wantErrno(t, "a view of before", err, unix.ESTALE)
	d.checkHere("after the failure")
	// A synchronous write is a flush too.
	_, err = pwrite(d.open(os.O_WRONLY|unix.O_DSYNC), random(71, mib/2), 3*mib)
	wantErrno(t, "write by O_DSYNC", err, unix.ENOSPC)
	_, err = unix.Pwritev2(int(f.Fd()), [][]byte{random(72, mib/2)}, 3*mib+mib/2, unix.RWF_DSYNC)
	wantErrno(t, "write by RWF_DSYNC", err, unix.ENOSPC)
	d.checkHere("after more failures")

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(random(38, 2*mib), mib); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, "fsync with space", f.Sync(), 0)
	d.check("flushed")
}

// A log that cannot be written is no reason to stop.
func TestFault_no_space_for_the_log(t *testing.T) {
	t.Parallel()
	full := newTmpfs(t, 64*kib)
	log := filepath.Join(full, "log")
	data := random(39, ioSize)
	path := filepath.Join(scratch(t), "disk.img")
	writeImage(t, path, data)
	d := mountDisk(t, path, "--log-file="+log)
	awaitLog(t, log, "msg=mounted")
	if err := os.WriteFile(filepath.Join(full, "filler"), make([]byte, mib), 0o600); err == nil {
		t.Fatal("the file system of the log is not full")
	}
	for i := range 30 {
		// Each change from outside is a line in the log.
		copy(data, random(uint64(i), 100))
		writeImage(t, path, data)
		same(t, "checksum", d.read("disk", "checksum"), newOracle(data).checksum())
	}
	d.check("after all")
}

// awaitLog returns when there is this text in a log.
func awaitLog(t testing.TB, path, text string) {
	t.Helper()
	for range 3000 {
		if content, _ := readAll(path); strings.Contains(content, text) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s does not come in the log %s", text, path)
}

// A log that takes nothing, a pipe that nobody reads, holds up nobody.
func TestFault_log_that_is_stuck(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	fifo := filepath.Join(dir, "log")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that it can be opened for writing
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := unix.FcntlInt(reader.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	data := random(73, 2*blockSize)
	path := filepath.Join(dir, "disk.img")
	writeImage(t, path, data)
	d := mountDisk(t, path, "--log-file="+fifo)
	for i := range 60 {
		copy(data, random(uint64(i), 100))
		writeImage(t, path, data) // a line in the log
		same(t, "checksum", d.read("disk", "checksum"), newOracle(data).checksum())
	}
	d.check("after all")
}
