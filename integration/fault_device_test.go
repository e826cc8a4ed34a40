package integration

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A loop device over a file that was cut cannot be read beyond its end. As a
// source it gives EIO for the blocks there, and for no others; it recovers with
// the file.
func TestFault_device(t *testing.T) {
	t.Parallel()
	const size, bad = 20 * blockSize, 19
	data := random(70, size)
	file := filepath.Join(scratch(t), "file")
	writeImage(t, file, data)
	device, _ := attachLoop(t, file, "--direct-io=on")
	d := mountDisk(t, device)
	d.expect(`level=ERROR msg="cannot read" image=disk .*input/output error`)
	dropDevice(t, device)
	if err := os.Truncate(file, bad*blockSize); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		readFails(t, d.path("disk", "checksum"))
		d.checkBlocks(data, bad, unix.EIO)
	}
	writeImage(t, file, data)
	dropDevice(t, device)
	d.checkBlocks(data, bad, 0)
	d.checkDigests("disk", newOracle(data))
}

// dropDevice has the next reads of a block device come from itself.
func dropDevice(t testing.TB, device string) {
	t.Helper()
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.BLKFLSBUF, 0); err != nil {
		t.Fatal(err)
	}
}
