package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
)

// A server that is back with an export of another size serves another image.
func TestRemote_resized_export(t *testing.T) {
	t.Parallel()
	needNBD(t)
	path := newDisk(t).path("x.raw")
	data := random(40, 3*mib)
	writeImage(t, path, data)
	s := nbdkit(t, "file", path)
	for _, mode := range []string{"keep", "none"} {
		t.Run("cache="+mode, func(t *testing.T) {
			m := mount(t, "x="+s.uri()+",cache="+mode)
			m.expect(lostServer...)
			for _, size := range []int64{2*mib + 512, 5 * mib, 3 * mib} {
				data := random(uint64(size), size)
				old := hold(t, m.path("x", "digests"), os.O_RDONLY)
				if _, err := io.ReadFull(old, make([]byte, 90)); err != nil {
					t.Fatal(err)
				}
				writeImage(t, path, data)
				s.restart()
				eventually(t, "the new size is seen", func() bool {
					info, err := os.Stat(m.path("x", "image"))
					return err == nil && info.Size() == size
				})
				m.checkDigests("x", newOracle(data))
				same(t, "image", m.read("x", "image"), string(data))
				same(t, "map", m.read("x", "map"), nbdMap(t, s.uri()))
				if n, err := io.Copy(io.Discard, old); !errors.Is(err, syscall.ESTALE) {
					t.Errorf("the rest of a view from before: %d bytes, %v", n, err)
				}
			}
		})
	}
}

// A read-only image in a format follows its name and its files' changes.
func TestRemote_changed_image(t *testing.T) {
	t.Parallel()
	needNBD(t)
	need(t, "qemu-img")
	d := newDisk(t)
	image := d.overlay(t, "a.qcow2")
	m := mount(t, image)
	m.checkDigests("a", newOracle(d.data))
	m.expect(childDied[1:]...) // to the qemu-nbd of before

	// The backing file is changed.
	copy(d.data[5*mib:], "changed")
	writeAt(t, d.path("base.raw"), []byte("changed"), 5*mib)
	m.checkDigests("a", newOracle(d.data))

	// Another image gets the name.
	old := hold(t, m.path("a", "digests"), os.O_RDONLY)
	if _, err := io.ReadFull(old, make([]byte, 90)); err != nil {
		t.Fatal(err)
	}
	other := random(41, 2*mib)
	writeImage(t, d.raw, other)
	if err := os.Rename(d.convert(t, "b.qcow2", "qcow2"), image); err != nil {
		t.Fatal(err)
	}
	m.checkDigests("a", newOracle(other))
	same(t, "image", m.read("a", "image"), string(other))
	if n, err := io.Copy(io.Discard, old); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("the rest of a view from before: %d bytes, %v", n, err)
	}
}

// A target is a writable place with what another program reads from it.
type target struct {
	name, source string
	uri          string // of an export that can be looked at meanwhile
	format, path string // of a file that can be once it is unmounted
}

// writableTargets puts the content into each kind of place that can be written.
func writableTargets(t *testing.T) (d *disk, all []target) {
	t.Helper()
	d = newDisk(t)
	for _, row := range []struct {
		name, format string
		args         []string
	}{
		{"raw", "raw", nil},
		{"qcow2", "qcow2", nil},
		{"compressed-qcow2", "qcow2", []string{"-c"}},
		{"vmdk", "vmdk", nil},
		{"flat-vmdk", "vmdk", []string{"-o", "subformat=monolithicFlat"}},
		{"vhdx", "vhdx", nil},
		{"vdi", "vdi", nil},
	} {
		path := d.convert(t, "w-"+row.name+"."+row.format, row.format, row.args...)
		all = append(all, target{name: row.name, source: path, format: row.format, path: path})
	}
	overlay := d.overlay(t, "w-overlay.qcow2")
	all = append(all, target{name: "overlay", source: overlay, format: "qcow2", path: overlay})
	for name, s := range map[string]*server{
		"nbdkit-file":   nbdkit(t, "file", d.convert(t, "w1.raw", "raw")),
		"nbdkit-memory": nbdkit(t, "memory", fmt.Sprint(diskSize)),
		"qemu-nbd":      qemuNBD(t, "-e", "8", "-f", "qcow2", d.convert(t, "w2.qcow2", "qcow2")),
	} {
		if name == "nbdkit-memory" {
			output(t, "nbdcopy", d.raw, s.uri())
		}
		all = append(all, target{name: name, source: s.uri(), uri: s.uri()})
	}
	if os.Geteuid() == 0 {
		loop := loopDevice(t, d.convert(t, "w3.raw", "raw"))
		all = append(all, target{name: "device", source: loop, format: "raw", path: loop})
	}
	return d, all
}

// What is written through the mount shows in the digests at once, and is what
// others find in the image.
func TestRemote_write(t *testing.T) {
	t.Parallel()
	needNBD(t)
	need(t, "nbdcopy", "nbdinfo", "qemu-img")
	d, targets := writableTargets(t)
	args := []string{"--writable"}
	for _, w := range targets {
		args = append(args, w.name+"="+w.source)
	}
	m := mount(t, args...)
	var last *oracle
	final := bytes.Clone(d.data)
	for _, w := range targets {
		t.Run(w.name, func(t *testing.T) {
			model := bytes.Clone(d.data)
			m.checkDigests(w.name, newOracle(model))
			writeMuch(t, m, w.name, model)
			last, final = newOracle(model), model
			same(t, "image", m.read(w.name, "image"), string(model))
			if w.uri != "" {
				same(t, "as nbdcopy reads it", string(copyOut(t, w.uri)), string(model))
				same(t, "map", m.read(w.name, "map"), nbdMap(t, w.uri))
			}
		})
	}
	m.unmount()

	raw := d.path("final.raw")
	writeImage(t, raw, final)
	for _, w := range targets {
		same(t, "a new sum of "+w.name, output(t, program, "sum", w.source), last.sum()+"  "+w.source+"\n")
		if w.path != "" {
			output(t, "qemu-img", "compare", "-f", "raw", "-F", w.format, raw, w.path)
		}
		if w.format == "qcow2" {
			output(t, "qemu-img", "check", "-f", "qcow2", w.path)
		}
	}
}

// writeMuch changes an image in every way that there is, and compares the
// digests after each.
func writeMuch(t *testing.T, m *mounted, image string, model []byte) {
	t.Helper()
	f, err := os.OpenFile(m.path(image, "image"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(data []byte, off int64) error {
		_, err := f.WriteAt(data, off)
		copy(model[off:], data)
		return err
	}
	const punch, zero, keep = 2, 0x10, 1 // FALLOC_FL_PUNCH_HOLE, _ZERO_RANGE, _KEEP_SIZE
	fallocate := func(mode uint32, off, length int64) error {
		clear(model[off : off+length])
		return syscall.Fallocate(int(f.Fd()), mode|keep, off, length)
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a block", func() error { return write(random(50, blockSize), 2*blockSize) }},
		{"a sector", func() error { return write(random(51, 512), 3*mib+512) }},
		{"a byte", func() error { return write([]byte{7}, 4*mib+1) }},
		{"into a hole", func() error { return write(random(52, 5000), 4*mib+mib/2+3) }},
		{"much", func() error { return write(random(53, 2*mib), mib+77) }},
		{"the last byte", func() error { return write([]byte{9}, diskSize-1) }},
		{"punch", func() error { return fallocate(punch, mib+100, mib/2) }},
		{"punch of blocks", func() error { return fallocate(punch, 2*mib, 2*blockSize) }},
		{"zero", func() error { return fallocate(zero, 5*mib+10, mib/4) }},
		{"write after the punch", func() error { return write(random(54, 100), 2*mib+5) }},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		same(t, "checksum after "+step.name, m.read(image, "checksum"), newOracle(model).checksum())
	}
	if _, err := f.WriteAt([]byte{1}, diskSize); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write beyond the end: %v", err)
	}
	if err := f.Sync(); err != nil {
		t.Errorf("fsync: %v", err)
	}
	m.checkDigests(image, newOracle(model))
}
