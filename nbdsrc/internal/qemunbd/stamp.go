package qemunbd

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Stamp is equal to a later one only if no file of the chain was changed or
// exchanged between, provided that it was old enough when it was taken, by
// CTime and the granularity of the file system's clock. It is comparable.
type Stamp struct {
	// In nanoseconds since 1970. CTime is that of the file which settles last;
	// MTime is the latest of all, cut to seconds when that file has no more,
	// so that hasher's rule for settled stamps holds for the two.
	MTime, CTime int64

	Files [2]uint64 // what the files are and their sizes and times, hashed
	Names [2]uint64 // the files that their names lead to, hashed
}

// Granularities of the clocks of file systems: the kernel's tick, 10 ms at the
// slowest, twice; and whole seconds, even ones on FAT.
const (
	tick   = 20 * time.Millisecond
	second = 2 * time.Second
)

// A look is what the files of a chain are found to be.
type look struct {
	stamp    Stamp
	readOnly [2]uint64 // the hash of those that QEMU does not write
	moved    bool      // the name of one of those leads to another file now
}

// outdated reports whether a child that was started at the look start has to be
// started again. A name that leads to a file that could not be opened then is
// not tried all the time.
func (l *look) outdated(start *look) bool {
	return l.readOnly != start.readOnly || l.moved && l.stamp.Names != start.stamp.Names
}

func (c *chain) look() (look, error) {
	var l look
	files, names, readOnly := sha256.New(), sha256.New(), sha256.New()
	var settled time.Time
	whole := false // the file that settles last has whole seconds
	for _, m := range c.members {
		if m.late {
			_, _ = unix.Seek(int(m.file.Fd()), 0, unix.SEEK_DATA)
		}
		var st unix.Stat_t
		if err := retry(func() error { return unix.Fstat(int(m.file.Fd()), &st) }); err != nil {
			return l, fmt.Errorf("stat %s: %w", m.place.path, err)
		}
		put(files, st.Dev, st.Ino, uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano()))
		named, relinked := m.place.look()
		if named == nil {
			put(names, 0, 0)
		} else {
			put(names, named.Dev, named.Ino)
		}
		if !m.writable {
			put(readOnly, st.Dev, st.Ino, uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano()))
			l.moved = l.moved || relinked || named != nil && !sameFile(named, &st)
		}
		l.stamp.MTime = max(l.stamp.MTime, st.Mtim.Nano())
		if at := settles(&st); at.After(settled) {
			settled, whole = at, coarse(&st)
			l.stamp.CTime = st.Ctim.Nano()
		}
	}
	if whole {
		l.stamp.MTime = l.stamp.MTime / 1e9 * 1e9
	}
	l.stamp.Files, l.stamp.Names, l.readOnly = sum(files), sum(names), sum(readOnly)
	return l, nil
}

// stampsLate reports whether a file is on a file system that changes its times only
// when all of a hole is punched that somebody reads zeros of already. The lock that it
// holds meanwhile is taken by a seek for data.
func stampsLate(file *os.File) bool {
	var fs unix.Statfs_t
	err := retry(func() error { return unix.Fstatfs(int(file.Fd()), &fs) })
	return err == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC)
}

// coarse reports whether the file system seems to keep whole seconds only.
func coarse(st *unix.Stat_t) bool { return st.Mtim.Nsec == 0 && st.Ctim.Nsec == 0 }

// settles returns from when on a change would give the file other times.
func settles(st *unix.Stat_t) time.Time {
	granularity := tick
	if coarse(st) {
		granularity = second
	}
	return time.Unix(st.Ctim.Unix()).Add(granularity)
}

// unsettled returns how long it takes until each change of a read-only file
// would be seen. A time far ahead is one of a clock that was set back.
func (c *chain) unsettled(now time.Time) time.Duration {
	var wait time.Duration
	for _, m := range c.members {
		var st unix.Stat_t
		if m.writable || unix.Fstat(int(m.file.Fd()), &st) != nil {
			continue
		}
		if d := settles(&st).Sub(now); d <= 2*second {
			wait = max(wait, d)
		}
	}
	return wait
}

// awaitWriters waits until no write(2) that was under way at the call still
// changes the files: such a write holds the inode's lock, which a seek for data
// takes on most file systems, and a read on XFS.
func (c *chain) awaitWriters() {
	for _, m := range c.members {
		// What they answer does not matter, an error least of all.
		_, _ = unix.Seek(int(m.file.Fd()), 0, unix.SEEK_DATA)
		_, _ = m.file.ReadAt(make([]byte, 1), 0)
	}
}

func put(w io.Writer, values ...uint64) {
	for _, v := range values {
		_ = binary.Write(w, binary.LittleEndian, v) // a hash takes all
	}
}

func sum(h interface{ Sum([]byte) []byte }) [2]uint64 {
	s := h.Sum(nil)
	return [2]uint64{binary.LittleEndian.Uint64(s), binary.LittleEndian.Uint64(s[8:])}
}
