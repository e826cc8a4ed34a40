package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A block device can be written through the mount, and its digests follow.
func TestWrite_device(t *testing.T) {
	t.Parallel()
	const size = 20 * blockSize
	data := random(71, size)
	file := filepath.Join(scratch(t), "file")
	writeImage(t, file, data)
	device, _ := attachLoop(t, file, "--direct-io=off")
	d := mountDisk(t, device, "--writable")
	f := d.open(os.O_RDWR)
	for i, at := range ranges() {
		if at.off+at.length > size || i%3 > 0 {
			continue
		}
		if i%2 == 0 {
			mode := []uint32{punch | keepSize, zero}[i%4/2]
			wantErrno(t, "fallocate", fallocate(f, mode, at.off, at.length), 0)
			clear(data[at.off : at.off+at.length])
		} else {
			p := random(uint64(i), at.length)
			if _, err := f.WriteAt(p, at.off); err != nil {
				t.Fatal(err)
			}
			copy(data[at.off:], p)
		}
		same(t, fmt.Sprintf("digests.bin after %d at %d", at.length, at.off), d.read("disk", "digests.bin"), newOracle(data).bin())
	}
	wantErrno(t, "fsync", f.Sync(), 0)
	sameBytes(t, "device", []byte(readFile(t, device)), data)
	sameBytes(t, "its file", []byte(readFile(t, file)), data)
	d.checkDigests("disk", newOracle(data))
}
