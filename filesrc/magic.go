package filesrc

import (
	"bytes"
	"encoding/binary"
	"io"
)

// A signature is bytes by which a format is known, at a fixed place.
type signature struct {
	format string
	offset int64 // bytes from the start, or from the end when negative
	magic  string
}

// Places and values are those of each format's published specification; the
// version number of qcow and qcow2, which share theirs, is read apart.
var signatures = []signature{
	{"qcow2", 0, "QFI\xfb"},
	{"vmdk", 0, "KDMV"},                  // hosted sparse extent
	{"vmdk", 0, "COWD"},                  // ESX sparse extent
	{"vmdk", 0, "# Disk DescriptorFile"}, // text that names the extents
	{"vhdx", 0, "vhdxfile"},
	{"vdi", 0x40, "\x7f\x10\xda\xbe"},
	{"vhd", 0, "conectix"},    // dynamic: a copy of the footer
	{"vhd", -512, "conectix"}, // fixed: the footer alone
}

// LooksLike names the format that the content of the regular file at path
// announces: qcow, qcow2, vmdk, vhdx, vdi or vhd; else it is "", and also when
// the file cannot be read. It is for warnings: a guest can write any of these
// into a raw image. LUKS is no image format here.
func LooksLike(path string) string {
	f, err := Open(path, Options{})
	if err != nil {
		return ""
	}
	defer f.Close()
	return detect(scanned{f}, f.Size())
}

// scanned is a File read such that the page cache stays as it is.
type scanned struct{ *File }

func (s scanned) ReadAt(p []byte, off int64) (int, error) { return s.ScanAt(p, off, true) }

func detect(r io.ReaderAt, size int64) string {
	for _, s := range signatures {
		at := s.offset
		if at < 0 {
			at += size
		}
		if at < 0 || !bytes.Equal(peek(r, at, len(s.magic)), []byte(s.magic)) {
			continue
		}
		if s.format == "qcow2" {
			return qcowVersion(r)
		}
		return s.format
	}
	return ""
}

// qcowVersion tells qcow, whose version is 1, from its successor.
func qcowVersion(r io.ReaderAt) string {
	v := peek(r, 4, 4)
	switch {
	case len(v) < 4:
		return ""
	case binary.BigEndian.Uint32(v) == 1:
		return "qcow"
	}
	return "qcow2"
}

// peek returns up to n bytes at off, fewer at the end or after an error.
func peek(r io.ReaderAt, off int64, n int) []byte {
	p := make([]byte, n)
	n, _ = r.ReadAt(p, off)
	return p[:n]
}
