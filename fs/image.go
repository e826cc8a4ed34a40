package fs

import (
	"context"
	"os"
	"sync"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// fileID is the identity of a backing file. Without a backing it is zero.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID {
	if st == nil {
		return fileID{}
	}
	return fileID{st.Dev, st.Ino}
}

// backingVersion counts the files, and lengths of files, that an image has
// been. Each has an inode of its own.
type backingVersion struct {
	id      fileID
	resizes uint64
	version uint64
}

// imageFile is the file image, as long as that is one file of one length. It
// is live: it shows the bytes of now.
//
// An inode is read through the kernel's passthrough or through us, never both:
// the kernel refuses the second with EIO. Which of them is settled at the first
// open.
type imageFile struct {
	node
	d       *imageDir
	id      fileID
	resizes uint64

	// mu guards way.
	mu  sync.Mutex
	way way
}

type way int

const (
	unsettled way = iota
	plain
	passthrough
)

var (
	_ fusefs.NodeGetattrer = (*imageFile)(nil)
	_ fusefs.NodeSetattrer = (*imageFile)(nil)
	_ fusefs.NodeOpener    = (*imageFile)(nil)
	_ fusefs.NodeFsyncer   = (*imageFile)(nil)
)

// lookupImage answers a lookup of image.
func (d *imageDir) lookupImage(ctx context.Context, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	g, st, err := d.look(ctx)
	if err != nil {
		return nil, d.m.fail(ctx, d, "look up image", err)
	}
	now := backingVersion{id: idOf(st), resizes: g.Resizes}
	d.mu.Lock()
	now.version = d.backing.version
	if d.backing != now {
		now.version++
		d.backing = now
	}
	d.mu.Unlock()
	f := &imageFile{node: node{m: d.m}, d: d, id: now.id, resizes: now.resizes}
	f.setAttr(&out.Attr, g, st)
	return d.NewInode(ctx, f, fusefs.StableAttr{
		Mode: fuse.S_IFREG,
		Ino:  ino(d.index, kindImage, now.version),
	}), 0
}

func (f *imageFile) setAttr(out *fuse.Attr, g hasher.Geometry, st *unix.Stat_t) {
	setAttr(out, f.m.ownerOf(st), f.m.imageMode(f.d.Image.Image.Writable()), g.Size, f.d.changed(g))
	if st != nil {
		out.Blocks = uint64(st.Blocks)
	}
}

func (f *imageFile) Getattr(ctx context.Context, fh fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	ctx, cancel := f.m.deadline(ctx)
	defer cancel()
	g, st, err := f.d.look(ctx)
	if err != nil {
		return f.m.fail(ctx, f.d, "stat image", err)
	}
	if idOf(st) == f.id {
		f.setAttr(&out.Attr, g, st)
		return 0
	}
	// Another file has the name by now. Who has this one open by passthrough
	// still reads it.
	passed, ok := fh.(*passedHandle)
	if !ok {
		return syscall.ESTALE
	}
	own, err := passed.stat()
	if err != nil {
		return f.m.fail(ctx, f.d, "stat image", err)
	}
	g.Size, g.ModTime = own.Size, statTime(own)
	f.setAttr(&out.Attr, g, own)
	return 0
}

// Setattr refuses everything but what changes nothing: a truncation of a
// writable image to the size that it has.
func (f *imageFile) Setattr(ctx context.Context, fh fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	const changes = fuse.FATTR_MODE | fuse.FATTR_UID | fuse.FATTR_GID | fuse.FATTR_ATIME
	size, ok := in.GetSize()
	setsTime := in.Valid&fuse.FATTR_MTIME != 0 && in.Valid&fuse.FATTR_MTIME_NOW == 0
	if !ok || in.Valid&changes != 0 || setsTime || !f.d.Image.Image.Writable() {
		return syscall.EPERM
	}
	if errno := f.Getattr(ctx, fh, out); errno != 0 {
		return errno
	}
	if out.Size != size {
		return syscall.EPERM
	}
	return 0
}

// Fsync is the handle's. It must be here: go-fuse asks the node first, and that
// of all other nodes has nothing to do.
func (f *imageFile) Fsync(ctx context.Context, fh fusefs.FileHandle, flags uint32) syscall.Errno {
	h, ok := fh.(fusefs.FileFsyncer)
	if !ok {
		return syscall.EBADF
	}
	return h.Fsync(ctx, flags)
}

func (f *imageFile) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	writable := f.d.Image.Image.Writable()
	if writes(flags) && !writable {
		return nil, 0, syscall.EROFS
	}
	ctx, cancel := f.m.deadline(ctx)
	defer cancel()
	g, st, err := f.d.look(ctx)
	if err != nil {
		return nil, 0, f.m.fail(ctx, f.d, "open image", err)
	}
	if idOf(st) != f.id || g.Resizes != f.resizes {
		return nil, 0, syscall.ESTALE
	}
	if writable {
		return newImageHandle(f), fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES, 0
	}
	file, err := f.passthrough()
	switch {
	case err != nil:
		return nil, 0, f.m.fail(ctx, f.d, "open image", err)
	case file != nil:
		return &passedHandle{newImageHandle(f), file}, 0, 0
	}
	return newImageHandle(f), fuse.FOPEN_DIRECT_IO, 0
}

// passthrough returns the file that the kernel shall read for one open of the
// image, nil if it shall ask us.
func (f *imageFile) passthrough() (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.way == plain {
		return nil, nil
	}
	var file *os.File
	b, ok := f.d.Backing.(PassthroughBacking)
	if ok {
		file, ok = b.PassthroughFile()
	}
	if !ok {
		if f.way == passthrough {
			return nil, hasher.ErrStale // what is served now is another file
		}
		f.way = plain
		return nil, nil
	}
	st, err := fstat(file)
	if err != nil || idOf(st) != f.id {
		file.Close()
		return nil, hasher.ErrStale
	}
	if f.way == unsettled {
		f.way = plain
		if f.m.canPass(file) {
			f.way = passthrough
		}
	}
	if f.way == plain {
		file.Close()
		return nil, nil
	}
	return file, nil
}

// canPass reports whether the kernel takes file for passthrough. go-fuse must
// not be the first to ask: when that is refused once, as it is where we are
// not root, it never passes anything through again, and a file that is open by
// passthrough could not be opened a second time.
func (m *mount) canPass(file *os.File) bool {
	ok := false
	_ = control(file, func(fd uintptr) error {
		id, errno := m.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
		if errno == 0 {
			ok = true
			m.server.UnregisterBackingFd(id)
		}
		return nil
	})
	return ok
}
