package qemunbd

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// links are what a header says about other files.
type links struct {
	backing       string // name of the backing file or parent, "" is none
	backingFormat string // "" is none recorded
	data          string // name of an external data file, "" is none
	desc          *descriptor
}

// errCannotSay is for formats that record no backing format at all.
var errCannotSay = errors.New("this format cannot record the format of a backing file, so qemu would guess it from what a guest can write: make it qcow2 with qemu-img convert")

// readLinks reads the header of an image of size bytes in the given format.
func readLinks(r io.ReaderAt, size int64, format string) (links, error) {
	if format == formatRaw {
		return links{}, nil
	}
	if err := checkMagic(r, size, format); err != nil {
		return links{}, err
	}
	var l links
	var err error
	switch format {
	case "qcow2":
		l, err = qcow2Links(r, size)
	case "qcow":
		l, err = qcowLinks(r)
	case "qed":
		l, err = qedLinks(r)
	case "vmdk":
		l, err = vmdkLinks(r)
	case "vhdx":
		err = checkVHDX(r)
	case "vdi":
		err = checkVDI(r, size)
	case "vpc":
		err = checkVPC(r, size)
	}
	if err != nil {
		return links{}, err
	}
	for _, name := range []string{l.backing, l.data} {
		if strings.ContainsRune(name, 0) {
			return links{}, fmt.Errorf("the file name %q in its header has a NUL byte", name)
		}
	}
	return l, nil
}

// A table is where a header says that a table is: bytes.
type table struct{ offset, length uint64 }

// within fails if a file of that size lacks a part of the table. QEMU would take
// that for zeros, and what it leads to for a hole.
func (t table) within(size int64) error {
	if end := t.offset + t.length; end < t.offset || end > uint64(size) {
		return fmt.Errorf("its header is corrupt, or it is cut off: it has %d bytes, and a table of %d should be at %d", size, t.length, t.offset)
	}
	return nil
}

// fileName returns the path that a name in a header means to QEMU, or with its
// colon the protocol that it means: a colon before any slash makes one.
func fileName(name string) (path, protocol string) {
	i := strings.IndexAny(name, ":/")
	if i < 0 || name[i] == '/' {
		return name, ""
	}
	if name[:i] == "file" {
		return name[i+1:], ""
	}
	return "", name[:i+1]
}
