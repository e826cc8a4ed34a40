package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"hashfs/blockcache"
	"hashfs/hasher"
)

// Type is the type of a mount in /proc/self/mountinfo.
const Type = "fuse." + subtype

const subtype = "hashfs"

// An Image is a directory of the mount.
type Image struct {
	Name        string // of the directory; unique in a mount
	Source      string // as the user gave it
	Format      string // such as "raw", which makes map.json tell offsets
	CacheMode   string // "keep" or "none"
	CacheReason string // why that mode holds, for people
	Image       *hasher.Image
	Backing     Backing // nil where there is no local file
}

// A Backing is the local file under an image. Its methods, and those of the
// interfaces below, may be called from several goroutines at once.
type Backing interface {
	// Stat returns the status of the file that is served now.
	Stat() (unix.Stat_t, error)
}

// A LockBacking is a backing whose users and the clients of the mount see each
// other's locks. Without it clients see only each other's.
type LockBacking interface {
	// LockFile returns a new open file for the locks of one client. The
	// caller closes it.
	LockFile() (*os.File, error)
}

// A PassthroughBacking is a backing that holds the bytes of the image as they
// are. Without it the kernel does not read the backing by itself.
type PassthroughBacking interface {
	// PassthroughFile returns a new descriptor of the file that is served
	// now, and whether the kernel may read that. The caller closes it.
	PassthroughFile() (*os.File, bool)
}

// Options say how to mount.
type Options struct {
	Mountpoint   string // a directory, or /dev/fd/N as mount.fuse3 gives it
	FsName       string // the first column of df
	AllowOther   bool
	MountOptions []string // further ones for the kernel, such as "noexec"

	UID, GID *uint32 // who files belong to; nil: the backing's owner, or this process's
	Mode     *uint32 // of files, within 0660; nil: 0400

	Cache   *blockcache.Cache // shared by the images; nil: there is none
	Log     *slog.Logger      // nil: slog.Default
	Version string            // one line
}

// check refuses what cannot be mounted.
func (o *Options) check(images []*Image) error {
	if o.Mode != nil && *o.Mode&^0o660 != 0 {
		return fmt.Errorf("mode %#o: at most the owner and the group may have access, to read or write", *o.Mode)
	}
	if slices.Contains(o.MountOptions, "auto_unmount") {
		// fusermount3 then stays, and go-fuse waits for it to end.
		return errors.New("mount option auto_unmount is not supported: a later mount clears what a killed one left")
	}
	if len(images) >= maxImages {
		return fmt.Errorf("%d images are too many for one mount: at most %d", len(images), maxImages-1)
	}
	seen := map[string]*Image{}
	for _, im := range images {
		if !nameOK(im.Name) {
			return fmt.Errorf("%s cannot be called %q: name it with NAME=", im.Source, im.Name)
		}
		if other := seen[im.Name]; other != nil {
			return fmt.Errorf("%s and %s would both be %s: name one of them with NAME=", other.Source, im.Source, im.Name)
		}
		seen[im.Name] = im
	}
	return nil
}

// nameOK reports whether an image's directory can have that name.
func nameOK(name string) bool {
	switch name {
	case "", ".", "..", controlName, tagName:
		return false
	}
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return r == '/' || unicode.IsControl(r)
	})
}

// Mount mounts images and returns when the mount is usable. The images and the
// cache stay the caller's, who closes them when Wait has returned. An error is
// one line, and leaves nothing mounted.
func Mount(images []*Image, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if err := o.check(images); err != nil {
		return nil, err
	}
	s := &Server{mountpoint: o.Mountpoint, direct: os.Geteuid() == 0}
	if strings.HasPrefix(o.Mountpoint, "/dev/fd/") {
		s.direct, s.handed = false, true
	} else if err := s.resolve(); err != nil {
		return nil, fmt.Errorf("mount on %s: %w", o.Mountpoint, err)
	}
	m, err := newMount(images, o)
	if err != nil {
		return nil, err
	}
	if err := s.start(m); err != nil {
		m.close()
		return nil, fmt.Errorf("mount on %s: %w", o.Mountpoint, err)
	}
	return s, nil
}

// resolve makes the mount point the path that the kernel will know it by.
func (s *Server) resolve() error {
	path, err := filepath.Abs(s.mountpoint)
	if err != nil {
		return err
	}
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return bare(err)
	}
	s.mountpoint = path
	return nil
}

// bare strips a path that the caller names already.
func bare(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// fuseOptions are the same for all mounts but for what the user chose. Not
// asked for are write-back caching, by which a write would reach us half a
// minute late, and io_uring, which go-fuse cannot serve.
func (s *Server) fuseOptions(o *Options) *fuse.MountOptions {
	return &fuse.MountOptions{
		Name:       subtype,
		FsName:     o.FsName,
		AllowOther: o.AllowOther,
		Options:    append([]string{"default_permissions", "nosuid", "nodev"}, o.MountOptions...),
		Logger:     slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),

		// As root without fusermount3, and with the kernel's own error.
		DirectMountStrict: s.direct,

		MaxWrite:      1 << 20,
		MaxBackground: 64,
		EnableLocks:   true,

		// Crawlers would look up, and so stat, all that they only list.
		DisableReadDirPlus: true,
		// go-fuse tries to splice what cannot be, and fails at 1 MiB.
		DisableSplice: true,
		DisableXAttrs: true,

		// Without the first the kernel serialises asynchronous direct I/O.
		ExtraCapabilities: fuse.CAP_ASYNC_DIO | fuse.CAP_DIRECT_IO_ALLOW_MMAP,
	}
}

// serve builds the tree of m, and what answers the kernel's requests to it.
func (m *mount) serve(opts *fuse.MountOptions) *front {
	// The timeouts are left out, that is zero: go-fuse would take a zero of
	// a single answer for "as the mount", and the kernel rounds the smallest
	// other one up to a tick of its clock.
	inner := fusefs.NewNodeFS(&rootDir{dirNode{node{m: m}}}, &fusefs.Options{
		MountOptions:    *opts,
		NullPermissions: true,
		RootStableAttr:  &fusefs.StableAttr{Ino: rootIno},
		Logger:          opts.Logger,
	})
	m.front = &front{RawFileSystem: inner, m: m}
	return m.front
}

// start mounts m and serves it.
func (s *Server) start(m *mount) error {
	opts := s.fuseOptions(&m.o)
	front := m.serve(opts)
	before, _ := topMount(s.mountpoint)
	server, err := s.newServer(front, opts)
	if err != nil {
		s.clearFailed(before)
		return err
	}
	s.fuse, s.m = server, m
	m.server = server
	go server.Serve()
	if err := server.WaitMount(); err != nil {
		s.clearFailed(before)
		return err
	}
	if err := s.identify(); err != nil {
		m.log.Warn("the mount cannot be watched", "mountpoint", s.mountpoint, "err", err)
	}
	return nil
}
