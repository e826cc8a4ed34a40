package qemunbd

import (
	"errors"
	"fmt"
	"io"
)

const (
	// maxBackingName is the longest name that QEMU takes, in bytes.
	maxBackingName = 1023

	qcow2HeaderV2 = 72  // bytes
	qcow2HeaderV3 = 104 // bytes, at least

	qcow2ExtEnd     = 0
	qcow2ExtFormat  = 0xe2792aca
	qcow2ExtData    = 0x44415441
	qcow2FeatureExt = 1 << 2 // incompatible feature: external data file
)

// A qcow2Header holds the fields that are needed here.
type qcow2Header struct {
	backingOffset uint64
	backingSize   uint32
	clusterSize   uint64
	size          uint64 // of the disk, bytes
	l1, refcounts table
	snapshots     uint32
	snapshotsAt   uint64
	incompatible  uint64
	length        uint64 // of the header, bytes
}

func readQcow2Header(r io.ReaderAt) (h qcow2Header, err error) {
	p, err := header(r, 0, qcow2HeaderV2)
	if err != nil {
		return h, err
	}
	version, bits := be.Uint32(p[4:]), be.Uint32(p[20:])
	if version != 2 && version != 3 {
		return h, fmt.Errorf("its qcow2 version is %d: 2 and 3 are known", version)
	}
	if bits < 9 || bits > 21 {
		return h, fmt.Errorf("its header is corrupt: clusters of 2^%d bytes", bits)
	}
	h = qcow2Header{
		backingOffset: be.Uint64(p[8:]),
		backingSize:   be.Uint32(p[16:]),
		clusterSize:   1 << bits,
		size:          be.Uint64(p[24:]),
		l1:            table{be.Uint64(p[40:]), 8 * uint64(be.Uint32(p[36:]))},
		refcounts:     table{be.Uint64(p[48:]), uint64(be.Uint32(p[56:])) << bits},
		snapshots:     be.Uint32(p[60:]),
		snapshotsAt:   be.Uint64(p[64:]),
		length:        qcow2HeaderV2,
	}
	if version == 3 {
		if p, err = header(r, 0, qcow2HeaderV3); err != nil {
			return h, err
		}
		h.incompatible = be.Uint64(p[72:])
		h.length = uint64(be.Uint32(p[100:]))
		if h.length < qcow2HeaderV3 || h.length > h.clusterSize {
			return h, fmt.Errorf("its header is corrupt: a length of %d bytes", h.length)
		}
	}
	return h, nil
}

func qcow2Links(r io.ReaderAt, size int64) (l links, err error) {
	h, err := readQcow2Header(r)
	if err != nil {
		return l, err
	}
	for _, t := range []table{h.l1, h.refcounts} {
		if err := t.within(size); err != nil {
			return l, err
		}
	}
	end := h.clusterSize
	if h.backingOffset != 0 {
		end = h.backingOffset
		if end > h.clusterSize || uint64(h.backingSize) > h.clusterSize-end || h.backingSize > maxBackingName {
			return l, fmt.Errorf("its header is corrupt: a backing file name of %d bytes at %d", h.backingSize, h.backingOffset)
		}
		name, err := header(r, int64(h.backingOffset), int(h.backingSize))
		if err != nil {
			return l, err
		}
		l.backing = string(name)
	}
	if err := l.qcow2Extensions(r, h.length, end); err != nil {
		return l, err
	}
	if h.incompatible&qcow2FeatureExt == 0 {
		l.data = "" // QEMU does not look at the name either
	} else if l.data == "" {
		return l, errors.New("it has an external data file, but its header does not say which")
	}
	return l, nil
}

// qcow2Extensions reads the header extensions in [off, end).
func (l *links) qcow2Extensions(r io.ReaderAt, off, end uint64) error {
	for off+8 <= end {
		p, err := header(r, int64(off), 8)
		if err != nil {
			return err
		}
		kind, length := be.Uint32(p), uint64(be.Uint32(p[4:]))
		off += 8
		if kind == qcow2ExtEnd {
			return nil
		}
		if length > end-off {
			return fmt.Errorf("its header is corrupt: an extension of %d bytes at %d", length, off)
		}
		if kind == qcow2ExtFormat || kind == qcow2ExtData {
			p, err := header(r, int64(off), int(length))
			if err != nil {
				return err
			}
			if kind == qcow2ExtFormat {
				l.backingFormat = string(p)
			} else {
				l.data = string(p)
			}
		}
		off += (length + 7) &^ 7
	}
	return nil
}

// qcowLinks reads the header of the first qcow format.
func qcowLinks(r io.ReaderAt) (links, error) {
	p, err := header(r, 0, 48)
	if err != nil {
		return links{}, err
	}
	if be.Uint64(p[8:]) != 0 {
		return links{}, fmt.Errorf("it has a backing file, and %w", errCannotSay)
	}
	return links{}, nil
}

const (
	qedBacking = 1 << 0 // feature: there is a backing file
	qedNoProbe = 1 << 2 // feature: the backing file is raw
)

// qedLinks reads the header of QEMU Enhanced Disk (docs/interop/qed_spec.txt).
func qedLinks(r io.ReaderAt) (l links, err error) {
	p, err := header(r, 0, 64)
	if err != nil {
		return l, err
	}
	features := le.Uint64(p[16:])
	if features&qedBacking == 0 {
		return l, nil
	}
	if features&qedNoProbe == 0 {
		return l, fmt.Errorf("it has a backing file that is not raw, and %w", errCannotSay)
	}
	at, n := le.Uint32(p[56:]), le.Uint32(p[60:])
	if n > maxBackingName {
		return l, fmt.Errorf("its header is corrupt: a backing file name of %d bytes", n)
	}
	name, err := header(r, int64(at), int(n))
	if err != nil {
		return l, err
	}
	return links{backing: string(name), backingFormat: formatRaw}, nil
}
