package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The map is what NBD tells of the image, and what nbdkit reads back.
func TestMap_nbdinfo(t *testing.T) {
	t.Parallel()
	need(t, "nbdkit", "nbdinfo")
	dir := scratch(t)
	s := newSample(t, dir)
	for _, row := range []struct {
		name   string
		size   int64
		pieces []piece
	}{
		{"sample", s.size, s.pieces},
		{"all data", 3*mib + 5, []piece{{0, random(5, 3*mib+5)}}},
		{"all hole", tib, nil},
		{"hole at the end", mib, []piece{{0, random(6, 4096)}}},
		{"hole at the start", mib, []piece{{mib - 4096, random(6, 4096)}}},
		{"one byte", 1, []piece{{0, []byte{1}}}},
		{"data every other page", mib, everyOther(64)},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(dir, "x.img")
			writeSparse(t, path, row.size, row.pieces...)
			m := mount(t, path)
			want := output(t, "nbdkit", "-U", "-", "file", path, "--run", `nbdinfo --map "$uri"`)
			got := m.read("x", "map")
			same(t, "map", got, want)
			filter := output(t, "nbdkit", "-U", "-", "--filter=extentlist", "memory", fmt.Sprint(row.size),
				"extentlist="+m.path("x", "map"), "--run", `nbdinfo --map "$uri"`)
			same(t, "what extentlist makes of the map", filter, want)
		})
	}
}

// everyOther returns n pages of data, each before a page that is a hole.
func everyOther(n int) []piece {
	var pieces []piece
	for i := range n {
		pieces = append(pieces, piece{int64(i) * 8192, random(uint64(i), 4096)})
	}
	return pieces
}

// qemuExtent is an extent of qemu-img map --output=json, and of map.json.
type qemuExtent struct {
	Start      int64  `json:"start"`
	Length     int64  `json:"length"`
	Depth      int    `json:"depth"`
	Present    bool   `json:"present"`
	Zero       bool   `json:"zero"`
	Data       bool   `json:"data"`
	Compressed *bool  `json:"compressed"`
	Offset     *int64 `json:"offset"`
}

func parseExtents(t *testing.T, text string) []qemuExtent {
	t.Helper()
	extents := []qemuExtent{}
	in := json.NewDecoder(bytes.NewReader([]byte(text)))
	in.DisallowUnknownFields()
	if err := in.Decode(&extents); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return extents
}

// clip takes off what qemu-img adds to fill the last sector.
func clip(extents []qemuExtent, size int64) []qemuExtent {
	clipped := []qemuExtent{}
	for _, e := range extents {
		if e.Length = min(e.Length, size-e.Start); e.Length > 0 {
			clipped = append(clipped, e)
		}
	}
	return clipped
}

func TestMap_qemu(t *testing.T) {
	t.Parallel()
	need(t, "qemu-img")
	dir := scratch(t)
	s := newSample(t, dir)
	for _, row := range []struct {
		name   string
		size   int64
		pieces []piece
	}{
		{"sample", s.size, s.pieces},
		{"all data", 3*mib + 5, []piece{{0, random(5, 3*mib+5)}}},
		{"all hole", 1000 * gib, nil},
		{"data every other page", mib, everyOther(64)},
		{"empty", 0, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(dir, "x.img")
			writeSparse(t, path, row.size, row.pieces...)
			m := mount(t, path)
			got := parseExtents(t, m.read("x", "map.json"))
			for i, e := range got {
				// Releases of qemu-img before 8.2 have not this key.
				if e.Compressed == nil || *e.Compressed {
					t.Errorf("extent %d: compressed %v", i, e.Compressed)
				}
				got[i].Compressed = nil
			}
			want := parseExtents(t, output(t, "qemu-img", "map", "--output=json", "-f", "raw", path))
			for i := range want {
				want[i].Compressed = nil
			}
			if diff := cmp.Diff(clip(want, row.size), got); diff != "" {
				t.Errorf("map.json (-qemu-img +got):\n%s", diff)
			}
		})
	}
}

func TestImage_qemu(t *testing.T) {
	t.Parallel()
	need(t, "qemu-img", "qemu-io")
	dir := scratch(t)
	s := newSample(t, dir)
	for _, writable := range []bool{false, true} {
		t.Run(fmt.Sprintf("writable %v", writable), func(t *testing.T) {
			m := mount(t, fmt.Sprintf("--writable=%v", writable), s.path)
			image := m.path("disk", "image")
			// A writable mount has the backing file locked, as a guest has.
			output(t, "qemu-img", "compare", "-U", "-f", "raw", "-F", "raw", s.path, image)
			output(t, "qemu-img", "compare", "-U", "-s", "-f", "raw", "-F", "raw", s.path, image)
			qcow2, raw := filepath.Join(dir, "c.qcow2"), filepath.Join(dir, "c.raw")
			for _, from := range [][2]string{{image, "qcow2"}, {qcow2, "raw"}} {
				to := map[string]string{"qcow2": qcow2, "raw": raw}[from[1]]
				output(t, "qemu-img", "convert", "-f", map[string]string{image: "raw", qcow2: "qcow2"}[from[0]], "-O", from[1], from[0], to)
			}
			// qemu-img fills the last sector.
			full := append(append([]byte{}, s.data...), make([]byte, -len(s.data)&511)...)
			same(t, "converted twice", readFile(t, raw), string(full))

			got := parseExtents(t, output(t, "qemu-img", "map", "-U", "--output=json", "-f", "raw", image))
			want := parseExtents(t, output(t, "qemu-img", "map", "-U", "--output=json", "-f", "raw", s.path))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("qemu-img map of image (-backing +image):\n%s", diff)
			}
		})
	}
}

// A sparse copy of image takes no more space than the backing file does.
func TestImage_sparse_copy(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	path, to := filepath.Join(dir, "big.img"), filepath.Join(dir, "copy")
	pieces := []piece{{5 * gib, random(7, mib)}, {90 * gib, random(8, 4096)}}
	writeSparse(t, path, 100*gib, pieces...)
	m := mount(t, path)
	// With --sparse=always cp asks for holes, else 100 GiB would be read.
	output(t, "cp", "--sparse=always", m.path("big", "image"), to)
	info, err := os.Stat(to)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() != 100*gib {
		t.Errorf("size %d", info.Size())
	}
	f, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range pieces {
		got := make([]byte, len(p.data))
		if _, err := f.ReadAt(got, p.offset); err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprintf("copy at %d", p.offset), string(got), string(p.data))
	}
	if used := diskUsage(t, to); used > 2*diskUsage(t, path)+int64(mib) {
		t.Errorf("the copy takes %d bytes on disk, the image %d", used, diskUsage(t, path))
	}
}
