package fs

import (
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// front stands between the kernel's requests and go-fuse's nodes. It counts
// them, and hands on what go-fuse leaves out.
type front struct {
	fuse.RawFileSystem
	m *mount

	// closers holds the lock owner of each close in progress, by the
	// request's cancel channel, which no two requests share.
	closers sync.Map
}

// closer returns who closes a file by the request with that cancel channel.
func (f *front) closer(cancel <-chan struct{}) (owner uint64, ok bool) {
	v, ok := f.closers.Load(cancel)
	if !ok {
		return 0, false
	}
	return v.(uint64), true
}

func (f *front) count(op int, status fuse.Status) fuse.Status {
	f.m.metrics.requests[op].Add(1)
	if status != fuse.OK && status != fuse.ENOENT {
		f.m.metrics.failures[op].Add(1)
	}
	return status
}

func (f *front) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return f.count(opLookup, f.RawFileSystem.Lookup(cancel, in, name, out))
}

func (f *front) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.count(opGetattr, f.RawFileSystem.GetAttr(cancel, in, out))
}

func (f *front) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.count(opOpen, f.RawFileSystem.Open(cancel, in, out))
}

func (f *front) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	res, status := f.RawFileSystem.Read(cancel, in, buf)
	return res, f.count(opRead, status)
}

// Writev is what go-fuse calls first. Where that answers ENOSYS, Write comes
// next.
func (f *front) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	n, status := f.RawFileSystem.Writev(cancel, in, data)
	if status == fuse.ENOSYS {
		return n, status
	}
	return n, f.count(opWrite, f.durable(cancel, in, status))
}

func (f *front) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	n, status := f.RawFileSystem.Write(cancel, in, data)
	return n, f.count(opWrite, f.durable(cancel, in, status))
}

// durable flushes after a write that went well where the file was opened with
// O_SYNC or O_DSYNC, or the write itself asks for it (RWF_DSYNC). The kernel
// leaves that to us, and go-fuse does not tell its nodes.
func (f *front) durable(cancel <-chan struct{}, in *fuse.WriteIn, status fuse.Status) fuse.Status {
	if !status.Ok() || in.Flags&unix.O_DSYNC == 0 { // O_SYNC has that bit too
		return status
	}
	return f.RawFileSystem.Fsync(cancel, &fuse.FsyncIn{InHeader: in.InHeader, Fh: in.Fh})
}

func (f *front) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return f.count(opFallocate, f.RawFileSystem.Fallocate(cancel, in))
}

func (f *front) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return f.count(opFsync, f.RawFileSystem.Fsync(cancel, in))
}

func (f *front) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return f.count(opLseek, f.RawFileSystem.Lseek(cancel, in, out))
}

func (f *front) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.count(opReaddir, f.RawFileSystem.ReadDir(cancel, in, out))
}

// Flush is sent for each close(2), and is what ends the POSIX locks of whoever
// closes. go-fuse does not tell its nodes who that is.
func (f *front) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	f.closers.Store(cancel, in.LockOwner)
	defer f.closers.Delete(cancel)
	return f.RawFileSystem.Flush(cancel, in)
}
