package qemunbd

import (
	"fmt"
	"io"
	"strings"
)

const (
	maxSnapshots     = 65536 // QEMU's limit
	maxSnapshotExtra = 1024  // bytes, QEMU's limit
)

// A snapshot is an internal one, as the snapshot table of a qcow2 has it.
type snapshot struct {
	id, name string
	size     uint64 // of the disk, bytes
}

// findSnapshot returns the snapshot with that name, else the one with that ID.
func findSnapshot(r io.ReaderAt, name string) (snapshot, error) {
	h, err := readQcow2Header(r)
	if err != nil {
		return snapshot{}, err
	}
	all, err := readSnapshots(r, h)
	if err != nil {
		return snapshot{}, err
	}
	var found *snapshot
	var names []string
	for i, s := range all {
		names = append(names, s.name)
		if s.name == name && (found == nil || found.name != name) || s.id == name && found == nil {
			found = &all[i]
		}
	}
	switch {
	case found == nil && len(all) == 0:
		return snapshot{}, fmt.Errorf("it has no snapshot %q, nor any other", name)
	case found == nil:
		return snapshot{}, fmt.Errorf("it has no snapshot %q: there are %s", name, strings.Join(names, ", "))
	case found.size != h.size:
		// QEMU would show it at the size of today.
		return snapshot{}, fmt.Errorf("the disk had %d bytes at snapshot %q and has %d now, which qemu-nbd cannot show: apply the snapshot in a copy (qemu-img snapshot -a)",
			found.size, name, h.size)
	}
	return *found, nil
}

func readSnapshots(r io.ReaderAt, h qcow2Header) ([]snapshot, error) {
	if h.snapshots > maxSnapshots {
		return nil, fmt.Errorf("its header is corrupt: %d snapshots", h.snapshots)
	}
	var all []snapshot
	off := int64(h.snapshotsAt)
	for range h.snapshots {
		p, err := header(r, off, 40)
		if err != nil {
			return nil, err
		}
		idLen, nameLen := int(be.Uint16(p[12:])), int(be.Uint16(p[14:]))
		extra := be.Uint32(p[36:])
		if extra > maxSnapshotExtra {
			return nil, fmt.Errorf("its snapshot table is corrupt at %d", off)
		}
		rest, err := header(r, off+40, int(extra)+idLen+nameLen)
		if err != nil {
			return nil, err
		}
		s := snapshot{size: h.size}
		if extra >= 16 {
			s.size = be.Uint64(rest[8:])
		}
		rest = rest[extra:]
		s.id, s.name = string(rest[:idLen]), string(rest[idLen:])
		all = append(all, s)
		off += (40 + int64(extra) + int64(idLen+nameLen) + 7) &^ 7
	}
	return all, nil
}
