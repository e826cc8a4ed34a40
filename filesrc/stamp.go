package filesrc

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// Stamp returns what tells this state of the image from another. A read-only
// image whose name leads to another regular file by now turns to that one; it
// stays with its file when the name is gone, is no regular file, or leads to
// one that cannot be opened, which NameDev and NameInode tell. An image given
// as a descriptor (/dev/fd/N) has no name to follow.
//
// It is the only method that changes Size. Its error says that the state
// could not be learned, not that it changed.
func (f *File) Stamp() (hasher.Stamp, error) {
	f.nameMu.Lock()
	defer f.nameMu.Unlock()
	h, err := f.acquire()
	if err != nil {
		return hasher.Stamp{}, err
	}
	defer func() { f.release(h) }()
	if f.device {
		return f.deviceStamp(h)
	}
	if h.isOn(lateTypes) {
		_, _ = h.seek(0, unix.SEEK_DATA)
	}
	if f.writable {
		return f.writableStamp(h)
	}

	at, named, err := f.name.lookup()
	if err != nil && !gone(err) {
		return hasher.Stamp{}, fmt.Errorf("look up %s: %w", f.path, err)
	}
	if err != nil {
		named = new(unix.Stat_t)
	}
	st, err := h.stat()
	if err != nil {
		return hasher.Stamp{}, err
	}
	switch {
	case sameFile(st, named):
	case at.nofoll == 0:
		// Given as a descriptor, whose number may mean any file by now.
	case isRegular(named):
		if file, found, err := at.open(f.path, false); err == nil {
			f.release(h)
			h = f.turnTo(file)
			if st, err = h.stat(); err != nil {
				return hasher.Stamp{}, err
			}
			named = found
		}
	}
	s := f.stampOf(st)
	s.NameDev, s.NameInode = named.Dev, named.Ino
	return s, nil
}

func (f *File) stampOf(st *unix.Stat_t) hasher.Stamp {
	f.size.Store(st.Size)
	return hasher.Stamp{
		Size:  st.Size,
		MTime: st.Mtim.Nano(),
		CTime: st.Ctim.Nano(),
		Dev:   st.Dev,
		Inode: st.Ino,
	}
}

// lateTypes are file systems that change a file's times only when all of a hole is
// punched that somebody reads zeros of already. The lock that they hold meanwhile is
// taken by a seek for data.
var lateTypes = []int64{unix.OVERLAYFS_SUPER_MAGIC, unix.TMPFS_MAGIC}

// nameInterval is how often the name of a writable image is looked up, if the
// file has not lost a name. Its stamp is asked for with each write, and its file
// stays what it is.
const nameInterval = time.Second

// writableStamp is the stamp of a writable image, which keeps its file. The
// caller holds nameMu.
func (f *File) writableStamp(h *handle) (hasher.Stamp, error) {
	st, err := h.stat()
	if err != nil {
		return hasher.Stamp{}, err
	}
	if now := time.Now(); now.Sub(f.nameSeen) >= nameInterval || uint64(st.Nlink) != f.links {
		f.nameSeen, f.links = now, uint64(st.Nlink)
		_, named, err := f.name.lookup()
		if err != nil && !gone(err) {
			return hasher.Stamp{}, fmt.Errorf("look up %s: %w", f.path, err)
		}
		if err != nil || !sameFile(st, named) {
			f.replaced.Store(true)
		}
	}
	return f.stampOf(st), nil
}

// AwaitWriters waits for a write(2) under way: it takes the inode's lock for a
// moment, as such a write holds it all along. On ext4, tmpfs and btrfs a seek
// for data takes it, on xfs a read does. Direct writes share the lock on some
// file systems and are not waited for there.
func (f *File) AwaitWriters() error {
	if f.device {
		return nil
	}
	h, err := f.acquire()
	if err != nil {
		return err
	}
	defer f.release(h)
	// What they answer does not matter, an error least of all.
	_, _ = h.seek(0, unix.SEEK_DATA)
	if !h.isOn(seekLockTypes) {
		_, _ = f.ScanAt(make([]byte, 1), 0, true)
	}
	return nil
}

// seekLockTypes are file systems of which a seek is known to take the lock: a read
// would bring pages into the page cache.
var seekLockTypes = []int64{unix.BTRFS_SUPER_MAGIC, unix.EXT4_SUPER_MAGIC, unix.TMPFS_MAGIC}

// Replaced reports whether a Stamp found that the name of a writable image no
// longer leads to the file that is written, but elsewhere or nowhere: what is
// written can then no longer be reached by that name. Once true it stays so.
func (f *File) Replaced() bool { return f.replaced.Load() }

// Stat returns the status of the file that is served now.
func (f *File) Stat() (unix.Stat_t, error) {
	h, err := f.acquire()
	if err != nil {
		return unix.Stat_t{}, err
	}
	defer f.release(h)
	st, err := h.stat()
	if err != nil {
		return unix.Stat_t{}, err
	}
	return *st, nil
}

func (h *handle) stat() (*unix.Stat_t, error) {
	st := new(unix.Stat_t)
	if err := retry(func() error { return unix.Fstat(h.fd, st) }); err != nil {
		return nil, fmt.Errorf("stat %s: %w", h.file.Name(), err)
	}
	return st, nil
}

func sameFile(a, b *unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }
