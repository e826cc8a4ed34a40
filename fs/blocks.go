package fs

import (
	"context"
	"strconv"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/hasher"
)

const blockNameLen = 16

// appendBlockName appends the name of the block at off: 16 lower case hex
// digits.
func appendBlockName(dst []byte, off int64) []byte {
	const digits = "0123456789abcdef"
	for shift := 4 * (blockNameLen - 1); shift >= 0; shift -= 4 {
		dst = append(dst, digits[off>>shift&15])
	}
	return dst
}

// parseBlockName returns the offset of the block that is called name in an
// image of size bytes, and whether there is one.
func parseBlockName(name string, size, blockSize int64) (off int64, ok bool) {
	if len(name) != blockNameLen {
		return 0, false
	}
	for i := range len(name) {
		if c := name[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(name, 16, 63)
	if err != nil {
		return 0, false
	}
	off = int64(n)
	return off, off < size && off%blockSize == 0
}

// blocksDir is the directory blocks: a file for each block, none of them
// listed.
type blocksDir struct {
	dirNode
	d *imageDir
}

var (
	_ fusefs.NodeLookuper  = (*blocksDir)(nil)
	_ fusefs.NodeGetattrer = (*blocksDir)(nil)
	_ fusefs.NodeReaddirer = (*blocksDir)(nil)
)

func (b *blocksDir) Getattr(ctx context.Context, f fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	setDirAttr(&out.Attr, b.d.owner(), b.m.dirMode(), 0, b.d.changed(b.d.Image.Image.Geometry()))
	return 0
}

func (b *blocksDir) Readdir(ctx context.Context) (fusefs.DirStream, syscall.Errno) {
	return b.stream(nil), 0
}

func (b *blocksDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	ctx, cancel := b.m.deadline(ctx)
	defer cancel()
	g, err := b.d.Image.Image.Refresh(ctx)
	if err != nil {
		return nil, b.m.fail(ctx, b.d, "look up blocks/"+name, err)
	}
	blockSize := int64(b.d.Image.Image.Spec().BlockSize)
	off, ok := parseBlockName(name, g.Size, blockSize)
	if !ok {
		return nil, syscall.ENOENT
	}
	f := &file{
		node:    node{m: b.m},
		d:       b.d,
		name:    "blocks/" + name,
		kind:    kindBlock,
		version: g.Resizes<<32 | uint64(off/blockSize),
		resizes: g.Resizes,
		size:    min(blockSize, g.Size-off),
		open: func(ctx context.Context, f *file) (reader, error) {
			return b.d.openBlock(ctx, f, off)
		},
	}
	b.m.forget.later(&b.Inode, name)
	return f.enter(ctx, &b.Inode, g, out), 0
}

// block is an open block. It is live.
type block struct {
	im        *hasher.Image
	off, size int64
}

func (d *imageDir) openBlock(ctx context.Context, f *file, off int64) (reader, error) {
	if _, err := f.current(ctx); err != nil {
		return nil, err
	}
	return &block{d.Image.Image, off, f.size}, nil
}

func (b *block) readAt(ctx context.Context, dest []byte, off int64) (int, error) {
	n := min(int64(len(dest)), b.size-off)
	if n <= 0 {
		return 0, nil
	}
	return b.im.ReadAt(ctx, dest[:n], b.off+off)
}

func (b *block) close() {}
