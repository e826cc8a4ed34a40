package filesrc

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// sectorBytes is the smallest unit of a block device's requests. Devices with
// larger sectors refuse BLKZEROOUT below theirs with EINVAL.
const sectorBytes = 512

// Device reports whether the image is a block device. Changes that somebody
// else makes to a device cannot be seen, but for its size.
func (f *File) Device() bool { return f.device }

// endOf returns the length of a file or block device in bytes: of the latter a seek
// to the end gives what the ioctl BLKGETSIZE64 does.
func endOf(file *os.File) (int64, error) {
	return file.Seek(0, io.SeekEnd)
}

// deviceStamp is the stamp of a block device: only its size can change in it.
// The caller holds nameMu.
func (f *File) deviceStamp(h *handle) (hasher.Stamp, error) {
	size, err := endOf(h.file)
	if err != nil {
		return hasher.Stamp{}, fmt.Errorf("size of %s: %w", f.path, err)
	}
	f.size.Store(size)
	// Its times are those of the device's node and say nothing of its bytes.
	return hasher.Stamp{Size: size, MTime: f.opened}, nil
}

// zeroDevice makes a range read as zeros: whole sectors by the device, what
// is left at both ends by writing.
func (h *handle) zeroDevice(off, length int64) error {
	sector := int64(sectorBytes)
	if n, err := unix.IoctlGetInt(h.fd, unix.BLKSSZGET); err == nil && n > 0 {
		sector = int64(n)
	}
	lo, hi := (off+sector-1)/sector*sector, (off+length)/sector*sector
	if lo >= hi {
		return h.writeZeros(off, length)
	}
	if err := h.writeZeros(off, lo-off); err != nil {
		return err
	}
	if err := retry(func() error { return zeroOut(h.fd, lo, hi-lo) }); err != nil {
		return err
	}
	return h.writeZeros(hi, off+length-hi)
}
