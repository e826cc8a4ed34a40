package qemunbd

import (
	"errors"
	"fmt"
	"io"
)

var errDifferencing = errors.New("it is a differencing image, whose parent qemu does not read: make it a plain one with the program that made it")

const (
	footerSize      = 512 // of a vpc image, bytes
	vpcDifferencing = 4

	vdiTypeAt   = 0x4c
	vdiMapAt    = 0x154 // where the block map is
	vdiBlocksAt = 0x180 // how many entries of four bytes it has
	vdiDynamic  = 1
	vdiStatic   = 2

	vhdxRegions    = 192 << 10 // where the first region table is
	vhdxMaxEntries = 2047      // of a table
	vhdxHasParent  = 1 << 1    // of the file parameters' flags
)

// GUIDs in the order in which they are stored.
const (
	guidMetadata       = "\x06\xa2\x7c\x8b\x90\x47\x9a\x4b\xb8\xfe\x57\x5f\x05\x0f\x88\x6e"
	guidFileParameters = "\x37\x67\xa1\xca\x36\xfa\x43\x4d\xb3\xb6\x33\xf0\xaa\x44\xe7\x6b"
)

// checkVHDX refuses differencing images. Whatever else is wrong is for QEMU to
// find: it follows no parent of a vhdx.
func checkVHDX(r io.ReaderAt) error {
	p, err := header(r, vhdxRegions, 16)
	if err != nil {
		return err
	}
	if string(p[:4]) != "regi" {
		return errors.New("its header is corrupt: there is no region table")
	}
	metadata := int64(-1)
	if err := vhdxEntries(r, vhdxRegions+16, le.Uint32(p[8:]), func(e []byte) {
		if string(e[:16]) == guidMetadata {
			metadata = int64(le.Uint64(e[16:]))
		}
	}); err != nil {
		return err
	}
	if metadata < 0 {
		return errors.New("its header is corrupt: there is no metadata region")
	}
	if p, err = header(r, metadata, 32); err != nil {
		return err
	}
	params := int64(-1)
	if err := vhdxEntries(r, metadata+32, uint32(le.Uint16(p[10:])), func(e []byte) {
		if string(e[:16]) == guidFileParameters {
			params = metadata + int64(le.Uint32(e[16:]))
		}
	}); err != nil {
		return err
	}
	if params < 0 {
		return errors.New("its header is corrupt: there are no file parameters")
	}
	if p, err = header(r, params, 8); err != nil {
		return err
	}
	if le.Uint32(p[4:])&vhdxHasParent != 0 {
		return errDifferencing
	}
	return nil
}

// vhdxEntries calls each for the n entries of a table, which begin at off.
func vhdxEntries(r io.ReaderAt, off int64, n uint32, each func([]byte)) error {
	if n > vhdxMaxEntries {
		return fmt.Errorf("its header is corrupt: a table of %d entries", n)
	}
	p, err := header(r, off, int(n)*32)
	if err != nil {
		return err
	}
	for ; len(p) > 0; p = p[32:] {
		each(p[:32])
	}
	return nil
}

func checkVDI(r io.ReaderAt, size int64) error {
	p, err := header(r, vdiTypeAt, 4)
	if err != nil {
		return err
	}
	if kind := le.Uint32(p); kind != vdiDynamic && kind != vdiStatic {
		return fmt.Errorf("its vdi type is %d, neither dynamic nor static: %w", kind, errDifferencing)
	}
	if p, err = header(r, vdiMapAt, vdiBlocksAt+4-vdiMapAt); err != nil {
		return err
	}
	return table{uint64(le.Uint32(p)), 4 * uint64(le.Uint32(p[vdiBlocksAt-vdiMapAt:]))}.within(size)
}

func checkVPC(r io.ReaderAt, size int64) error {
	for _, at := range []int64{0, size - footerSize} {
		if p := peek(r, at, 64); len(p) == 64 && string(p[:8]) == "conectix" && be.Uint32(p[60:]) == vpcDifferencing {
			return errDifferencing
		}
	}
	return nil
}
