package integration

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// loopDevice returns a loop device of a file, which is detached with the test.
func loopDevice(t testing.TB, file string, options ...string) string {
	t.Helper()
	device, _ := attachLoop(t, file, options...)
	return device
}

// What a device holds is an image as any, in each size of sectors.
func TestDevice_sectors(t *testing.T) {
	t.Parallel()
	for _, sector := range []int64{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			path := filepath.Join(scratch(t), "backing")
			model := random(60, diskSize)
			writeImage(t, path, model)
			device := loopDevice(t, path, "--sector-size", fmt.Sprint(sector))
			o := newOracle(model)
			same(t, "hashfs sum", output(t, program, "sum", device), o.sum()+"  "+device+"\n")

			m := mount(t, "--writable", "x="+device)
			m.checkDigests("x", o)
			same(t, "image", m.read("x", "image"), string(model))
			same(t, "map", m.read("x", "map"), fmt.Sprintf("%10d  %10d  %3d  data\n", 0, diskSize, 0))
			writeMuch(t, m, "x", model)
			same(t, "the device", readFile(t, device), string(model))

			// The device is ours alone.
			if _, err := os.OpenFile(device, os.O_RDWR|syscall.O_EXCL, 0); !errors.Is(err, syscall.EBUSY) {
				t.Errorf("an exclusive open: %v", err)
			}
			r := run(t, program, "mount", "--writable", device, newPoint(t, 0))
			if r.Status != 1 || !strings.Contains(r.Stderr, device) || strings.Count(r.Stderr, "\n") != 1 {
				t.Errorf("a second writable mount: %+v", r)
			}
			m.unmount()
			same(t, "the file behind it", readFile(t, path), string(model))
		})
	}
}

// Devices are larger than 2 TiB. Data far beyond is found, and nothing of the
// rest is read to list it.
func TestDevice_large(t *testing.T) {
	t.Parallel()
	const size = 5 * tib
	path := filepath.Join(scratch(t), "backing")
	p := piece{4*tib + 5*blockSize + 100, random(61, blockSize)}
	writeSparse(t, path, size, p)
	device := loopDevice(t, path)
	m := mount(t, "--writable", "x="+device+",digest=sha256/64k")
	if i := m.info("x"); i.Size != size || i.Blocks.Total != size/blockSize {
		t.Errorf("size %d, %d blocks", i.Size, i.Blocks.Total)
	}
	block := p.offset / blockSize
	check := func(what string, data []byte) {
		t.Helper()
		o := newSparseOracle(sha256.New, blockSize, 3*blockSize, piece{p.offset % blockSize, data})
		digests := hold(t, m.path("x", "digests.bin"), os.O_RDONLY)
		got := make([]byte, 3*32)
		if _, err := digests.ReadAt(got, block*32); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		same(t, what, string(got), o.bin())
	}
	check("digests beyond 4 TiB", p.data)
	image := hold(t, m.path("x", "image"), os.O_RDWR)
	data := random(62, blockSize)
	if _, err := image.WriteAt(data, p.offset); err != nil {
		t.Fatal(err)
	}
	check("digests after a write", data)
	// A punch gives zeros, whatever a discard would.
	clear(data[:5000])
	if err := syscall.Fallocate(int(image.Fd()), 3, p.offset, 5000); err != nil {
		t.Fatal(err)
	}
	check("digests after a punch", data)
	same(t, "a block", m.read("x", "blocks", fmt.Sprintf("%016x", block*blockSize)),
		string(append(make([]byte, p.offset%blockSize), data[:blockSize-p.offset%blockSize]...)))
}

// losetup -c tells the kernel that the file behind has another size.
func TestDevice_resized(t *testing.T) {
	t.Parallel()
	for _, writable := range []bool{false, true} {
		t.Run(fmt.Sprintf("writable %v", writable), func(t *testing.T) {
			path := filepath.Join(scratch(t), "backing")
			data := random(63, 5*mib)
			writeImage(t, path, data[:3*mib])
			device := loopDevice(t, path)
			m := mount(t, fmt.Sprintf("--writable=%v", writable), "x="+device)
			m.checkDigests("x", newOracle(data[:3*mib]))
			for _, size := range []int64{5 * mib, 2*mib + 512} {
				old := hold(t, m.path("x", "digests"), os.O_RDONLY)
				if _, err := io.ReadFull(old, make([]byte, 90)); err != nil {
					t.Fatal(err)
				}
				writeImage(t, path, data[:size])
				output(t, "losetup", "--set-capacity", device)
				m.checkDigests("x", newOracle(data[:size]))
				same(t, "image", m.read("x", "image"), string(data[:size]))
				if n, err := io.Copy(io.Discard, old); !errors.Is(err, syscall.ESTALE) {
					t.Errorf("the rest of a view from before: %d bytes, %v", n, err)
				}
			}
		})
	}
}

// What is written to a device by others is seen by who opens afterwards.
func TestDevice_changed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "backing")
	data := random(64, 2*mib)
	writeImage(t, path, data)
	device := loopDevice(t, path)
	m := mount(t, "x="+device)
	m.checkDigests("x", newOracle(data))
	copy(data[mib:], "changed")
	writeAt(t, device, []byte("changed"), mib)
	m.checkDigests("x", newOracle(data))
}

// A file system on a loop device over the mount, over a loop device.
func TestDevice_filesystem(t *testing.T) {
	t.Parallel()
	needRoot(t)
	need(t, "mkfs.ext4", "mount", "umount", "e2fsck")
	path := filepath.Join(scratch(t), "backing")
	writeSparse(t, path, 24*mib)
	m := mount(t, "--writable", "x="+loopDevice(t, path))
	inner, detach := attachLoop(t, m.path("x", "image"))
	output(t, "mkfs.ext4", "-q", inner)
	dir, unmount := mountDevice(t, "rw", inner)
	for i := range 20 {
		writeImage(t, filepath.Join(dir, fmt.Sprint(i)), random(uint64(i), 200*kib))
		m.read("x", "checksum")
	}
	for i := range 10 {
		if err := os.Remove(filepath.Join(dir, fmt.Sprint(2*i))); err != nil {
			t.Fatal(err)
		}
	}
	output(t, "sync", "-f", dir)
	m.read("x", "checksum")
	unmount()
	detach()
	sum := m.read("x", "checksum")
	m.unmount()
	same(t, "checksum", sum, newOracle([]byte(readFile(t, path))).checksum())
	if r := run(t, "e2fsck", "-f", "-n", path); r.Status != 0 {
		t.Errorf("e2fsck: %+v", r)
	}
}
