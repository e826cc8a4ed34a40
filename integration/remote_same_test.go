package integration

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A disk is one content in many formats.
type disk struct {
	dir    string
	raw    string // the content as a file
	data   []byte
	pieces []piece
}

// diskSize is one that all formats can have.
const diskSize = 6 * mib

// newDisk makes disk.raw: data, zeros that are data, holes, and data where no
// block begins.
func newDisk(t testing.TB) *disk {
	t.Helper()
	d := &disk{dir: scratch(t), data: make([]byte, diskSize)}
	d.raw = filepath.Join(d.dir, "disk.raw")
	d.pieces = []piece{
		{0, append(random(10, mib+3*4096), make([]byte, 2*blockSize)...)},
		{3*mib + 5*512, random(11, 512)},
		{5 * mib, random(12, mib/2)},
	}
	for _, p := range d.pieces {
		copy(d.data[p.offset:], p.data)
	}
	writeSparse(t, d.raw, diskSize, d.pieces...)
	return d
}

func (d *disk) path(name string) string { return filepath.Join(d.dir, name) }

// convert makes a file of the content in a format.
func (d *disk) convert(t testing.TB, name, format string, args ...string) string {
	t.Helper()
	need(t, "qemu-img")
	argv := append([]string{"qemu-img", "convert", "-q", "-f", "raw", "-O", format}, args...)
	output(t, append(argv, d.raw, d.path(name))...)
	return d.path(name)
}

// overlay makes a qcow2 of the content over a backing file with less of it.
func (d *disk) overlay(t testing.TB, name string) string {
	t.Helper()
	need(t, "qemu-img", "qemu-io")
	base := d.path("base.raw")
	writeSparse(t, base, diskSize, d.pieces[0], piece{4 * mib, random(13, mib/2)}, d.pieces[2])
	output(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", d.path(name))
	part := d.path("part")
	writeImage(t, part, d.pieces[1].data)
	output(t, "qemu-io", "-f", "qcow2", d.path(name),
		"-c", fmt.Sprintf("write -q -s %s %d 512", part, d.pieces[1].offset),
		"-c", fmt.Sprintf("write -q -z %d %d", 4*mib, mib/2))
	return d.path(name)
}

// A place is where the content of a disk is.
type place struct {
	name, location string
	format         string // for qemu-img, of a file that is not raw
	nbdMap         string // of a server that shows the same
}

// places puts the content into all kinds of places.
func (d *disk) places(t testing.TB) []place {
	t.Helper()
	need(t, "nbdcopy")
	places := []place{{name: "raw", location: d.raw}}
	for _, row := range []struct {
		name, format string
		args         []string
	}{
		{"qcow2", "qcow2", nil},
		{"qcow2 with 4 KiB clusters", "qcow2", []string{"-o", "cluster_size=4k"}},
		{"compressed qcow2", "qcow2", []string{"-c"}},
		{"vmdk", "vmdk", nil},
		{"flat vmdk", "vmdk", []string{"-o", "subformat=monolithicFlat"}},
		{"vhdx", "vhdx", nil},
		{"vdi", "vdi", nil},
	} {
		file := d.convert(t, strings.ReplaceAll(row.name, " ", "-")+"."+row.format, row.format, row.args...)
		places = append(places, place{name: row.name, location: file, format: row.format})
	}
	places = append(places, place{name: "qcow2 over a backing file", location: d.overlay(t, "overlay.qcow2"), format: "qcow2"})
	for i, p := range places {
		if p.format != "" {
			places[i].nbdMap = nbdMap(t, qemuNBD(t, "--read-only", "-f", p.format, p.location).uri())
		}
	}
	memory := nbdkit(t, "memory", fmt.Sprint(diskSize))
	output(t, "nbdcopy", d.raw, memory.uri())
	for _, row := range []struct {
		name   string
		server *server
	}{
		{"nbdkit file", nbdkit(t, "--readonly", "file", d.raw)},
		{"nbdkit memory", memory},
		{"nbdkit data", nbdkit(t, "data", fmt.Sprintf("size=%d", diskSize), "data=<"+d.raw)},
		{"qemu-nbd raw", qemuNBD(t, "--read-only", "-e", "4", "-f", "raw", d.raw)},
		{"qemu-nbd qcow2", qemuNBD(t, "--read-only", "-e", "1", "-f", "qcow2", d.path("qcow2.qcow2"))},
	} {
		uri := row.server.uri()
		places = append(places, place{name: row.name, location: uri, nbdMap: nbdMap(t, uri)})
	}
	return places
}

// source is the SOURCE argument for a place, with the name img and a number.
func (p place) source(i int) string {
	return fmt.Sprintf("img%d=%s", i, strings.ReplaceAll(p.location, ",", ",,"))
}

// Whatever holds the content, the digests are the same.
func TestRemote_same_content(t *testing.T) {
	t.Parallel()
	needNBD(t)
	d := newDisk(t)
	places := d.places(t)
	o := newOracle(d.data)
	var locations, sources []string
	for i, p := range places {
		locations = append(locations, p.location)
		sources = append(sources, p.source(i))
	}

	var want strings.Builder
	for _, l := range locations {
		fmt.Fprintf(&want, "%s  %s\n", o.sum(), l)
	}
	same(t, "hashfs sum", output(t, append([]string{program, "sum"}, locations...)...), want.String())

	m := mount(t, sources...)
	for i, p := range places {
		t.Run(p.name, func(t *testing.T) {
			image := fmt.Sprintf("img%d", i)
			m.checkDigests(image, o)
			same(t, "image", m.read(image, "image"), string(d.data))
			same(t, "a block", m.read(image, "blocks", "0000000000300000"), string(d.data[3*mib:3*mib+blockSize]))
			sum := md5.Sum(d.data)
			same(t, "sums/md5", m.read(image, "sums", "md5"), hex.EncodeToString(sum[:])+"\n")
			if p.nbdMap != "" {
				same(t, "map", m.read(image, "map"), p.nbdMap)
			}
			if p.format != "" {
				checkMapJSON(t, m.read(image, "map.json"), p.format, p.location)
			}
		})
	}
}

// checkMapJSON compares a map.json with what qemu-img calls data and zero.
// NBD tells nothing else, and qemu-img splits where the offset jumps.
func checkMapJSON(t *testing.T, text, format, path string) {
	t.Helper()
	type run struct {
		Start, Length int64
		Data, Zero    bool
	}
	merge := func(text string) (runs []run) {
		for _, e := range parseExtents(t, text) {
			if n := len(runs); n > 0 && runs[n-1].Data == e.Data && runs[n-1].Zero == e.Zero {
				runs[n-1].Length += e.Length
				continue
			}
			runs = append(runs, run{e.Start, e.Length, e.Data, e.Zero})
		}
		return runs
	}
	want := merge(output(t, "qemu-img", "map", "-U", "--output=json", "-f", format, path))
	if diff := cmp.Diff(want, merge(text)); diff != "" {
		t.Errorf("map.json (-qemu-img +got):\n%s", diff)
	}
}

// An internal snapshot is the image as it was.
func TestRemote_snapshot(t *testing.T) {
	t.Parallel()
	needNBD(t)
	d := newDisk(t)
	image := d.convert(t, "a.qcow2", "qcow2")
	output(t, "qemu-img", "snapshot", "-c", "before", image)
	output(t, "qemu-io", "-f", "qcow2", "-c", "write -q -P 0x5a 100k 300k", image)
	now := append([]byte{}, d.data...)
	copy(now[100*kib:], strings.Repeat("\x5a", int(300*kib)))
	m := mount(t, "old="+image+",snapshot=before", "new="+image)
	m.checkDigests("old", newOracle(d.data))
	m.checkDigests("new", newOracle(now))
	same(t, "image", m.read("old", "image"), string(d.data))
}
