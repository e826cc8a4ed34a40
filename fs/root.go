package fs

import (
	"context"
	"os"
	"strconv"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// cacheTag marks the mount for backup tools, as https://bford.info/cachedir/
// has it: the first line is what they look for.
const cacheTag = `Signature: 8a477f597d28d172789f06886806bc55
# This file marks a directory that backups may leave out.
# What hashfs shows here is computed from the images that it serves.
`

const tagName = "CACHEDIR.TAG"

// controlName is the directory of the mount itself. No image has that name.
const controlName = ".hashfs"

// rootDir is the root: a directory for each image, and the mount's own files.
type rootDir struct {
	dirNode
}

var (
	_ fusefs.NodeOnAdder   = (*rootDir)(nil)
	_ fusefs.NodeLookuper  = (*rootDir)(nil)
	_ fusefs.NodeGetattrer = (*rootDir)(nil)
	_ fusefs.NodeReaddirer = (*rootDir)(nil)
)

// OnAdd builds all that is there as long as the mount is.
func (r *rootDir) OnAdd(ctx context.Context) {
	m := r.m
	for _, d := range m.images {
		r.AddChild(d.Name, r.NewPersistentInode(ctx, d, dirAttr(ino(d.index, kindDir, 0))), false)
		d.addChildren(ctx)
	}
	tag := &staticFile{node: node{m: m}, name: tagName, size: len(cacheTag), render: constant(cacheTag)}
	r.addFile(ctx, tag, tagIno)

	control := &controlDir{dirNode{node{m: m}}}
	r.AddChild(controlName, r.NewPersistentInode(ctx, control, dirAttr(controlIno)), false)
	version := m.o.Version + "\n"
	control.addFile(ctx, &staticFile{node: node{m: m}, name: "version", size: len(version), render: constant(version)}, versionIno)
	pid := strconv.Itoa(os.Getpid()) + "\n"
	control.addFile(ctx, &staticFile{node: node{m: m}, name: "pid", size: len(pid), render: constant(pid)}, pidIno)
	control.addFile(ctx, &staticFile{node: node{m: m}, name: "metrics", size: m.metrics.size, render: m.metrics.render, live: new(liveTime)}, metricsIno)
}

func dirAttr(ino uint64) fusefs.StableAttr {
	return fusefs.StableAttr{Mode: fuse.S_IFDIR, Ino: ino}
}

func (n *dirNode) addFile(ctx context.Context, f *staticFile, ino uint64) {
	n.AddChild(f.name, n.NewPersistentInode(ctx, f, fusefs.StableAttr{Mode: fuse.S_IFREG, Ino: ino}), false)
}

func (r *rootDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return r.lookupChild(ctx, name, out)
}

func (r *rootDir) Getattr(ctx context.Context, f fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	setDirAttr(&out.Attr, r.m.own, r.m.dirMode(), len(r.m.images)+1, r.m.started)
	out.SetTimeout(dirTimeout)
	return 0
}

func (r *rootDir) Readdir(ctx context.Context) (fusefs.DirStream, syscall.Errno) {
	var entries []fuse.DirEntry
	for _, d := range r.m.images {
		entries = append(entries, fuse.DirEntry{Name: d.Name, Mode: fuse.S_IFDIR, Ino: ino(d.index, kindDir, 0)})
	}
	return r.stream(append(entries,
		fuse.DirEntry{Name: tagName, Mode: fuse.S_IFREG, Ino: tagIno},
		fuse.DirEntry{Name: controlName, Mode: fuse.S_IFDIR, Ino: controlIno})), 0
}

// commonOwner returns who the root and the mount's own files belong to: the
// owner of all images if that is one, who could not come to them otherwise.
func (m *mount) commonOwner() owner {
	common := m.ownerOf(nil)
	for i, d := range m.images {
		o := d.owner()
		if i > 0 && o != common {
			return m.ownerOf(nil)
		}
		common = o
	}
	return common
}

// controlDir is the directory .hashfs. The file pid is not listed.
type controlDir struct {
	dirNode
}

var (
	_ fusefs.NodeLookuper  = (*controlDir)(nil)
	_ fusefs.NodeGetattrer = (*controlDir)(nil)
	_ fusefs.NodeReaddirer = (*controlDir)(nil)
)

func (c *controlDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return c.lookupChild(ctx, name, out)
}

func (c *controlDir) Getattr(ctx context.Context, f fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	setDirAttr(&out.Attr, c.m.own, c.m.dirMode(), 0, c.m.started)
	out.SetTimeout(dirTimeout)
	return 0
}

func (c *controlDir) Readdir(ctx context.Context) (fusefs.DirStream, syscall.Errno) {
	return c.stream([]fuse.DirEntry{
		{Name: "version", Mode: fuse.S_IFREG, Ino: versionIno},
		{Name: "metrics", Mode: fuse.S_IFREG, Ino: metricsIno},
	}), 0
}

// staticFile is a file of the mount itself.
type staticFile struct {
	node
	name   string
	size   int
	render func() ([]byte, error) // size bytes
	live   *liveTime              // nil for one that never changes
}

var (
	_ fusefs.NodeGetattrer = (*staticFile)(nil)
	_ fusefs.NodeOpener    = (*staticFile)(nil)
)

func constant(s string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(s), nil }
}

func (f *staticFile) Getattr(ctx context.Context, fh fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	changed := f.m.started
	if f.live != nil {
		changed = f.live.get()
	}
	setAttr(&out.Attr, f.m.own, f.m.fileMode(), int64(f.size), changed)
	return 0
}

func (f *staticFile) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if writes(flags) {
		return nil, 0, syscall.EACCES
	}
	content, err := f.render()
	if err != nil {
		return nil, 0, f.m.fail(ctx, nil, "open "+f.name, err)
	}
	return f.m.newHandle(&handle{r: text(content), name: f.name, live: f.live}), openFlags, 0
}

// writes reports whether open(2) with flags asks for more than reading.
func writes(flags uint32) bool {
	return flags&syscall.O_ACCMODE != syscall.O_RDONLY || flags&syscall.O_TRUNC != 0
}
