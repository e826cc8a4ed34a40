package fs

import (
	"context"
	"strconv"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/hasher"
)

// extentNames are what nbdinfo calls the types of base:allocation.
var extentNames = [...]string{
	0:                                     "data",
	hasher.ExtentHole:                     "hole",
	hasher.ExtentZero:                     "zero",
	hasher.ExtentHole | hasher.ExtentZero: "hole,zero",
}

// appendMapLine appends an extent as nbdinfo --map prints it:
// "%10d  %10d  %3d  %s\n" with offset, length, type and the type's name.
func appendMapLine(dst []byte, e hasher.Extent) []byte {
	dst = appendPadded(dst, e.Offset, 10)
	dst = append(dst, "  "...)
	dst = appendPadded(dst, e.Length, 10)
	dst = append(dst, "  "...)
	dst = appendPadded(dst, int64(e.Type), 3)
	dst = append(dst, "  "...)
	dst = append(dst, extentNames[e.Type]...)
	return append(dst, '\n')
}

// appendPadded appends n, which is not negative, with spaces before it to make
// width bytes.
func appendPadded(dst []byte, n int64, width int) []byte {
	var buf [20]byte
	digits := strconv.AppendInt(buf[:0], n, 10)
	for range width - len(digits) {
		dst = append(dst, ' ')
	}
	return append(dst, digits...)
}

// appendMapJSON appends an extent as qemu-img map --output=json prints it since
// 8.2. raw images have their bytes in the file at the same offset.
func appendMapJSON(dst []byte, e hasher.Extent, raw bool) []byte {
	dst = append(dst, `{ "start": `...)
	dst = strconv.AppendInt(dst, e.Offset, 10)
	dst = append(dst, `, "length": `...)
	dst = strconv.AppendInt(dst, e.Length, 10)
	dst = append(dst, `, "depth": 0, "present": true, "zero": `...)
	dst = strconv.AppendBool(dst, e.Zero())
	dst = append(dst, `, "data": `...)
	dst = strconv.AppendBool(dst, e.Type&hasher.ExtentHole == 0)
	dst = append(dst, `, "compressed": false`...)
	if raw {
		dst = append(dst, `, "offset": `...)
		dst = strconv.AppendInt(dst, e.Offset, 10)
	}
	return append(dst, '}')
}

// A mapFormat renders a map piece by piece. put gets each piece, which it must
// not keep.
type mapFormat func(m *hasher.Map, put func([]byte))

func mapText(m *hasher.Map, put func([]byte)) {
	var line []byte
	for _, e := range m.Extents {
		line = appendMapLine(line[:0], e)
		put(line)
	}
}

func mapJSON(raw bool) mapFormat {
	return func(m *hasher.Map, put func([]byte)) {
		line := []byte("[")
		for i, e := range m.Extents {
			line = appendMapJSON(line, e, raw)
			if i < len(m.Extents)-1 {
				line = append(line, ",\n"...)
			}
			put(line)
			line = line[:0]
		}
		put(append(line, "]\n"...))
	}
}

// renderedSize returns how many bytes a map has, in the memory of a line.
func (format mapFormat) renderedSize(m *hasher.Map) (n int64) {
	format(m, func(piece []byte) { n += int64(len(piece)) })
	return n
}

func (format mapFormat) render(m *hasher.Map, size int64) text {
	t := make(text, 0, size)
	format(m, func(piece []byte) { t = append(t, piece...) })
	return t
}

// mapping is what is known of an image's map as it was last looked up.
type mapping struct {
	serial     uint64 // 0 is none yet
	text, json int64  // its sizes in bytes
}

// mapGrace is for how long after its lookup a map may be opened that was
// overtaken since. The two are parts of one open(2), and an image that is
// written to without a pause would never be caught between them. An open
// without a lookup (of /proc/self/fd/N) is another moment's, and far later.
const mapGrace = 100 * time.Millisecond

// lookupMap answers a lookup of map or map.json, whose inode is the map's own:
// it asks the source for the extents, and takes them along in the node.
func (d *imageDir) lookupMap(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	m, err := d.Image.Image.Map(ctx)
	if err != nil {
		return nil, d.m.fail(ctx, d, "look up "+name, err)
	}
	sizes := d.measure(m)
	f := &file{node: node{m: d.m}, d: d, name: name, kind: kindMap, version: m.Serial, size: sizes.text}
	format := mapFormat(mapText)
	if name == "map.json" {
		f.kind, f.size, format = kindMapJSON, sizes.json, d.mapJSON()
	}
	f.open = func(ctx context.Context, f *file) (reader, error) {
		if err := f.checkMap(ctx); err != nil {
			return nil, err
		}
		return format.render(m, f.size), nil
	}
	if child := d.GetChild(name); child != nil {
		if old := child.Operations().(*file); old.version == f.version {
			f = old
		}
	}
	f.looked.Store(time.Now().UnixNano())
	return f.enter(ctx, &d.Inode, d.Image.Image.Geometry(), out), 0
}

func (d *imageDir) mapJSON() mapFormat { return mapJSON(d.Format == "raw") }

// measure returns the sizes of m. They are kept: to stat the map of a
// fragmented image again and again shall not render it each time.
func (d *imageDir) measure(m *hasher.Map) mapping {
	d.mu.Lock()
	known := d.mapping
	d.mu.Unlock()
	if known.serial == m.Serial {
		return known
	}
	known = mapping{m.Serial, mapFormat(mapText).renderedSize(m), d.mapJSON().renderedSize(m)}
	d.mu.Lock()
	d.mapping = known
	d.mu.Unlock()
	return known
}

// checkMap fails with hasher.ErrStale when the map of f is not what an open of
// now may show.
func (f *file) checkMap(ctx context.Context) error {
	if time.Since(time.Unix(0, f.looked.Load())) < mapGrace {
		return nil
	}
	now, err := f.d.Image.Image.Map(ctx)
	if err == nil && now.Serial != f.version {
		err = hasher.ErrStale
	}
	return err
}
