package qemunbd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxLinks is the kernel's own limit of links in a walk (path_resolution(7)).
const maxLinks = 40

// A place is where a file was found: a held directory and a name in it, and
// after a symbolic link the same again. It is looked up again without walking a
// path, so that a mount may cover the file's directory by then.
// It is not safe for concurrent use.
type place struct {
	path    string // absolute
	trusted bool   // the path was given by the user, and not by a header
	hops    []hop
}

type hop struct {
	dir  int // an O_PATH descriptor
	base string
	link string // the path that led here
}

// newPlace finds the directory of an absolute path.
func newPlace(path string, trusted bool) (*place, error) {
	p := &place{path: path, trusted: trusted}
	if err := p.add(unix.AT_FDCWD, path); err != nil {
		return nil, err
	}
	return p, nil
}

// add appends the hop that path, relative to dir, leads to.
func (p *place) add(dir int, path string) error {
	if path == "" {
		return unix.ENOENT
	}
	parent, base := filepath.Split(path)
	if parent == "" {
		parent = "."
	}
	if base == "" {
		base = "." // a directory, which is then refused
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC}
	if !p.trusted {
		// /proc/self/fd would lead to files of ours, past the directories
		// that keep others out.
		how.Resolve = unix.RESOLVE_NO_MAGICLINKS
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat2(dir, parent, &how)
		return err
	})
	if err != nil {
		return err
	}
	p.hops = append(p.hops, hop{fd, base, path})
	return nil
}

// pin walks the place as it is now and returns an O_PATH descriptor of what is
// there, never a symbolic link.
func (p *place) pin() (int, *unix.Stat_t, error) {
	for i := range maxLinks {
		h := p.hops[i]
		fd, st, err := h.pin()
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			p.cut(i + 1)
			return fd, st, err
		}
		link, err := readLink(fd)
		unix.Close(fd)
		if err != nil {
			return -1, nil, err
		}
		if i+1 == len(p.hops) || p.hops[i+1].link != link {
			p.cut(i + 1)
			if err := p.add(h.dir, link); err != nil {
				return -1, nil, err
			}
		}
	}
	return -1, nil, unix.ELOOP
}

// look returns the status of what is at the place now, nil when there is nothing
// or it cannot be told. Where a link was changed it says so, and does not walk
// its new path.
func (p *place) look() (st *unix.Stat_t, relinked bool) {
	for i, h := range p.hops {
		fd, st, err := h.pin()
		if err != nil {
			return nil, false
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			unix.Close(fd)
			return st, false
		}
		link, err := readLink(fd)
		unix.Close(fd)
		if err != nil {
			return nil, false
		}
		if i+1 == len(p.hops) || p.hops[i+1].link != link {
			break
		}
	}
	return nil, true
}

// open opens the regular file at the place. It is pinned first, so that nothing
// but a regular file is ever opened.
func (p *place) open(writable bool) (*os.File, *unix.Stat_t, error) {
	fd, st, err := p.pin()
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd)
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil, errNotRegular
	}
	var fs unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &fs) }); err != nil {
		return nil, nil, err
	}
	if fs.Type == unix.PROC_SUPER_MAGIC {
		return nil, nil, errNotRegular // what it shows depends on who reads
	}
	file, err := reopen(fd, writable)
	return file, st, err
}

// reopen opens the file that fd refers to once more.
func reopen(fd int, writable bool) (*os.File, error) {
	flags := unix.O_RDONLY
	if writable {
		flags = unix.O_RDWR
	}
	file, err := os.OpenFile(procFD(fd), flags, 0)
	if err != nil {
		return nil, errors.Unwrap(err) // without our name for it
	}
	return file, nil
}

var errNotRegular = errors.New("not a regular file")

func (p *place) close() { p.cut(0) }

func (p *place) cut(i int) {
	for _, h := range p.hops[i:] {
		unix.Close(h.dir)
	}
	p.hops = p.hops[:i]
}

func (h hop) pin() (int, *unix.Stat_t, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(h.dir, h.base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, nil, err
	}
	st := new(unix.Stat_t)
	if err := unix.Fstat(fd, st); err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, st, nil
}

// readLink returns where the symbolic link that fd pins leads.
func readLink(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// whyNot says in words why a file could not be opened.
func whyNot(path string, err error) error {
	path = show(path)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s is missing: %w", path, err)
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("open %s: too many symbolic links, or one of /proc that is not followed: %w", path, err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("open %s: the kernel has no openat2, which Linux 5.6 brought: %w", path, err)
	}
	return fmt.Errorf("open %s: %w", path, err)
}
