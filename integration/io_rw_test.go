package integration

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// ioSize is the length of most images here: some blocks and a tail that ends
// at no boundary of anything.
const ioSize = 20*blockSize + 12345

// ranges are offsets and lengths around the borders of blocks, pages, requests
// of 1 MiB and the image.
func ranges() (all []struct{ off, length int64 }) {
	offsets := []int64{0, 1, 4095, 4096, blockSize - 1, blockSize, blockSize + 1, 3*blockSize - 512, 16*blockSize - 7, ioSize - blockSize, ioSize - 1}
	lengths := []int64{1, 511, 512, 4096, 4097, blockSize - 1, blockSize, blockSize + 1, 2*blockSize + 3, mib + 9}
	for _, off := range offsets {
		for _, length := range lengths {
			if off+length <= ioSize {
				all = append(all, struct{ off, length int64 }{off, length})
			}
		}
	}
	return all
}

// What is written at any offset is read there, and nowhere else, by each way
// of opening the image; and the digests follow each write.
func TestWrite_any_offset(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		flags int
	}{
		{"plain", 0},
		{"direct", unix.O_DIRECT},
		{"sync", unix.O_SYNC},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			model := random(2, ioSize)
			d := writableDisk(t, model)
			w, r := d.open(os.O_RDWR|row.flags), d.open(os.O_RDONLY|row.flags)
			for i, at := range ranges() {
				p := aligned(t, int(at.length))
				copy(p, random(uint64(1000+i), at.length))
				if n, err := w.WriteAt(p, at.off); n != len(p) || err != nil {
					t.Fatalf("write %d at %d: %d, %v", at.length, at.off, n, err)
				}
				copy(model[at.off:], p)
				// Around what was written too.
				from, to := max(0, at.off-100), min(ioSize, at.off+at.length+100)
				got := aligned(t, int(to-from))
				if _, err := r.ReadAt(got, from); err != nil && err != io.EOF {
					t.Fatal(err)
				}
				sameBytes(t, fmt.Sprintf("read of %d at %d", at.length, at.off), got, model[from:to])
				if i%10 == 0 {
					same(t, "digests.bin", d.read("disk", "digests.bin"), newOracle(model).bin())
				}
			}
			sameBytes(t, "backing file", []byte(readFile(t, d.backing)), model)
			d.check("after all")
		})
	}
}

// A write cannot change the size, whatever the flags of open(2) say: it is
// short at the end, and fails beyond it.
func TestWrite_beyond_the_end(t *testing.T) {
	t.Parallel()
	model := random(3, ioSize)
	d := writableDisk(t, model)
	f := d.open(os.O_RDWR)

	p := random(4, 1000)
	if n, err := pwrite(f, p, ioSize-300); n != 300 || err != nil {
		t.Errorf("write across the end: %d, %v; want 300 bytes", n, err)
	}
	copy(model[ioSize-300:], p)
	for _, off := range []int64{ioSize, ioSize + 1, 1 << 40} {
		_, err := pwrite(f, p, off)
		wantErrno(t, fmt.Sprintf("write at %d", off), err, unix.ENOSPC)
		if n, err := unix.Pread(int(f.Fd()), p, off); n != 0 || err != nil {
			t.Errorf("read at %d: %d, %v; want the end", off, n, err)
		}
	}
	appender := d.open(os.O_WRONLY | os.O_APPEND)
	_, err := appender.Write(p)
	wantErrno(t, "append", err, unix.ENOSPC)

	wantErrno(t, "truncate to less", f.Truncate(ioSize-1), unix.EPERM)
	wantErrno(t, "truncate to more", f.Truncate(ioSize+1), unix.EPERM)
	wantErrno(t, "truncate to the same", f.Truncate(ioSize), 0)
	_, err = os.OpenFile(d.image(), os.O_WRONLY|os.O_TRUNC, 0)
	wantErrno(t, "open to truncate", err, unix.EPERM)

	sameBytes(t, "backing file", []byte(readFile(t, d.backing)), model)
	d.check("after all")
}

// All ways to make writes durable work, on the image and on the mount.
func TestWrite_sync(t *testing.T) {
	t.Parallel()
	d := writableDisk(t, random(5, ioSize))
	f := d.open(os.O_RDWR)
	fd := int(f.Fd())
	for i, row := range []struct {
		name string
		sync func() error
	}{
		{"fsync", func() error { return unix.Fsync(fd) }},
		{"fdatasync", func() error { return unix.Fdatasync(fd) }},
		{"sync_file_range", func() error { return unix.SyncFileRange(fd, 0, ioSize, unix.SYNC_FILE_RANGE_WRITE) }},
		{"syncfs", func() error { return unix.Syncfs(fd) }},
		{"RWF_DSYNC", func() error {
			_, err := unix.Pwritev2(fd, [][]byte{{1, 2, 3}}, 77, unix.RWF_DSYNC)
			return err
		}},
	} {
		if _, err := f.WriteAt(random(uint64(i), 3000), int64(i)*blockSize-min(int64(i), 1)*50); err != nil {
			t.Fatal(err)
		}
		wantErrno(t, row.name, row.sync(), 0)
		d.checkHere(row.name)
	}
	d.check("after all")
}

// A read-only image refuses all that would change it.
func TestWrite_read_only(t *testing.T) {
	t.Parallel()
	data := random(6, ioSize)
	d := writableDisk(t, data)
	d.unmount()
	ro := mountDisk(t, d.backing)
	open, truncate := unix.EROFS, unix.EPERM
	if os.Geteuid() != 0 {
		// The mode says no before the program is asked.
		open, truncate = unix.EACCES, unix.EACCES
	}
	for _, flags := range []int{os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_APPEND} {
		_, err := os.OpenFile(ro.image(), flags, 0)
		wantErrno(t, fmt.Sprintf("open with flags %#x", flags), err, open)
	}
	wantErrno(t, "truncate", os.Truncate(ro.image(), 0), truncate)
	f := ro.open(os.O_RDONLY)
	wantErrno(t, "fallocate", fallocate(f, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), unix.EBADF)
	wantErrno(t, "fsync", f.Sync(), 0)
	sameBytes(t, "backing file", []byte(readFile(t, ro.backing)), data)
	ro.check("after all")
}
