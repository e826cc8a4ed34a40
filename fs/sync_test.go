package fs

import (
	"os"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/filesrc"
)

// flushCounter is a file that counts its flushes, which fail with err if that
// is not nil.
type flushCounter struct {
	*filesrc.File
	n   int
	err error
}

func (f *flushCounter) Flush() error {
	f.n++
	return f.err
}

// What is written durably reaches the disk before the answer: by fsync(2), and
// by a write to a file that was opened with O_SYNC or O_DSYNC.
func TestSync_flushesTheSource(t *testing.T) {
	source := &flushCounter{}
	k := newTestMount(t, testOptions{content: testContent(10000), writable: true, flushes: source})
	f := k.open("disk/image", syscall.O_RDWR)
	defer f.close()
	fsync := func() fuse.Status {
		return k.front.Fsync(nil, &fuse.FsyncIn{InHeader: header(f.node), Fh: f.fh})
	}
	write := func(flags uint32) fuse.Status {
		in := &fuse.WriteIn{InHeader: header(f.node), Fh: f.fh, Flags: flags, Size: 1}
		_, status := k.front.Writev(nil, in, [][]byte{[]byte("x")}) // as go-fuse does
		if status == fuse.ENOSYS {
			_, status = k.front.Write(nil, in, []byte("x"))
		}
		return status
	}
	for _, row := range []struct {
		name    string
		request func() fuse.Status
		want    int // flushes
	}{
		{"fsync", fsync, 1},
		{"write", func() fuse.Status { return write(uint32(os.O_RDWR)) }, 0},
		{"write with O_DSYNC", func() fuse.Status { return write(uint32(os.O_RDWR | syscall.O_DSYNC)) }, 1},
		{"write with O_SYNC", func() fuse.Status { return write(uint32(os.O_RDWR | syscall.O_SYNC)) }, 1},
	} {
		source.n, source.err = 0, nil
		if status := row.request(); !status.Ok() || source.n != row.want {
			t.Errorf("%s: %v after %d flushes, want %d", row.name, status, source.n, row.want)
		}
		if source.err = syscall.EIO; row.want == 0 {
			continue
		}
		if status := row.request(); status != fuse.EIO {
			t.Errorf("%s that cannot be flushed: %v, want %v", row.name, status, fuse.EIO)
		}
	}
}
