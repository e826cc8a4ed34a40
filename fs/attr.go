package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Inode numbers hold an image's index from 1 on in 20 bits, the kind of file
// in 6, and in 38 a version of the file or, below blocks and sums, which one it
// is. They stay the same from mount to mount as long as no file was overtaken.
const (
	rootIno = 1 + iota
	tagIno
	controlIno
	versionIno
	metricsIno
	pidIno
)

const (
	kindBits = 6
	lowBits  = 38
)

type kind uint64

const (
	kindDir kind = iota
	kindChecksum
	kindDigests
	kindDigestsBin
	kindBlocks
	kindBlock
	kindMap
	kindMapJSON
	kindInfo
	kindImage
	kindSums
	kindSum
	kindInvalidate
)

func ino(image uint64, k kind, low uint64) uint64 {
	return image<<(kindBits+lowBits) | uint64(k)<<lowBits | low&(1<<lowBits-1)
}

// Modes that hold where the options say nothing.
const (
	defaultMode = 0o400
	// ioSize is st_blksize. It is small since a buffer of that size is what
	// stdio reads for the first line of digests.
	ioSize = 4096
)

// fileMode returns the permissions of a virtual file.
func (m *mount) fileMode() uint32 {
	if m.o.Mode == nil {
		return defaultMode
	}
	return *m.o.Mode & 0o440
}

// imageMode returns the permissions of an image file.
func (m *mount) imageMode(writable bool) uint32 {
	mode := m.fileMode()
	if !writable {
		return mode
	}
	if m.o.Mode != nil {
		mode |= *m.o.Mode & 0o020
	}
	return mode | 0o200
}

// dirMode returns the permissions of a directory: who may read may search.
func (m *mount) dirMode() uint32 {
	mode := m.fileMode()
	return mode | mode>>2
}

// An owner is who files belong to.
type owner struct{ uid, gid uint32 }

// ownerOf returns the owner of the files of an image with the given backing,
// which may be nil.
func (m *mount) ownerOf(st *unix.Stat_t) owner {
	o := owner{uint32(unix.Geteuid()), uint32(unix.Getegid())}
	if o.uid == 0 && st != nil {
		o = owner{st.Uid, st.Gid}
	}
	if m.o.UID != nil {
		o.uid = *m.o.UID
	}
	if m.o.GID != nil {
		o.gid = *m.o.GID
	}
	return o
}

// setAttr fills in what all files and directories have. The type and the
// inode number are go-fuse's part.
func setAttr(out *fuse.Attr, o owner, mode uint32, size int64, changed time.Time) {
	*out = fuse.Attr{
		Size:    uint64(size),
		Mode:    mode,
		Nlink:   1,
		Owner:   fuse.Owner{Uid: o.uid, Gid: o.gid},
		Blksize: ioSize, // set, or go-fuse derives st_blocks from the size
	}
	out.SetTimes(&changed, &changed, &changed)
}

// setDirAttr fills in the attributes of a directory with the given number of
// subdirectories.
func setDirAttr(out *fuse.Attr, o owner, mode uint32, subdirs int, changed time.Time) {
	setAttr(out, o, mode, 0, changed)
	out.Nlink = uint32(2 + subdirs)
}
