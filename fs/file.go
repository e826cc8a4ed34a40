package fs

import (
	"context"
	"sync/atomic"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/hasher"
)

// file is a virtual file of an image. Its size never changes: when that of its
// content does, the name leads to another one.
type file struct {
	node
	d       *imageDir
	name    string
	kind    kind
	version uint64    // the low part of the inode number
	resizes uint64    // of the image that this file belongs to
	size    int64     // bytes
	live    *liveTime // nil for one that changes with its image

	// looked is when a map was last looked up, in nanoseconds since 1970.
	looked atomic.Int64

	// open returns the content. It fails with hasher.ErrStale when that is
	// not what the size is of.
	open func(ctx context.Context, f *file) (reader, error)
}

var (
	_ fusefs.NodeGetattrer = (*file)(nil)
	_ fusefs.NodeOpener    = (*file)(nil)
)

// enter makes the file the answer of a lookup in dir: the file itself, or the
// one that has been there under its number.
func (f *file) enter(ctx context.Context, dir *fusefs.Inode, g hasher.Geometry, out *fuse.EntryOut) *fusefs.Inode {
	f.setAttr(&out.Attr, g)
	return dir.NewInode(ctx, f, fusefs.StableAttr{
		Mode: fuse.S_IFREG,
		Ino:  ino(f.d.index, f.kind, f.version),
		Gen:  f.resizes,
	})
}

// current returns the geometry of the image, or hasher.ErrStale when that is of
// another length than the one that f is a file of.
func (f *file) current(ctx context.Context) (hasher.Geometry, error) {
	g, err := f.d.Image.Image.Refresh(ctx)
	if err == nil && g.Resizes != f.resizes {
		err = hasher.ErrStale
	}
	return g, err
}

func (f *file) setAttr(out *fuse.Attr, g hasher.Geometry) {
	changed := f.d.changed(g)
	if f.live != nil {
		changed = f.live.get()
	}
	setAttr(out, f.d.owner(), f.m.fileMode(), f.size, changed)
}

func (f *file) Getattr(ctx context.Context, fh fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	ctx, cancel := f.m.deadline(ctx)
	defer cancel()
	g, err := f.d.Image.Image.Refresh(ctx)
	if err != nil && f.kind != kindInfo {
		return f.m.fail(ctx, f.d, "stat "+f.name, err)
	}
	f.setAttr(&out.Attr, g)
	return 0
}

func (f *file) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if writes(flags) {
		return nil, 0, syscall.EACCES
	}
	ctx, cancel := f.m.deadline(ctx)
	defer cancel()
	r, err := f.open(ctx, f)
	if err != nil {
		return nil, 0, f.m.fail(ctx, f.d, "open "+f.name, err)
	}
	return f.m.newHandle(&handle{d: f.d, r: r, name: f.name, live: f.live}), openFlags, 0
}
