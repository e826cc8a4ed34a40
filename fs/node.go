package fs

import (
	"context"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is what all nodes are made of.
type node struct {
	fusefs.Inode
	m *mount
}

var (
	_ fusefs.NodeStatfser  = (*node)(nil)
	_ fusefs.NodeSetattrer = (*node)(nil)
	_ fusefs.NodeFsyncer   = (*node)(nil)
)

// Statfs describes the whole mount from each of its nodes: the sum of the
// images' sizes, and nothing free.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	const unit = 4096
	var bytes uint64
	for _, d := range n.m.images {
		bytes += uint64(d.Image.Image.Geometry().Size)
	}
	*out = fuse.StatfsOut{
		Bsize:   unit,
		Frsize:  unit,
		Blocks:  (bytes + unit - 1) / unit,
		NameLen: 255,
	}
	return 0
}

// Setattr refuses chmod, chown, truncate and utimes.
func (n *node) Setattr(ctx context.Context, f fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return syscall.EPERM
}

// Fsync succeeds: nothing was written.
func (n *node) Fsync(ctx context.Context, f fusefs.FileHandle, flags uint32) syscall.Errno {
	return 0
}

// dirTimeout is for how long the kernel may keep a directory's name, and what it knows
// of the root: they are the same from the first moment of the mount to the last.
const dirTimeout = time.Hour

// dirNode is what all directories are made of. Nothing can be made, removed or
// renamed in one. All of these must be here: go-fuse takes the absence of
// Unlink and Rmdir for success, and forgets the node.
type dirNode struct {
	node
}

var (
	_ fusefs.NodeUnlinker  = (*dirNode)(nil)
	_ fusefs.NodeRmdirer   = (*dirNode)(nil)
	_ fusefs.NodeMkdirer   = (*dirNode)(nil)
	_ fusefs.NodeMknoder   = (*dirNode)(nil)
	_ fusefs.NodeCreater   = (*dirNode)(nil)
	_ fusefs.NodeTmpfiler  = (*dirNode)(nil)
	_ fusefs.NodeRenamer   = (*dirNode)(nil)
	_ fusefs.NodeLinker    = (*dirNode)(nil)
	_ fusefs.NodeSymlinker = (*dirNode)(nil)
)

func (n *dirNode) Unlink(ctx context.Context, name string) syscall.Errno { return syscall.EPERM }
func (n *dirNode) Rmdir(ctx context.Context, name string) syscall.Errno  { return syscall.EPERM }

func (n *dirNode) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, syscall.EPERM
}

func (n *dirNode) Mknod(ctx context.Context, name string, mode, dev uint32, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, syscall.EPERM
}

func (n *dirNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	return nil, nil, 0, syscall.EPERM
}

func (n *dirNode) Tmpfile(ctx context.Context, flags, mode uint32, out *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	return nil, nil, 0, syscall.EOPNOTSUPP
}

func (n *dirNode) Rename(ctx context.Context, name string, newParent fusefs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	return syscall.EPERM
}

func (n *dirNode) Link(ctx context.Context, target fusefs.InodeEmbedder, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, syscall.EPERM
}

func (n *dirNode) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return nil, syscall.EPERM
}

// lookupChild answers a lookup of a directory or file that was put into the
// tree before the mount.
func (n *dirNode) lookupChild(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	child := n.GetChild(name)
	if child == nil {
		return nil, syscall.ENOENT
	}
	var attr fuse.AttrOut
	if errno := child.Operations().(fusefs.NodeGetattrer).Getattr(ctx, nil, &attr); errno != 0 {
		return nil, errno
	}
	out.Attr = attr.Attr
	out.SetEntryTimeout(dirTimeout)
	return child, 0
}

// stream lists entries, with "." and ".." before them.
func (n *dirNode) stream(entries []fuse.DirEntry) fusefs.DirStream {
	self, parent := n.StableAttr().Ino, uint64(rootIno)
	if _, p := n.Parent(); p != nil {
		parent = p.StableAttr().Ino
	}
	return fusefs.NewListDirStream(append([]fuse.DirEntry{
		{Name: ".", Mode: fuse.S_IFDIR, Ino: self},
		{Name: "..", Mode: fuse.S_IFDIR, Ino: parent},
	}, entries...))
}
