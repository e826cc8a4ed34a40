package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A board is memory that the processes of the model test share.
type board struct {
	// mounts counts the mounts. Writers that see it move open the image
	// anew, and do once more what failed.
	mounts atomic.Uint64
	// ready is the number of the mount that readers may judge: all writers
	// have come to it. 0 while there is none.
	ready atomic.Uint64
	// stop tells all processes to end.
	stop atomic.Uint64

	writers [maxWriters]struct {
		started, completed atomic.Uint64 // ops
		mount              atomic.Uint64 // that it has come to
	}

	// What readers did, for the test to see that it tested something.
	views, reads, stale, skipped atomic.Uint64
}

const maxWriters = 8

// openBoard maps the board of a plan, which must be there or is made.
func openBoard(p *plan) (*board, error) {
	mem, err := mapFile(filepath.Join(p.Dir, "board"), int64(unsafe.Sizeof(board{})))
	if err != nil {
		return nil, err
	}
	return (*board)(unsafe.Pointer(&mem[0])), nil
}

// mapFile maps a file of size bytes, shared.
func mapFile(path string, size int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// A modelFile is the image as it has to be, in a file. The bytes of each
// writer are guarded by the flock(2) of a file of its own.
type modelFile struct {
	p     *plan
	ops   []uint64 // how many of each writer's ops are in it
	bytes []byte
}

func openModel(p *plan) (*modelFile, error) {
	head := int64(os.Getpagesize())
	mem, err := mapFile(filepath.Join(p.Dir, "model"), head+p.Size)
	if err != nil {
		return nil, err
	}
	return &modelFile{p, unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), maxWriters), mem[head:]}, nil
}

// with calls f while it holds the lock of a writer's bytes: how is LOCK_SH or
// LOCK_EX. A process that is killed meanwhile lets go of it.
func (m *modelFile) with(writer, how int, f func()) error {
	file, err := os.OpenFile(filepath.Join(m.p.Dir, fmt.Sprintf("lock.%d", writer)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		if err := unix.Flock(int(file.Fd()), how); err == nil {
			break
		} else if err != unix.EINTR {
			return err
		}
	}
	f()
	return nil
}

// await polls until f is true or the board says stop, and reports f.
func (b *board) await(f func() bool) bool {
	for !f() {
		if b.stop.Load() != 0 {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}
