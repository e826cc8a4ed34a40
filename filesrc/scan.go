package filesrc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// rwfDontCache is RWF_DONTCACHE of Linux 6.14: pages that the read brings into
// the page cache leave it again, those that were there stay.
const rwfDontCache = 0x80

// ScanAt is ReadAt for a pass over the file: it leaves the page cache as it
// was found, so that hashing an image does not push out what others need.
// Without wait it takes what is in the page cache, up to the first page that
// is not, and then returns hasher.ErrWouldWait.
func (f *File) ScanAt(p []byte, off int64, wait bool) (int, error) {
	h, err := f.acquire()
	if err != nil {
		return 0, err
	}
	defer f.release(h)
	if !wait {
		n, err := f.readCached(h, p, off)
		if errors.Is(err, unix.EAGAIN) || refused(err) {
			err = hasher.ErrWouldWait
		}
		return n, err
	}
	if !h.caches.Load() {
		n, err := h.readStorage(p, off, rwfDontCache)
		if !refused(err) {
			return n, err
		}
		h.caches.Store(true)
	}
	return h.readAndDrop(p, off)
}

// readCached is ReadAt for what is in the page cache. Pages there that somebody read
// one after the other bear marks: who comes to one has the kernel read ahead, and what
// that brings would stay. A mapping can be told not to; elsewhere rwfDontCache has at
// least those pages leave again that are read.
func (f *File) readCached(h *handle, p []byte, off int64) (n int, err error) {
	if f.mayMap(h) {
		return f.copyMapped(h, p, off)
	}
	if !h.caches.Load() {
		if n, err = h.read(h.fd, p, off, unix.RWF_NOWAIT|rwfDontCache); !refused(err) {
			return n, err
		}
	}
	return h.read(h.fd, p, off, unix.RWF_NOWAIT)
}

// copyMapped reads from a mapping what is in the page cache, up to the first page that
// is not.
func (f *File) copyMapped(h *handle, p []byte, off int64) (n int, err error) {
	page := int64(os.Getpagesize())
	before := off % page
	cached := p
	if f.Cached(off, int64(len(p))) < int64(len(p)) {
		there, err := h.resident(off-before, before+int64(len(p)))
		if err != nil {
			return 0, hasher.ErrWouldWait
		}
		missing := slices.IndexFunc(there, func(b byte) bool { return b&1 == 0 })
		if missing >= 0 {
			cached = p[:max(0, int64(missing)*page-before)]
		}
	}
	if len(cached) == 0 {
		return 0, hasher.ErrWouldWait
	}
	err = f.mapped(h, off-before, before+int64(len(cached)), func(m []byte) { copy(cached, m[before:]) })
	if err != nil {
		return 0, hasher.ErrWouldWait
	}
	// The rest of a last page reads as zeros in a mapping.
	if end, err := endOf(h.file); err != nil || end < off+int64(len(cached)) {
		return 0, hasher.ErrWouldWait
	}
	if len(cached) < len(p) {
		return len(cached), hasher.ErrWouldWait
	}
	return len(p), nil
}

// directUnit is what the address in memory, the offset and the length of a
// direct read are multiples of: hardly a disk or a file system wants more, and
// those that do refuse, and are not asked again.
const directUnit = 4096

// readStorage is ReadAt for what is not in the page cache, with flags of
// preadv2(2). It reads directly where it can, which costs half of what a read
// through the page cache does, and brings in nothing. What was written there is
// seen: the kernel writes it back first. The flags are for files that it reads
// through the page cache even so.
func (h *handle) readStorage(p []byte, off int64, flags int) (n int, err error) {
	if !h.hasDirect() {
		return h.read(h.fd, p, off, flags)
	}
	if n, err = h.readDirect(p, off, flags); err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	directly := n > 0 || !refused(err)
	more, err := h.read(h.fd, p[n:], off+int64(n), flags)
	if !directly && !refused(err) {
		h.indirect.Store(true)
	}
	return n + more, err
}

// hasDirect reports whether the file can be read past the page cache.
func (h *handle) hasDirect() bool {
	h.openDirect.Do(func() {
		// One large read would be many requests at once there, and others,
		// as those for the file's times, would wait behind them.
		if h.isOn(remoteTypes) {
			h.indirect.Store(true)
			return
		}
		err := retry(func() (err error) {
			h.direct, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", h.fd), unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
			return err
		})
		h.indirect.Store(err != nil)
	})
	return !h.indirect.Load()
}

// readDirect reads whole units, into another buffer if p is not made of them.
func (h *handle) readDirect(p []byte, off int64, flags int) (int, error) {
	if inUnits(p, off) {
		return h.read(h.direct, p, off, flags)
	}
	from := int(off % directUnit)
	units := make([]byte, (from+len(p)+directUnit-1)/directUnit*directUnit+directUnit)
	units = units[(directUnit-offUnit(units))%directUnit:]
	units = units[:len(units)/directUnit*directUnit]
	n, err := h.read(h.direct, units, off-int64(from), flags)
	n = copy(p, units[min(from, n):n])
	if n == len(p) {
		err = nil
	}
	return n, err
}

// inUnits reports whether a read can be direct as it is.
func inUnits(p []byte, off int64) bool {
	return off%directUnit == 0 && len(p)%directUnit == 0 && offUnit(p) == 0
}

// offUnit returns how far in memory p begins behind a multiple of directUnit.
func offUnit(p []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(p))) % directUnit)
}

// stackedTypes are file systems whose files have the pages of another file below, of
// which cachestat(2) does not tell.
var stackedTypes = []int64{unix.OVERLAYFS_SUPER_MAGIC}

// Cached returns how many bytes of a range are in the page cache, whole pages
// counted. A read with RWF_NOWAIT that finds one missing has the kernel read
// ahead from there, and what that brings would stay. Where nobody tells, all
// is taken to be there.
func (f *File) Cached(off, length int64) int64 {
	if length <= 0 {
		return 0
	}
	h, err := f.acquire()
	if err != nil {
		return 0
	}
	defer f.release(h)
	var c unix.Cachestat_t
	err = unix.EOPNOTSUPP
	if !h.isOn(stackedTypes) {
		err = unix.Cachestat(uint(h.fd), &unix.CachestatRange{Off: uint64(off), Len: uint64(length)}, &c, 0)
	}
	page := int64(os.Getpagesize())
	if err == nil {
		return min(int64(c.Cache)*page, length)
	}
	// Linux before 6.5, or a file system of its own mind.
	start := off - off%page
	there, err := h.resident(start, off+length-start)
	if err != nil {
		return length
	}
	n := int64(0)
	for _, b := range there {
		n += int64(b&1) * page
	}
	return min(n, length)
}

// refused reports whether an error says that the kernel (ENOSYS, EINVAL) or
// the file system (EOPNOTSUPP) does not know the flag.
func refused(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS)
}

// read is ReadAt on a descriptor of the file with flags of preadv2(2).
func (h *handle) read(fd int, p []byte, off int64, flags int) (int, error) {
	done := 0
	for done < len(p) {
		n, err := pread(fd, p[done:], off+int64(done), flags)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, &os.PathError{Op: "read", Path: h.file.Name(), Err: err}
		case n == 0:
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}

// pread is pread(2), or preadv2(2) where there are flags to give: not every kernel, and
// no emulator of one, has that.
func pread(fd int, p []byte, off int64, flags int) (int, error) {
	if flags == 0 {
		return unix.Pread(fd, p, off)
	}
	return unix.Preadv2(fd, [][]byte{p}, off, flags)
}

// readAndDrop is a read with rwfDontCache by older means: it looks which pages
// are in the cache, reads, and drops those that were not.
func (h *handle) readAndDrop(p []byte, off int64) (int, error) {
	page := int64(os.Getpagesize())
	start := off - off%page
	there, err := h.resident(start, off+int64(len(p))-start)
	n, readErr := h.readStorage(p, off, 0)
	if err != nil {
		return n, readErr // a file that cannot be mapped: its pages stay
	}
	for i := 0; i < len(there); {
		j := i
		for j < len(there) && there[j]&1 == 0 {
			j++
		}
		if j > i {
			// What this does not drop stays in the cache, as after any read.
			_ = unix.Fadvise(h.fd, start+int64(i)*page, int64(j-i)*page, unix.FADV_DONTNEED)
		}
		i = j + 1
	}
	return n, readErr
}

// resident tells for each page of a range, which starts at a page, whether it
// is in the page cache, in the lowest bit.
func (h *handle) resident(off, length int64) ([]byte, error) {
	if length == 0 {
		return nil, nil
	}
	m, err := unix.Mmap(h.fd, off, int(length), unix.PROT_NONE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(m)
	page := os.Getpagesize()
	there := make([]byte, (len(m)+page-1)/page)
	return there, mincore(m, there)
}
