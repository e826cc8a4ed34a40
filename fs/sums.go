package fs

import (
	"context"
	"slices"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/hasher"
)

// sumsDir is the directory sums: a file for each algorithm, of which only
// those are listed that were computed already.
type sumsDir struct {
	dirNode
	d *imageDir
}

var (
	_ fusefs.NodeLookuper  = (*sumsDir)(nil)
	_ fusefs.NodeGetattrer = (*sumsDir)(nil)
	_ fusefs.NodeReaddirer = (*sumsDir)(nil)
)

func (s *sumsDir) Getattr(ctx context.Context, f fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	setDirAttr(&out.Attr, s.d.owner(), s.m.dirMode(), 0, s.d.changed(s.d.Image.Image.Geometry()))
	return 0
}

func (s *sumsDir) Readdir(ctx context.Context) (fusefs.DirStream, syscall.Errno) {
	resizes := s.d.Image.Image.Geometry().Resizes
	var entries []fuse.DirEntry
	for _, a := range s.d.Image.Image.PlainSums() {
		entries = append(entries, fuse.DirEntry{
			Name: a.Name(),
			Mode: fuse.S_IFREG,
			Ino:  ino(s.d.index, kindSum, sumVersion(a, resizes)),
		})
	}
	return s.stream(entries), 0
}

// sumVersion is the low part of an inode number of the file for a.
func sumVersion(a *hasher.Algorithm, resizes uint64) uint64 {
	return resizes<<8 | uint64(slices.Index(hasher.Algorithms(), a))
}

func (s *sumsDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	a, err := hasher.LookupAlgorithm(name)
	if err != nil {
		return nil, syscall.ENOENT
	}
	ctx, cancel := s.m.deadline(ctx)
	defer cancel()
	g, err := s.d.Image.Image.Refresh(ctx)
	if err != nil {
		return nil, s.m.fail(ctx, s.d, "look up sums/"+name, err)
	}
	f := &file{
		node:    node{m: s.m},
		d:       s.d,
		name:    "sums/" + name,
		kind:    kindSum,
		version: sumVersion(a, g.Resizes),
		resizes: g.Resizes,
		size:    int64(2*a.Size() + 1),
		open: func(ctx context.Context, f *file) (reader, error) {
			if _, err := f.current(ctx); err != nil {
				return nil, err
			}
			compute := func(ctx context.Context) (text, error) {
				sum, err := s.d.Image.Image.PlainSum(ctx, a)
				if err != nil {
					return nil, err
				}
				return hexLine(sum), nil
			}
			return &lazyText{size: f.size, compute: compute, done: func() {}}, nil
		},
	}
	return f.enter(ctx, &s.Inode, g, out), 0
}
