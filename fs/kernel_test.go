package fs

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/blockcache"
	"hashfs/filesrc"
	"hashfs/hasher"
)

// testMount plays the kernel: it sends requests to what would be mounted.
type testMount struct {
	*testing.T
	m     *mount
	front *front
	path  string // of the image's file
}

type testOptions struct {
	content  []byte
	writable bool
	flushes  *flushCounter // gets the file, and stands between; or nil
}

// notPassed is a file that the kernel cannot pass through.
type notPassed struct{ *filesrc.File }

func (notPassed) PassthroughFile() (*os.File, bool) { return nil, false }

// newTestMount serves one image, "disk", hashed as sha256 of blocks of 4 KiB.
func newTestMount(t *testing.T, o testOptions) *testMount {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "disk.raw")
	must(os.WriteFile(path, o.content, 0o600))
	file, err := filesrc.Open(path, filesrc.Options{Writable: o.writable})
	must(err)
	spec, err := hasher.ParseSpec("sha256/4k")
	must(err)
	pool := hasher.NewPool(1, false)
	t.Cleanup(pool.Close)
	cache := blockcache.New(1 << 20)
	source := hasher.Source(file)
	if o.flushes != nil {
		o.flushes.File = file
		source = o.flushes
	}
	im, err := hasher.New(source, hasher.Options{Spec: spec, Cache: cache, Pool: pool})
	must(err)
	t.Cleanup(func() { im.Close() })

	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	m, err := newMount([]*Image{{
		Name: "disk", Source: path, Format: "raw", CacheMode: "keep", Image: im, Backing: notPassed{file},
	}}, Options{Cache: cache, Log: log, Version: "1.0"})
	must(err)
	t.Cleanup(m.close)
	return &testMount{t, m, m.serve(new(Server).fuseOptions(&m.o)), path}
}

func header(node uint64) fuse.InHeader { return fuse.InHeader{NodeId: node} }

// lookup walks a path such as "disk/blocks/0000000000000000".
func (k *testMount) lookup(path string) (fuse.EntryOut, fuse.Status) {
	out := fuse.EntryOut{NodeId: fuse.FUSE_ROOT_ID}
	for name := range strings.SplitSeq(path, "/") {
		in := header(out.NodeId)
		out = fuse.EntryOut{}
		if status := k.front.Lookup(nil, &in, name, &out); !status.Ok() {
			return out, status
		}
	}
	return out, fuse.OK
}

func (k *testMount) mustLookup(path string) fuse.EntryOut {
	k.Helper()
	out, status := k.lookup(path)
	if !status.Ok() {
		k.Fatalf("look up %s: %v", path, status)
	}
	return out
}

func (k *testMount) size(node uint64) uint64 {
	k.Helper()
	var out fuse.AttrOut
	if status := k.front.GetAttr(nil, &fuse.GetAttrIn{InHeader: header(node)}, &out); !status.Ok() {
		k.Fatalf("stat: %v", status)
	}
	return out.Size
}

// testFile is an open file.
type testFile struct {
	k        *testMount
	node, fh uint64
	flags    uint32
}

func (k *testMount) openNode(node uint64, flags uint32) (*testFile, fuse.Status) {
	var out fuse.OpenOut
	status := k.front.Open(nil, &fuse.OpenIn{InHeader: header(node), Flags: flags}, &out)
	return &testFile{k, node, out.Fh, out.OpenFlags}, status
}

func (k *testMount) open(path string, flags uint32) *testFile {
	k.Helper()
	f, status := k.openNode(k.mustLookup(path).NodeId, flags)
	if !status.Ok() {
		k.Fatalf("open %s: %v", path, status)
	}
	return f
}

func (f *testFile) close() {
	f.k.front.Flush(nil, &fuse.FlushIn{InHeader: header(f.node), Fh: f.fh})
	f.k.front.Release(nil, &fuse.ReleaseIn{InHeader: header(f.node), Fh: f.fh})
}

func (f *testFile) readAt(size, off int) ([]byte, fuse.Status) {
	buf := make([]byte, size)
	in := &fuse.ReadIn{InHeader: header(f.node), Fh: f.fh, Offset: uint64(off), Size: uint32(size)}
	res, status := f.k.front.Read(nil, in, buf)
	if !status.Ok() {
		return nil, status
	}
	return res.Bytes(buf)
}

// all reads the whole file in requests of an odd size.
func (f *testFile) all() []byte {
	f.k.Helper()
	var all bytes.Buffer
	for {
		b, status := f.readAt(1000, all.Len())
		if !status.Ok() {
			f.k.Fatalf("read at %d: %v", all.Len(), status)
		}
		if len(b) == 0 {
			return all.Bytes()
		}
		all.Write(b)
	}
}

func (f *testFile) write(data []byte, off int) (int, fuse.Status) {
	in := &fuse.WriteIn{InHeader: header(f.node), Fh: f.fh, Offset: uint64(off), Size: uint32(len(data))}
	n, status := f.k.front.Write(nil, in, data)
	return int(n), status
}

func (k *testMount) read(path string) []byte {
	k.Helper()
	f := k.open(path, syscall.O_RDONLY)
	defer f.close()
	return f.all()
}

// list returns the names in a directory.
func (k *testMount) list(path string) []string {
	k.Helper()
	node := uint64(fuse.FUSE_ROOT_ID)
	if path != "" {
		node = k.mustLookup(path).NodeId
	}
	var opened fuse.OpenOut
	k.front.OpenDir(nil, &fuse.OpenIn{InHeader: header(node)}, &opened)
	defer k.front.ReleaseDir(&fuse.ReleaseIn{InHeader: header(node), Fh: opened.Fh})
	buf := make([]byte, 4096)
	out := fuse.NewDirEntryList(buf, 0)
	if status := k.front.ReadDir(nil, &fuse.ReadIn{InHeader: header(node), Fh: opened.Fh}, out); !status.Ok() {
		k.Fatalf("list %s: %v", path, status)
	}
	var names []string
	for b := out.Bytes(); len(b) > 0; {
		length := int(b[16]) // struct fuse_dirent: ino, off, namelen, type, name
		if name := string(b[24 : 24+length]); name != "." && name != ".." {
			names = append(names, name)
		}
		b = b[(24+length+7)&^7:]
	}
	return names
}
