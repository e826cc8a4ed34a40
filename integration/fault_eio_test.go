package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A badSector is a block of a file that can be made unreadable: the file is on
// ext4 on a loop device, and the device's own file ends before that block.
type badSector struct {
	t        testing.TB
	file     string // of the image
	device   string // the file of the loop device
	physical int64  // of the block on it, bytes
	off      int64  // of the block in the image, bytes
	data     []byte // of the block, pageSize bytes
	size     int64  // of the device
}

const pageSize = 4096

// newBadSector writes the image to such a file system.
func newBadSector(t testing.TB, data []byte) *badSector {
	t.Helper()
	needRoot(t)
	need(t, "mkfs.ext4", "mount")
	s := &badSector{t: t, device: filepath.Join(scratch(t), "device"), size: 64 * mib}
	writeSparse(t, s.device, s.size)
	output(t, "mkfs.ext4", "-q", "-O", "^has_journal", "-b", fmt.Sprint(pageSize), s.device)
	loop, _ := attachLoop(t, s.device, "--direct-io=on")
	dir, _ := mountDevice(t, "noatime", loop)
	s.file = filepath.Join(dir, "disk.img")
	writeImage(t, s.file, data)

	f, err := os.Open(s.file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wantErrno(t, "fsync", f.Sync(), 0)
	// The block that lies last on the device.
	for off := int64(0); off < int64(len(data)); off += pageSize {
		block := int32(off / pageSize)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 1 /* FIBMAP */, uintptr(unsafe.Pointer(&block))); errno != 0 {
			t.Fatalf("FIBMAP: %v", errno)
		}
		if at := int64(block) * pageSize; at > s.physical {
			s.physical, s.off = at, off
		}
	}
	s.data = data[s.off:min(int64(len(data)), s.off+pageSize)]
	return s
}

// fail makes the sector unreadable.
func (s *badSector) fail() {
	s.t.Helper()
	if err := os.Truncate(s.device, s.physical); err != nil {
		s.t.Fatal(err)
	}
	s.dropCache()
}

// heal makes it readable, with what was there.
func (s *badSector) heal() {
	s.t.Helper()
	f, err := os.OpenFile(s.device, os.O_WRONLY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(s.size); err != nil {
		s.t.Fatal(err)
	}
	if _, err := f.WriteAt(s.data, s.physical); err != nil {
		s.t.Fatal(err)
	}
	s.dropCache()
}

// dropCache has the next read of the image come from the device.
func (s *badSector) dropCache() {
	s.t.Helper()
	f, err := os.Open(s.file)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		s.t.Fatal(err)
	}
}

// readFails fails the test unless reading a file ends with EIO.
func readFails(t testing.TB, path string) {
	t.Helper()
	_, err := readAll(path)
	wantErrno(t, "read "+path, err, unix.EIO)
}

// A sector that cannot be read gives EIO for what needs it, and for nothing
// else. It is reported in info.json, and once in the log. When it can be read
// again, all is as before.
func TestFault_bad_sector(t *testing.T) {
	t.Parallel()
	data := random(30, ioSize)
	sector := newBadSector(t, data)
	o := newOracle(data)
	bad := sector.off / blockSize
	for _, row := range []struct {
		name  string
		flags []string
	}{
		{"read-only", nil},
		{"writable", []string{"--writable"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := mountDisk(t, sector.file, row.flags...)
			d.expect(`level=ERROR msg="cannot read" image=disk .*input/output error`)
			sector.fail()
			for range 3 {
				readFails(t, d.path("disk", "checksum"))
				readFails(t, d.path("disk", "digests.bin"))
				readFails(t, d.path("disk", "sums", "md5"))
				d.checkBlocks(data, bad, unix.EIO)
			}
			i := d.info("disk")
			if i.Blocks.Failed != 1 || fmt.Sprint(i.Bad) != fmt.Sprint([]int64{bad * blockSize}) {
				t.Errorf("%d blocks failed, %v; want that at %d", i.Blocks.Failed, i.Bad, bad*blockSize)
			}
			if e := i.LastError; e == nil || e.Offset/blockSize != bad || e.Length <= 0 || !strings.Contains(e.Message, "input/output error") {
				t.Errorf("last_error is %+v", e)
			}
			if n := strings.Count(d.log(), "cannot read"); n != 1 {
				t.Errorf("the failure is logged %d times, want once:\n%s", n, d.log())
			}
			sector.heal()
			d.checkBlocks(data, bad, 0)
			d.checkDigests("disk", o)
			if i := d.info("disk"); i.Blocks.Failed != 0 || len(i.Bad) != 0 {
				t.Errorf("after it was repaired, %d blocks failed, %v", i.Blocks.Failed, i.Bad)
			}
			d.check("repaired")
			d.unmount()
		})
	}
}

// checkBlocks reads each line of digests, each digest, each file below blocks
// and each part of the image by itself: those of the block bad end so, the
// others well.
func (d *diskMount) checkBlocks(data []byte, bad int64, errno unix.Errno) {
	d.t.Helper()
	o := newOracle(data)
	lines := strings.SplitAfter(o.digests(), "\n")
	for b := range int64(len(o.blocks) / 32) {
		part := data[b*blockSize : min(int64(len(data)), (b+1)*blockSize)]
		for _, c := range []struct {
			name string
			off  int64
			want string
		}{
			{"digests", b * int64(len(lines[0])), lines[b]},
			{"digests.bin", b * 32, string(o.blocks[b*32 : (b+1)*32])},
			{fmt.Sprintf("blocks/%016x", b*blockSize), 0, string(part)},
			{"image", b * blockSize, string(part)},
		} {
			got, err := readPart(d.path("disk", c.name), c.off, len(c.want))
			what := fmt.Sprintf("%s of block %d", c.name, b)
			if b == bad {
				wantErrno(d.t, what, err, errno)
			} else {
				wantErrno(d.t, what, err, 0)
			}
			if err == nil {
				same(d.t, what, got, c.want)
			}
		}
	}
}

// readPart reads n bytes of a file by a handle of its own.
func readPart(path string, off int64, n int) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	p := make([]byte, n)
	k, err := f.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return string(p[:k]), err
}

// Programs that read the image alone, over and over, do not fill the log.
func TestFault_bad_sector_of_the_image(t *testing.T) {
	t.Parallel()
	data := random(31, ioSize)
	sector := newBadSector(t, data)
	d := mountDisk(t, sector.file, "--writable") // one that the kernel does not read by itself
	d.expect(`level=ERROR msg="cannot read" image=disk .*input/output error`)
	sector.fail()
	for range 5 {
		_, err := readPart(d.image(), sector.off, 1)
		wantErrno(t, "read", err, unix.EIO)
	}
	if n := strings.Count(d.log(), "cannot read"); n != 1 {
		t.Errorf("the failure is logged %d times, want once:\n%s", n, d.log())
	}
	sector.heal()
	d.check("repaired")
}

// A guest repairs a sector by writing it. A view that was opened before shows
// EIO there for ever, since nobody knows what was there; it shows the rest.
func TestFault_bad_sector_overwritten(t *testing.T) {
	t.Parallel()
	data := random(32, 20*blockSize+2*pageSize) // whole pages, so that none is read to be written
	sector := newBadSector(t, data)
	d := mountDisk(t, sector.file, "--writable")
	d.expect(`level=ERROR msg="cannot read" image=disk .*input/output error`)
	view, err := os.Open(d.path("disk", "digests.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	sector.fail()
	bad := sector.off / blockSize
	p := bytes.Repeat([]byte{7}, pageSize)
	f := d.open(os.O_RDWR)
	if _, err := f.WriteAt(p[:len(sector.data)], sector.off); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, "fsync", f.Sync(), 0) // writing makes the device longer again
	old := newOracle(data)
	copy(data[sector.off:], p[:len(sector.data)])
	for b := range int64(len(old.blocks) / 32) {
		got := make([]byte, 32)
		_, err := view.ReadAt(got, b*32)
		if b == bad {
			wantErrno(t, "the view's digest of the sector", err, unix.EIO)
			continue
		}
		wantErrno(t, "the view's digest", err, 0)
		sameBytes(t, fmt.Sprintf("the view's digest %d", b), got, old.blocks[b*32:(b+1)*32])
	}
	if err := os.Truncate(sector.device, sector.size); err != nil {
		t.Fatal(err)
	}
	sector.dropCache()
	d.checkDigests("disk", newOracle(data))
	d.check("repaired")
}
