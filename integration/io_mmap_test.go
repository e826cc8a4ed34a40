package integration

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A store through a shared mapping counts as written when it arrives: after
// msync(2) or fsync(2) the digests are those of it, and a view opened before
// still shows what was.
func TestMmap_shared_store(t *testing.T) {
	t.Parallel()
	model := random(15, ioSize)
	d := writableDisk(t, model)
	f := d.open(os.O_RDWR)
	mem, err := unix.Mmap(int(f.Fd()), 0, ioSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	sameBytes(t, "mapping", mem, model)
	for _, row := range []struct {
		name        string
		off, length int64
		arrive      func() error
	}{
		{"msync", 100, 5000, func() error { return unix.Msync(mem, unix.MS_SYNC) }},
		{"fsync", 7*blockSize - 50, 3 * blockSize, func() error { return unix.Fsync(int(f.Fd())) }},
		{"msync of the tail", ioSize - 9, 9, func() error { return unix.Msync(mem, unix.MS_SYNC) }},
		{"fdatasync", 12 * blockSize, 1, func() error { return unix.Fdatasync(int(f.Fd())) }},
	} {
		before := newOracle(model)
		view, err := os.Open(d.path("disk", "digests.bin"))
		if err != nil {
			t.Fatal(err)
		}
		p := random(uint64(row.off), row.length)
		copy(mem[row.off:], p)
		copy(model[row.off:], p)
		wantErrno(t, row.name, row.arrive(), 0)
		old := make([]byte, len(before.blocks))
		if _, err := view.ReadAt(old, 0); err != nil {
			t.Error(err)
		}
		same(t, row.name+": digests.bin, opened before", string(old), before.bin())
		view.Close()
		sameBytes(t, row.name+": backing file", []byte(readFile(t, d.backing)), model)
		d.checkHere(row.name)
	}

	// Others' writes are seen in the mapping, as a file's are.
	p := random(99, 10000)
	if _, err := d.open(os.O_WRONLY).WriteAt(p, 4*blockSize+5); err != nil {
		t.Fatal(err)
	}
	copy(model[4*blockSize+5:], p)
	sameBytes(t, "mapping after a write", mem, model)
	d.check("after all")
}
