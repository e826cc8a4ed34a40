package fs

import (
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func TestRefusals_inEveryDirectory(t *testing.T) {
	k := newTestMount(t, testOptions{content: testContent(testBlock)})
	for dir, name := range map[string]string{
		"":            "disk",
		".hashfs":     "version",
		"disk":        "checksum",
		"disk/blocks": "0000000000000000",
		"disk/sums":   "md5",
	} {
		node := uint64(fuse.FUSE_ROOT_ID)
		if dir != "" {
			node = k.mustLookup(dir).NodeId
		}
		in := header(node)
		var entry fuse.EntryOut
		var created fuse.CreateOut
		for op, status := range map[string]fuse.Status{
			"unlink":  k.front.Unlink(nil, &in, name),
			"rmdir":   k.front.Rmdir(nil, &in, name),
			"mkdir":   k.front.Mkdir(nil, &fuse.MkdirIn{InHeader: in}, "new", &entry),
			"mknod":   k.front.Mknod(nil, &fuse.MknodIn{InHeader: in}, "new", &entry),
			"create":  k.front.Create(nil, &fuse.CreateIn{InHeader: in}, "new", &created),
			"rename":  k.front.Rename(nil, &fuse.RenameIn{InHeader: in, Newdir: node}, name, "new"),
			"link":    k.front.Link(nil, &fuse.LinkIn{InHeader: in, Oldnodeid: node}, "new", &entry),
			"symlink": k.front.Symlink(nil, &in, "target", "new", &entry),
			"chmod":   k.front.SetAttr(nil, &fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: in, Valid: fuse.FATTR_MODE}}, new(fuse.AttrOut)),
		} {
			if status != fuse.EPERM {
				t.Errorf("%s in %q: %v, want EPERM", op, dir, status)
			}
		}
		if _, status := k.lookup(joined(dir, name)); !status.Ok() {
			t.Errorf("%s is gone from %q", name, dir)
		}
	}
}

func joined(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func TestRefusals_openForWriting(t *testing.T) {
	k := newTestMount(t, testOptions{content: testContent(testBlock)})
	for name, want := range map[string]syscall.Errno{
		"disk/checksum":                syscall.EACCES,
		"disk/map":                     syscall.EACCES,
		"disk/sums/md5":                syscall.EACCES,
		"disk/blocks/0000000000000000": syscall.EACCES,
		".hashfs/version":              syscall.EACCES,
		"disk/image":                   syscall.EROFS,
	} {
		for _, flags := range []uint32{syscall.O_WRONLY, syscall.O_RDWR, syscall.O_RDONLY | syscall.O_TRUNC} {
			if _, status := k.openNode(k.mustLookup(name).NodeId, flags); status != fuse.Status(want) {
				t.Errorf("open %s with flags %#x: %v, want %v", name, flags, status, want)
			}
		}
	}
}

func TestImage_sizeNeverChanges(t *testing.T) {
	const size = 2*testBlock + 10
	k := newTestMount(t, testOptions{content: testContent(size), writable: true})
	f := k.open("disk/image", syscall.O_RDWR)
	defer f.close()
	if n, status := f.write(make([]byte, 100), size-10); n != 10 || !status.Ok() {
		t.Errorf("a write over the end wrote %d bytes: %v, want 10", n, status)
	}
	if _, status := f.write([]byte("x"), size); status != fuse.Status(syscall.ENOSPC) {
		t.Errorf("a write at the end: %v, want ENOSPC", status)
	}
	setSize := func(n uint64) fuse.Status {
		in := &fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{
			InHeader: header(f.node), Valid: fuse.FATTR_SIZE | fuse.FATTR_MTIME | fuse.FATTR_MTIME_NOW, Size: n,
		}}
		return k.front.SetAttr(nil, in, new(fuse.AttrOut))
	}
	for n, want := range map[uint64]fuse.Status{0: fuse.EPERM, size - 1: fuse.EPERM, size + 1: fuse.EPERM, size: fuse.OK} {
		if status := setSize(n); status != want {
			t.Errorf("truncate to %d: %v, want %v", n, status, want)
		}
	}
	const keep = unix.FALLOC_FL_KEEP_SIZE
	for _, c := range []struct {
		name      string
		mode      uint32
		off, size uint64
		want      syscall.Errno
	}{
		{"allocate over the end", 0, size - 5, 10, syscall.ENOSPC},
		{"allocate up to the end", keep, size - 5, 10, 0},
		{"allocate beyond the end", keep, size, 10, syscall.ENOSPC},
		{"zero over the end", unix.FALLOC_FL_ZERO_RANGE, size - 5, 10, syscall.ENOSPC},
		{"zero up to the end", unix.FALLOC_FL_ZERO_RANGE | keep, size - 5, 10, 0},
		{"punch beyond the end", unix.FALLOC_FL_PUNCH_HOLE | keep, size + 5, 10, 0},
		{"past all numbers", unix.FALLOC_FL_PUNCH_HOLE | keep, 1<<64 - 2, 10, syscall.EFBIG},
		{"collapse", unix.FALLOC_FL_COLLAPSE_RANGE, 0, testBlock, syscall.EOPNOTSUPP},
	} {
		in := &fuse.FallocateIn{InHeader: header(f.node), Fh: f.fh, Offset: c.off, Length: c.size, Mode: c.mode}
		if status := k.front.Fallocate(nil, in); status != fuse.Status(c.want) {
			t.Errorf("%s: %v, want %v", c.name, status, c.want)
		}
	}
	if got := k.size(f.node); got != size {
		t.Errorf("the image has %d bytes now, want %d", got, size)
	}
}

func TestOptions_check(t *testing.T) {
	images := []*Image{{Name: "a", Source: "x/a.raw"}, {Name: "b", Source: "b.raw"}}
	for _, c := range []struct {
		name   string
		o      Options
		images []*Image
		ok     bool
	}{
		{"fine", Options{Mode: ptr(uint32(0o640))}, images, true},
		{"open to the world", Options{Mode: ptr(uint32(0o644))}, images, false},
		{"executable", Options{Mode: ptr(uint32(0o700))}, images, false},
		{"an option that hangs", Options{MountOptions: []string{"noexec", "auto_unmount"}}, images, false},
		{"the name of our own directory", Options{}, []*Image{{Name: ".hashfs"}}, false},
		{"the name of our own file", Options{}, []*Image{{Name: "CACHEDIR.TAG"}}, false},
		{"a name with a newline", Options{}, []*Image{{Name: "a\nb"}}, false},
		{"a path for a name", Options{}, []*Image{{Name: "a/b"}}, false},
		{"no name", Options{}, []*Image{{}}, false},
		{"one name twice", Options{}, append(images, &Image{Name: "a", Source: "y/a.raw"}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.o.check(c.images); (err == nil) != c.ok {
				t.Errorf("check: %v, want success %v", err, c.ok)
			}
		})
	}
}
