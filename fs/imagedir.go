package fs

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// maxImages is how many images inode numbers can tell apart, and one more.
const maxImages = 1 << (64 - kindBits - lowBits)

// imageDir is the directory of one image, and what its files share.
type imageDir struct {
	dirNode
	*Image
	index    uint64 // from 1 on, for inode numbers
	infoSize int    // bytes
	infoTime liveTime
	locks    *lockTable

	// mu guards what follows.
	mu      sync.Mutex
	mapping mapping
	backing backingVersion
	// anonymous is what is locked where there is no backing, nil until then.
	anonymous *os.File
}

var (
	_ fusefs.NodeLookuper  = (*imageDir)(nil)
	_ fusefs.NodeGetattrer = (*imageDir)(nil)
	_ fusefs.NodeReaddirer = (*imageDir)(nil)
)

func (m *mount) newImageDir(im *Image, index uint64) (*imageDir, error) {
	d := &imageDir{dirNode: dirNode{node{m: m}}, Image: im, index: index}
	d.locks = newLockTable(d.lockFile)
	var err error
	d.infoSize, err = d.infoBound()
	return d, err
}

// addChildren puts the directories into the tree. The files come and go by
// lookup.
func (d *imageDir) addChildren(ctx context.Context) {
	blocks := &blocksDir{dirNode{node{m: d.m}}, d}
	d.AddChild("blocks", d.NewPersistentInode(ctx, blocks, dirAttr(ino(d.index, kindBlocks, 0))), false)
	sums := &sumsDir{dirNode{node{m: d.m}}, d}
	d.AddChild("sums", d.NewPersistentInode(ctx, sums, dirAttr(ino(d.index, kindSums, 0))), false)
}

// listed are the names in an image's directory, in the order of ls.
var listed = []struct {
	name string
	kind kind
	mode uint32
}{
	{"blocks", kindBlocks, fuse.S_IFDIR},
	{"checksum", kindChecksum, fuse.S_IFREG},
	{"digests", kindDigests, fuse.S_IFREG},
	{"digests.bin", kindDigestsBin, fuse.S_IFREG},
	{"image", kindImage, fuse.S_IFREG},
	{"info.json", kindInfo, fuse.S_IFREG},
	{"map", kindMap, fuse.S_IFREG},
	{"map.json", kindMapJSON, fuse.S_IFREG},
	{"sums", kindSums, fuse.S_IFDIR},
}

func (d *imageDir) Readdir(ctx context.Context) (fusefs.DirStream, syscall.Errno) {
	resizes := d.Image.Image.Geometry().Resizes
	d.mu.Lock()
	serial, backing := d.mapping.serial, d.backing.version
	d.mu.Unlock()
	entries := make([]fuse.DirEntry, len(listed))
	for i, l := range listed {
		var version uint64
		switch l.kind {
		case kindBlocks, kindSums:
		case kindImage:
			version = backing
		case kindMap, kindMapJSON:
			// As last seen: listing does not ask the source.
			version = serial
		default:
			version = resizes
		}
		entries[i] = fuse.DirEntry{Name: l.name, Mode: l.mode, Ino: ino(d.index, l.kind, version)}
	}
	return d.stream(entries), 0
}

func (d *imageDir) Getattr(ctx context.Context, f fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	setDirAttr(&out.Attr, d.owner(), d.m.dirMode(), 2, d.changed(d.Image.Image.Geometry()))
	return 0
}

func (d *imageDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	ctx, cancel := d.m.deadline(ctx)
	defer cancel()
	switch name {
	case "blocks", "sums":
		return d.lookupChild(ctx, name, out)
	case "image":
		return d.lookupImage(ctx, out)
	case "map", "map.json":
		return d.lookupMap(ctx, name, out)
	case "invalidate":
		return d.lookupInvalidate(ctx, out), 0
	}
	g, err := d.Image.Image.Refresh(ctx)
	if name == "info.json" {
		// This is where one looks for the reason of what went wrong.
		g = d.Image.Image.Geometry()
	} else if err != nil {
		return nil, d.m.fail(ctx, d, "look up "+name, err)
	}
	f := d.newFile(name, g)
	if f == nil {
		return nil, syscall.ENOENT
	}
	return f.enter(ctx, &d.Inode, g, out), 0
}

// newFile makes the node of a file whose size follows from that of the image,
// nil if there is none of that name.
func (d *imageDir) newFile(name string, g hasher.Geometry) *file {
	f := &file{node: node{m: d.m}, d: d, name: name, resizes: g.Resizes, version: g.Resizes}
	digest := int64(d.Image.Image.Spec().Algorithm.Size())
	switch name {
	case "checksum":
		f.kind, f.size, f.open = kindChecksum, 2*digest+1, d.openChecksum
	case "digests":
		f.kind, f.size, f.open = kindDigests, g.Blocks*lineSize(digest), d.openDigests
	case "digests.bin":
		f.kind, f.size, f.open = kindDigestsBin, g.Blocks*digest, d.openDigestsBin
	case "info.json":
		f.kind, f.size, f.open, f.live = kindInfo, int64(d.infoSize), d.openInfo, &d.infoTime
	default:
		return nil
	}
	return f
}

// look returns the geometry of the image and the status of its backing, which
// is nil if there is none, as they were at one time.
func (d *imageDir) look(ctx context.Context) (hasher.Geometry, *unix.Stat_t, error) {
	if d.Backing == nil {
		g, err := d.Image.Image.Refresh(ctx)
		return g, nil, err
	}
	for range 3 {
		before, err := d.Backing.Stat()
		if err != nil {
			return hasher.Geometry{}, nil, err
		}
		g, err := d.Image.Image.Refresh(ctx)
		if err != nil {
			return hasher.Geometry{}, nil, err
		}
		// Refresh is when an image turns to another file.
		if after, err := d.Backing.Stat(); err != nil {
			return hasher.Geometry{}, nil, err
		} else if after.Dev == before.Dev && after.Ino == before.Ino {
			return g, &after, nil
		}
	}
	return hasher.Geometry{}, nil, hasher.ErrBusy
}

// owner returns who the image's files belong to.
func (d *imageDir) owner() owner {
	if d.Backing == nil {
		return d.m.ownerOf(nil)
	}
	st, err := d.Backing.Stat()
	if err != nil {
		return d.m.ownerOf(nil)
	}
	return d.m.ownerOf(&st)
}

// changed returns when the image last changed, or the start of the mount where
// the source does not tell.
func (d *imageDir) changed(g hasher.Geometry) time.Time {
	if g.ModTime.IsZero() || g.ModTime.Unix() == 0 {
		return d.m.started
	}
	return g.ModTime
}
