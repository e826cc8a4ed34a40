package nbdsrc

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
	"hashfs/nbdsrc/internal/qemunbd"
)

// KnownFormats returns the formats that KnownFormat knows.
func KnownFormats() []string { return qemunbd.Formats() }

// KnownFormat reports whether OpenImage serves images of that format: qcow2
// and others, by the names of QEMU's drivers. raw is not among them.
func KnownFormat(format string) bool { return qemunbd.Known(format) }

// ImageOptions say what image file is opened, and how.
type ImageOptions struct {
	Path, Format string
	Snapshot     string // an internal snapshot of a qcow2; "" is the image itself
	TrustChain   bool   // serve files that the owner of the image could not open
	Options
}

// An Image is an image file in a format of QEMU's, which a private qemu-nbd
// serves.
type Image struct {
	*Export
	server   *qemunbd.Server
	writable bool

	// mu guards the rest.
	mu      sync.Mutex
	writes  uint64        // counts them, from their start
	flushed uint64        // writes whose traces in the files are known
	known   qemunbd.Stamp // of a writable image, when it was last flushed
	changes uint64        // of a writable image, by others
	changed int64         // when the last was seen; nanoseconds since 1970

	restarts uint64 // of qemu-nbd, as of the last Stamp
	epoch    uint64 // of the connection that belongs to it
}

var (
	_ hasher.Source         = (*Image)(nil)
	_ hasher.WritableSource = (*Image)(nil)
	_ hasher.ZeroSource     = (*Image)(nil)
	_ hasher.StampedSource  = (*Image)(nil)
)

// OpenImage starts a qemu-nbd for an image file and connects to it. ctx bounds
// the opening only. The error is one line that says what to do.
func OpenImage(ctx context.Context, o ImageOptions) (*Image, error) {
	if err := loadLibnbd(); err != nil {
		return nil, fmt.Errorf("open %s: %w", o.Path, err)
	}
	server, err := qemunbd.Start(ctx, qemunbd.Options{
		Path: o.Path, Format: o.Format, Writable: o.Writable, Snapshot: o.Snapshot,
		TrustChain: o.TrustChain, Name: o.Name, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	o.Options.restarts = server.Restarts
	export, err := Open(ctx, server.URI(), o.Options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", o.Path, err), server.Close())
	}
	im := &Image{Export: export, server: server, writable: o.Writable, epoch: 1}
	if im.known, err = server.Stamp(); err != nil {
		return nil, errors.Join(err, im.Close())
	}
	im.changed = im.known.CTime
	return im, nil
}

// Watched reports whether changes by others show in the stamp, which they do
// unless the chain leads to something else than files.
func (im *Image) Watched() bool { return !im.server.Remote() }

// Stat returns the status of the image's own file.
func (im *Image) Stat() (unix.Stat_t, error) { return im.server.Stat() }

// Stamp returns a stamp of all files of the chain and of the connection.
//
// Our own writes change the files too, some of them later, when qemu-nbd
// writes its tables: so the files of a writable image, which QEMU's locks keep
// others away from, are compared only as long as nothing was written since the
// last Flush.
func (im *Image) Stamp() (hasher.Stamp, error) {
	files, err := im.server.Stamp()
	if err != nil {
		return hasher.Stamp{}, err
	}
	restarts, s, err := im.connection()
	if err != nil {
		return hasher.Stamp{}, err
	}
	if im.writable {
		im.mu.Lock()
		defer im.mu.Unlock()
		if im.writes == im.flushed && files.Files != im.known.Files {
			im.changes++
			im.changed = files.CTime
		}
		im.known = files
		s.CTime = im.changed
		s.Dev, s.Inode = mix(s.Dev, s.Inode, restarts, im.changes)
		return s, nil
	}
	s.MTime, s.CTime = files.MTime, files.CTime
	s.Dev, s.Inode = mix(s.Dev, s.Inode, restarts, files.Files[0], files.Files[1])
	s.NameDev, s.NameInode = files.Names[0], files.Names[1]
	return s, nil
}

// connection returns the stamp of the connection to the qemu-nbd that runs, and
// how many ended before that is known to belong to it or to an earlier one. It
// waits for it after a restart: the old one would give way later, and with it
// the size, under who has opened the image meanwhile.
func (im *Image) connection() (restarts uint64, s hasher.Stamp, err error) {
	im.mu.Lock()
	known, epoch := im.restarts, im.epoch
	im.mu.Unlock()
	if im.server.Restarts() != known {
		err = im.Export.renewed(epoch)
	}
	if err == nil {
		s, err = im.Export.Stamp()
	}
	if err != nil {
		return 0, hasher.Stamp{}, err
	}
	// Stamp may have waited for the next qemu-nbd. Counted before it, that one
	// would seem to be still to come.
	restarts = im.server.Restarts()
	im.mu.Lock()
	defer im.mu.Unlock()
	if restarts >= im.restarts {
		im.restarts, im.epoch = restarts, s.Inode
	}
	return restarts, s, nil
}

// mix returns numbers that differ where any of the values does.
func mix(values ...uint64) (uint64, uint64) {
	h := sha256.New()
	for _, v := range values {
		_ = binary.Write(h, binary.LittleEndian, v) // a hash takes all
	}
	sum := h.Sum(nil)
	return binary.LittleEndian.Uint64(sum), binary.LittleEndian.Uint64(sum[8:])
}

// AwaitWriters waits for writes by others to the files of the chain.
func (im *Image) AwaitWriters() error { return im.server.AwaitWriters() }

// writing notes that the files may change from now on, by our own doing.
func (im *Image) writing() {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.writes++
}

// WriteAt follows io.WriterAt.
func (im *Image) WriteAt(p []byte, off int64) (int, error) {
	im.writing()
	return im.Export.WriteAt(p, off)
}

// Zero is Export's.
func (im *Image) Zero(off, length int64, punch bool) error {
	im.writing()
	return im.Export.Zero(off, length, punch)
}

// Allocate is Export's.
func (im *Image) Allocate(off, length int64) error {
	im.writing()
	return im.Export.Allocate(off, length)
}

// WritesBack reports true: QEMU keeps its tables in memory until it is flushed.
func (im *Image) WritesBack() bool { return true }

// Flush makes completed writes durable, and with them the tables that QEMU had
// kept in memory.
func (im *Image) Flush() error {
	im.mu.Lock()
	before := im.writes
	im.mu.Unlock()
	if err := im.Export.Flush(); err != nil {
		return err
	}
	files, err := im.server.Stamp()
	if err != nil {
		return nil // the next Stamp fails too, and says so
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.writes == before {
		im.flushed, im.known = before, files
	}
	return nil
}

// Close closes the connection and ends qemu-nbd.
func (im *Image) Close() error {
	return errors.Join(im.Export.Close(), im.server.Close())
}
