package fs

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/hasher"
)

// invalidateMode is that of the file invalidate. Who may not write the image
// may still say that it was written.
const invalidateMode = 0o200

// maxInvalidateLine is longer than any line that means something.
const maxInvalidateLine = 256

// An invalidation is a line of the file invalidate: a range of bytes, or all.
type invalidation struct {
	off, length int64
	all         bool
}

// parseInvalidation parses "OFFSET LENGTH" in decimal bytes, or "all", with
// white space around. An empty line is nothing, and nil.
func parseInvalidation(line string) (*invalidation, error) {
	fields := strings.Fields(line)
	switch {
	case len(fields) == 0:
		return nil, nil
	case len(fields) == 1 && fields[0] == "all":
		return &invalidation{all: true}, nil
	case len(fields) != 2:
		return nil, fmt.Errorf("invalidate: %q is neither OFFSET LENGTH nor all", line)
	}
	off, err := strconv.ParseUint(fields[0], 10, 63)
	if err != nil {
		return nil, fmt.Errorf("invalidate: offset %q is not a number of bytes", fields[0])
	}
	length, err := strconv.ParseUint(fields[1], 10, 63)
	if err != nil {
		return nil, fmt.Errorf("invalidate: length %q is not a number of bytes", fields[1])
	}
	if off+length > 1<<63-1 {
		length = 1<<63 - 1 - off
	}
	return &invalidation{off: int64(off), length: int64(length)}, nil
}

// invalidateFile is the file invalidate of an image, to which whoever changed
// the image behind our back writes what was changed. Like blocks it is not
// listed, since what copies a directory would fail to read it.
type invalidateFile struct {
	node
	d *imageDir
}

var (
	_ fusefs.NodeGetattrer = (*invalidateFile)(nil)
	_ fusefs.NodeSetattrer = (*invalidateFile)(nil)
	_ fusefs.NodeOpener    = (*invalidateFile)(nil)
)

func (d *imageDir) lookupInvalidate(ctx context.Context, out *fuse.EntryOut) *fusefs.Inode {
	f := &invalidateFile{node{m: d.m}, d}
	f.setAttr(&out.Attr)
	return d.NewInode(ctx, f, fusefs.StableAttr{Mode: fuse.S_IFREG, Ino: ino(d.index, kindInvalidate, 0)})
}

func (f *invalidateFile) setAttr(out *fuse.Attr) {
	setAttr(out, f.d.owner(), invalidateMode, 0, f.d.changed(f.d.Image.Image.Geometry()))
}

func (f *invalidateFile) Getattr(ctx context.Context, fh fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.setAttr(&out.Attr)
	return 0
}

// Setattr allows what a shell does to a file before it writes: to cut it.
func (f *invalidateFile) Setattr(ctx context.Context, fh fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	const cut = fuse.FATTR_SIZE | fuse.FATTR_FH | fuse.FATTR_LOCKOWNER | fuse.FATTR_KILL_SUIDGID
	if in.Valid&^uint32(cut) != 0 || in.Size != 0 {
		return syscall.EPERM
	}
	return f.Getattr(ctx, fh, out)
}

func (f *invalidateFile) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_WRONLY {
		return nil, 0, syscall.EACCES
	}
	return &invalidateHandle{f: f}, fuse.FOPEN_DIRECT_IO, 0
}

// invalidateHandle is an open file invalidate.
type invalidateHandle struct {
	f *invalidateFile

	// mu guards rest, the beginning of a line that has not ended yet.
	mu   sync.Mutex
	rest []byte
}

var (
	_ fusefs.FileWriter  = (*invalidateHandle)(nil)
	_ fusefs.FileFlusher = (*invalidateHandle)(nil)
)

// Write takes lines, wherever in the file they are written. If one of them is
// bad, nothing of the write is done.
func (h *invalidateHandle) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := append(bytes.Clone(h.rest), data...)
	end := bytes.LastIndexByte(text, '\n') + 1
	if len(text)-end > maxInvalidateLine {
		return 0, syscall.EINVAL
	}
	if errno := h.apply(ctx, string(text[:end])); errno != 0 {
		h.rest = nil
		return 0, errno
	}
	h.rest = text[end:]
	return uint32(len(data)), 0
}

// Flush takes a last line that no newline ends, at close(2).
func (h *invalidateHandle) Flush(ctx context.Context) syscall.Errno {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := string(h.rest)
	h.rest = nil
	return h.apply(ctx, text)
}

func (h *invalidateHandle) apply(ctx context.Context, text string) syscall.Errno {
	var todo []*invalidation
	for line := range strings.Lines(text) {
		i, err := parseInvalidation(line)
		if err != nil {
			h.f.m.log.Warn("bad line", "image", h.f.d.Name, "error", err)
			return syscall.EINVAL
		}
		if i != nil {
			todo = append(todo, i)
		}
	}
	for _, i := range todo {
		if err := i.do(h.f.d.Image.Image); err != nil {
			return h.f.m.fail(ctx, h.f.d, "write invalidate", err)
		}
	}
	return 0
}

func (i *invalidation) do(im *hasher.Image) error {
	if i.all {
		return im.InvalidateAll()
	}
	im.Invalidate(i.off, i.length)
	return nil
}
