package qemunbd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// formats are those that can be served, by the names of QEMU's drivers.
var formats = []string{"qcow2", "vmdk", "vhdx", "vdi", "vpc", "qed", "qcow", "parallels", "bochs", "cloop"}

// formatRaw is a format of backing files only: alone it needs no qemu-nbd.
const formatRaw = "raw"

// suffixes that decide the format where none is given.
var suffixes = []string{"qcow2", "vmdk", "vhdx", "vdi"}

// Formats returns the formats that Start can serve.
func Formats() []string { return slices.Clone(formats) }

// Known reports whether format is one that Start can serve.
func Known(format string) bool { return slices.Contains(formats, driver(format)) }

// driver returns QEMU's name of a format: vhd is vpc there.
func driver(format string) string {
	if format == "vhd" {
		return "vpc"
	}
	return format
}

// FormatOf returns the format that the suffix of path means, "" if it means
// none. The content is not looked at: a guest could have written it.
func FormatOf(path string) string {
	suffix := strings.TrimPrefix(filepath.Ext(path), ".")
	if slices.Contains(suffixes, suffix) {
		return suffix
	}
	return ""
}

func chooseFormat(path, given string) (string, error) {
	format := given
	if format == "" {
		format = FormatOf(path)
	}
	switch {
	case format == "":
		return "", fmt.Errorf("open %s: its name says no format: give format=, one of %s", show(path), strings.Join(formats, ", "))
	case !Known(format):
		return "", fmt.Errorf("open %s: format %q is unknown: there are %s", show(path), format, strings.Join(formats, ", "))
	}
	return driver(format), nil
}

// A signature is bytes by which a format is known, at an offset from the start.
type signature struct {
	format string
	offset int64
	magic  string
}

var signatures = []signature{
	{"qcow", 0, "QFI\xfb\x00\x00\x00\x01"},
	{"qcow2", 0, "QFI\xfb"},
	{"vmdk", 0, "KDMV"},
	{"vmdk", 0, "COWD"},
	{"vmdk", 0, "# Disk DescriptorFile"},
	{"vhdx", 0, "vhdxfile"},
	{"vdi", 0x40, "\x7f\x10\xda\xbe"},
	{"vpc", 0, "conectix"},
	{"qed", 0, "QED\x00"},
}

// checkMagic fails unless r has a magic of format. Formats that have none here
// are left to QEMU. A fixed vpc has its only magic at the end.
func checkMagic(r io.ReaderAt, size int64, format string) error {
	known, found := false, ""
	for _, s := range signatures {
		known = known || s.format == format
		if found == "" && bytes.Equal(peek(r, s.offset, len(s.magic)), []byte(s.magic)) {
			found = s.format
		}
	}
	if found == "" && bytes.Equal(peek(r, size-footerSize, 8), []byte("conectix")) {
		found = "vpc"
	}
	if found != format && known {
		return &magicError{format: format, found: found}
	}
	return nil
}

// A magicError says that a file is not of the format that it was taken for.
type magicError struct {
	format string // expected
	found  string // "" is none that is known
}

func (e *magicError) Error() string {
	if e.found == "" {
		return "it has not the magic of " + e.format
	}
	return fmt.Sprintf("it is taken for %s, but its magic says %s", e.format, e.found)
}

// peek returns the n bytes at off, fewer where there are not so many or they
// cannot be read.
func peek(r io.ReaderAt, off int64, n int) []byte {
	if off < 0 {
		return nil
	}
	p := make([]byte, n)
	n, _ = r.ReadAt(p, off)
	return p[:n]
}

// header returns exactly n bytes at off.
func header(r io.ReaderAt, off int64, n int) ([]byte, error) {
	p := make([]byte, n)
	if got, err := r.ReadAt(p, off); got < n {
		if err == io.EOF {
			return nil, fmt.Errorf("its header is cut off: %d bytes at %d are missing", n-got, off+int64(got))
		}
		return nil, fmt.Errorf("read its header: %w", err)
	}
	return p, nil
}

var be, le = binary.BigEndian, binary.LittleEndian
