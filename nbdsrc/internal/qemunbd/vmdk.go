package qemunbd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

const (
	// maxDescriptor is the most of a text descriptor that QEMU reads, in bytes.
	maxDescriptor = 1<<20 - 1

	// Where QEMU looks for the descriptor within a sparse extent, and for
	// how long, in bytes.
	vmdkDescAt  = 0x200
	vmdkDescLen = 20 * 512

	maxExtents = 200
)

// A descriptor is the text of a VMDK that consists of extents in other files.
type descriptor struct {
	cid, parentCID string // hexadecimal
	createType     string
	extents        []extent
}

// An extent is a line of a descriptor.
type extent struct {
	sectors uint64
	kind    string // FLAT, SPARSE and so on
	name    string
	offset  string // sectors, "" is none given
}

func (e *extent) flat() bool { return e.kind == "FLAT" || e.kind == "VMFS" }

func vmdkLinks(r io.ReaderAt) (l links, err error) {
	magic := peek(r, 0, 4)
	if string(magic) == "KDMV" || string(magic) == "COWD" {
		if err := checkSparse(r); err != nil {
			return l, err
		}
		l.backing, err = parentHint(peek(r, vmdkDescAt, vmdkDescLen))
	} else {
		text := peek(r, 0, maxDescriptor+1)
		if len(text) > maxDescriptor {
			return l, errors.New("its descriptor is longer than 1 MiB")
		}
		if l.backing, err = parentHint(text); err == nil {
			l.desc, err = parseDescriptor(text)
		}
	}
	l.backingFormat = "vmdk" // nothing else can be a VMDK's parent
	return l, err
}

// checkSparse refuses a sparse extent that leads to further files: with a
// capacity of 0 its descriptor is one of extents to QEMU.
func checkSparse(r io.ReaderAt) error {
	p, err := header(r, 0, 20)
	if err != nil {
		return err
	}
	if string(p[:4]) == "KDMV" && le.Uint64(p[12:]) == 0 {
		return errors.New("its sparse header has a capacity of 0, and so may name further extents: that is not supported")
	}
	return nil
}

// parentHint finds the name of the parent as QEMU does: wherever it stands, and
// whatever parentCID says.
func parentHint(text []byte) (string, error) {
	text, _, _ = bytes.Cut(text, []byte{0})
	key := []byte("parentFileNameHint")
	i := bytes.Index(text, key)
	if i < 0 {
		return "", nil
	}
	rest := text[i+len(key):]
	if !bytes.HasPrefix(rest, []byte(`="`)) {
		return "", errors.New("its descriptor is corrupt: parentFileNameHint is not followed by =\"NAME\"")
	}
	name, _, ok := bytes.Cut(rest[2:], []byte{'"'})
	if !ok || len(name) > maxBackingName {
		return "", errors.New("its descriptor is corrupt: parentFileNameHint has no end")
	}
	return string(name), nil
}

// pattern returns a function that compiles an expression at its first call. At
// the start of the program these would take it 1 ms, and few see a VMDK.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var (
	descLine   = pattern(`^\s*(\w+)\s*=\s*"?([^"]*)"?\s*$`)
	extentLine = pattern(`^(RW|RDONLY|NOACCESS)\s+([0-9]+)\s+(\w+)(?:\s+"([^"]*)"(?:\s+([0-9]+))?)?`)
	hexNumber  = pattern(`^[0-9a-fA-F]{1,8}$`)
	word       = pattern(`^\w{1,64}$`)
)

// parseDescriptor reads a descriptor line by line. What QEMU would pass over,
// so that the disk came out shorter than it is, is refused.
func parseDescriptor(text []byte) (*descriptor, error) {
	d := new(descriptor)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n \t\x00")
		if m := extentLine().FindStringSubmatch(line); m != nil {
			e := extent{kind: m[3], name: m[4], offset: m[5]}
			var err error
			if e.sectors, err = strconv.ParseUint(m[2], 10, 54); err != nil || e.sectors == 0 {
				return nil, fmt.Errorf("its descriptor is corrupt: extent of %s sectors", m[2])
			}
			if m[1] != "RW" || !e.supported() {
				return nil, fmt.Errorf("its extent %q is of a kind that qemu leaves out", line)
			}
			d.extents = append(d.extents, e)
		} else if m := descLine().FindStringSubmatch(line); m != nil {
			switch m[1] {
			case "CID":
				d.cid = m[2]
			case "parentCID":
				d.parentCID = m[2]
			case "createType":
				d.createType = m[2]
			}
		}
	}
	switch {
	case !hexNumber().MatchString(d.cid) || !hexNumber().MatchString(d.parentCID) || !word().MatchString(d.createType):
		return nil, errors.New("its descriptor is corrupt: CID, parentCID and createType are needed")
	case len(d.extents) == 0:
		return nil, errors.New("its descriptor names no extents")
	case len(d.extents) > maxExtents:
		return nil, fmt.Errorf("it has %d extents: at most %d are served", len(d.extents), maxExtents)
	}
	return d, nil
}

func (e *extent) supported() bool {
	if e.name == "" || len(e.name) > 511 || strings.ContainsRune(e.name, 0) {
		return false
	}
	switch e.kind {
	case "FLAT":
		return e.offset != ""
	case "VMFS", "SPARSE", "VMFSSPARSE", "SESPARSE":
		return e.offset == ""
	}
	return false
}

// text returns a descriptor with other names for the extents, and nothing in it
// but what was read from the original.
func (d *descriptor) text(names []string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Disk DescriptorFile\nversion=1\nCID=%s\nparentCID=%s\ncreateType=%q\n\n# Extent description\n",
		d.cid, d.parentCID, d.createType)
	for i, e := range d.extents {
		fmt.Fprintf(&b, "RW %d %s \"%s\" %s\n", e.sectors, e.kind, names[i], e.offset)
	}
	return b.Bytes()
}

var cidLine = pattern(`(?m)^CID=([0-9a-fA-F]{1,8})\b`)

// A patch is what has to be written into a descriptor.
type patch struct {
	offset int64
	text   string
}

// cidPatch returns what gives the descriptor old the content ID of ours, which
// QEMU changes at the first write so that images over this one can tell. The
// digits keep their number: an ID only has to be another one.
func cidPatch(old, ours []byte) (patch, bool) {
	at, now := cidLine().FindSubmatchIndex(old), cidLine().FindSubmatch(ours)
	if at == nil || now == nil {
		return patch{}, false
	}
	was := string(old[at[2]:at[3]])
	text := fmt.Sprintf("%08s", now[1])
	text = text[8-len(was):]
	return patch{int64(at[2]), text}, !strings.EqualFold(was, text)
}
