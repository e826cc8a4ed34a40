package filesrc

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxLinks is the kernel's own limit of links in a walk (path_resolution(7)).
const maxLinks = 40

// A name leads to a file by way of held directories: from the one that the
// user named, and on from link to link, if the file is given by a link.
// It is not safe for concurrent use.
type name struct {
	hops []hop
}

// A hop is one directory on the way and the entry to look up there.
type hop struct {
	dir  int    // an O_PATH descriptor
	base string // a single component
	link string // the link's text that led here, or the path given to Open
}

// A place is where a name ends.
type place struct {
	dir    int
	base   string
	nofoll int // AT_SYMLINK_NOFOLLOW, or 0 where the kernel follows the link
}

// openFirst begins the name at path and opens the file that it leads to.
func (n *name) openFirst(path string, writable bool) (*os.File, *unix.Stat_t, error) {
	if err := n.add(unix.AT_FDCWD, path); err != nil {
		return nil, nil, err
	}
	at, st, err := n.lookup()
	if err != nil {
		return nil, nil, err
	}
	if err := served(st); err != nil {
		return nil, nil, err
	}
	return at.open(path, writable)
}

// lookup walks the name as it is now and returns where it ends, with the
// status of what is there. It opens nothing unless a link was changed.
func (n *name) lookup() (place, *unix.Stat_t, error) {
	for i := 0; i < maxLinks; i++ {
		h := n.hops[i]
		at := place{h.dir, h.base, unix.AT_SYMLINK_NOFOLLOW}
		st, err := at.stat()
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			n.cut(i + 1)
			return at, st, err
		}
		if onProc(h.dir) {
			// A descriptor given as /dev/fd/N: its link's text need not
			// be a path, only the kernel can follow it.
			at.nofoll = 0
			st, err := at.stat()
			return at, st, err
		}
		link, err := readlinkat(h.dir, h.base)
		if err != nil {
			return at, nil, err
		}
		if i+1 == len(n.hops) || n.hops[i+1].link != link {
			n.cut(i + 1)
			if err := n.add(h.dir, link); err != nil {
				return at, nil, err
			}
		}
	}
	return place{}, nil, unix.ELOOP
}

// add appends the hop that path, relative to dir, leads to.
func (n *name) add(dir int, path string) error {
	if path == "" {
		return unix.ENOENT
	}
	parent, base := filepath.Split(path)
	if parent == "" {
		parent = "."
	}
	if base == "" {
		base = "." // "x/" names the directory x and nothing else
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(dir, parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return err
	}
	n.hops = append(n.hops, hop{dir: fd, base: base, link: path})
	return nil
}

// cut drops the hops from the i-th on.
func (n *name) cut(i int) {
	for _, h := range n.hops[i:] {
		unix.Close(h.dir)
	}
	n.hops = n.hops[:i]
}

func (n *name) close() { n.cut(0) }

func (p place) stat() (*unix.Stat_t, error) {
	st := new(unix.Stat_t)
	err := retry(func() error { return unix.Fstatat(p.dir, p.base, st, p.nofoll) })
	return st, err
}

// open opens the file at p. It is first pinned without being opened,
// so that no exchange of the name between the look at its type and the open
// can make this wait for a fifo or start a device.
func (p place) open(path string, writable bool) (*os.File, *unix.Stat_t, error) {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if p.nofoll != 0 {
		flags |= unix.O_NOFOLLOW
	}
	var pin int
	err := retry(func() (err error) {
		pin, err = unix.Openat(p.dir, p.base, flags, 0)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(pin)
	st := new(unix.Stat_t)
	if err := unix.Fstat(pin, st); err != nil {
		return nil, nil, err
	}
	if err := served(st); err != nil {
		return nil, nil, err
	}
	mode := unix.O_RDONLY
	if writable {
		mode = unix.O_RDWR
		if isDevice(st) {
			// Nobody else may open it so, nor mount it, as long as we do.
			mode |= unix.O_EXCL
		}
	}
	// Hashing is no use of the data by its owner; only the owner and root
	// may leave the access time alone.
	fd, err := reopen(pin, mode|unix.O_NOATIME)
	if err == unix.EPERM {
		fd, err = reopen(pin, mode)
	}
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), path), st, nil
}

// reopen makes a new open file description of the file that fd refers to.
func reopen(fd, flags int) (int, error) {
	var n int
	err := retry(func() (err error) {
		n, err = unix.Open("/proc/self/fd/"+strconv.Itoa(fd), flags|unix.O_CLOEXEC, 0)
		return err
	})
	if err == unix.ENOENT {
		err = errNoProc // an open descriptor has its entry there
	}
	return n, err
}

func readlinkat(dir int, base string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, base, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func onProc(dir int) bool {
	var st unix.Statfs_t
	err := retry(func() error { return unix.Fstatfs(dir, &st) })
	return err == nil && st.Type == unix.PROC_SUPER_MAGIC
}

// gone reports whether err of a lookup says that the name leads nowhere,
// rather than that it could not be found out.
func gone(err error) bool {
	for _, e := range []unix.Errno{unix.ENOENT, unix.ENOTDIR, unix.ELOOP,
		unix.EACCES, unix.ESTALE, unix.ENAMETOOLONG} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
