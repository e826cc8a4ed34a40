package integration

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	keepSize = unix.FALLOC_FL_KEEP_SIZE
	punch    = unix.FALLOC_FL_PUNCH_HOLE
	zero     = unix.FALLOC_FL_ZERO_RANGE
)

// Each mode of fallocate(2) does to the image what it says, and the digests and
// maps follow.
func TestFallocate(t *testing.T) {
	t.Parallel()
	model := random(7, ioSize)
	d := writableDisk(t, model)
	f := d.open(os.O_RDWR)
	const all = int64(ioSize)
	for _, row := range []struct {
		name        string
		mode        uint32
		off, length int64
		want        unix.Errno
		zeroes      bool // what of the range lies within the image
	}{
		{"punch a part of a block", punch | keepSize, 5000, 100, 0, true},
		{"punch blocks", punch | keepSize, blockSize, 2 * blockSize, 0, true},
		{"punch across borders", punch | keepSize, 5*blockSize - 9, blockSize + 18, 0, true},
		{"zero a part of a block", zero, 7*blockSize + 1, 4000, 0, true},
		{"zero blocks", zero, 8 * blockSize, blockSize, 0, true},
		{"zero blocks, keep the size", zero | keepSize, 9 * blockSize, 2 * blockSize, 0, true},
		{"allocate", 0, blockSize, blockSize, 0, false},
		{"allocate, keep the size", keepSize, 2 * blockSize, blockSize, 0, false},
		{"punch across the end", punch | keepSize, all - 500, 10000, 0, true},
		{"punch beyond the end", punch | keepSize, all + 1, 10000, 0, false},
		{"zero across the end, keep the size", zero | keepSize, all - 700, 10000, 0, true},
		{"zero up to the end", zero, all - 900, 900, 0, true},

		{"grow by allocating", 0, all - 100, 101, unix.ENOSPC, false},
		{"grow by allocating beyond", 0, all, 1, unix.ENOSPC, false},
		{"grow by zeroing", zero, all - 100, 101, unix.ENOSPC, false},
		{"punch without keeping the size", punch, 0, 4096, unix.EOPNOTSUPP, false},
		{"collapse", unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096, unix.EOPNOTSUPP, false},
		{"insert", unix.FALLOC_FL_INSERT_RANGE, 0, 4096, unix.EOPNOTSUPP, false},
		{"unshare", unix.FALLOC_FL_UNSHARE_RANGE, 0, 4096, unix.EOPNOTSUPP, false},

		{"punch all", punch | keepSize, 0, 1 << 40, 0, true},
	} {
		err := fallocate(f, row.mode, row.off, row.length)
		wantErrno(t, row.name, err, row.want)
		if row.zeroes {
			clear(model[row.off:min(all, row.off+row.length)])
		}
		sameBytes(t, row.name+": backing file", []byte(readFile(t, d.backing)), model)
		d.checkHere(row.name)
	}
	d.check("after all")
	if st := d.info("disk"); st.Size != all {
		t.Errorf("the size is %d, want %d", st.Size, all)
	}
}

// What a punched block held before is never seen again, whichever of its parts
// are written or zeroed after.
func TestFallocate_then_write(t *testing.T) {
	t.Parallel()
	model := random(8, 4*blockSize)
	d := writableDisk(t, model)
	f := d.open(os.O_RDWR)
	for i := range int64(40) {
		off := i * 1021 % (3 * blockSize)
		length := blockSize/2 + i
		if i%2 == 0 {
			if err := fallocate(f, punch|keepSize, off, length); err != nil {
				t.Fatal(err)
			}
			clear(model[off : off+length])
		} else {
			p := random(uint64(i), length/3)
			if _, err := f.WriteAt(p, off); err != nil {
				t.Fatal(err)
			}
			copy(model[off:], p)
		}
		same(t, fmt.Sprintf("digests.bin after step %d", i), d.read("disk", "digests.bin"), newOracle(model).bin())
	}
	sameBytes(t, "backing file", []byte(readFile(t, d.backing)), model)
	d.check("after all")
}

// SEEK_DATA and SEEK_HOLE of the image answer what those of the backing do,
// whether we serve the image or the kernel passes it through.
func TestSeek_data_and_hole(t *testing.T) {
	t.Parallel()
	pieces := []piece{{3 * blockSize, random(9, 100)}, {40 * blockSize, random(10, blockSize+1)}, {99*blockSize + 4096, random(11, 77)}}
	for _, row := range []struct {
		name  string
		size  int64
		flags []string
	}{
		{"writable", 120*blockSize + 17, []string{"--writable"}},
		{"read-only", 120*blockSize + 17, nil},
		{"read-only, data last", 99*blockSize + 4096 + 77, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := scratch(t) + "/sparse.img"
			writeSparse(t, path, row.size, pieces...)
			d := mountDisk(t, path, row.flags...)
			through := d.open(os.O_RDONLY)
			direct, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer direct.Close()
			for off := int64(0); off <= row.size+blockSize; off += blockSize / 4 {
				for _, whence := range []int{unix.SEEK_DATA, unix.SEEK_HOLE} {
					got, gotErr := unix.Seek(int(through.Fd()), off, whence)
					want, wantErr := unix.Seek(int(direct.Fd()), off, whence)
					if got != want || gotErr != wantErr {
						t.Errorf("whence %d from %d: %d, %v; the backing says %d, %v", whence, off, got, gotErr, want, wantErr)
					}
				}
			}
			d.check("after all")
		})
	}
}
