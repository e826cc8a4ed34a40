package fs

import (
	"context"
	"encoding/hex"

	"hashfs/hasher"
)

// lineSize returns the bytes of a line of digests for a digest of n bytes: the
// digest in hex, "  blocks/", the offset in 16 hex digits and a newline.
func lineSize(n int64) int64 { return 2*n + 26 }

// appendLine appends the line of digests for the block at off.
func appendLine(dst, digest []byte, off int64) []byte {
	dst = hex.AppendEncode(dst, digest)
	dst = append(dst, "  blocks/"...)
	dst = appendBlockName(dst, off)
	return append(dst, '\n')
}

// hexLine returns a digest as the files checksum and sums show it.
func hexLine(digest []byte) text {
	return append(hex.AppendEncode(nil, digest), '\n')
}

// openView opens a view of the image that f is a file of.
func (d *imageDir) openView(ctx context.Context, f *file) (*hasher.View, error) {
	g, err := f.current(ctx)
	if err != nil {
		return nil, err
	}
	v, err := d.Image.Image.OpenView(ctx)
	if err != nil {
		return nil, err
	}
	if v.Size() != g.Size {
		v.Close()
		return nil, hasher.ErrStale
	}
	return v, nil
}

func (d *imageDir) openChecksum(ctx context.Context, f *file) (reader, error) {
	v, err := d.openView(ctx, f)
	if err != nil {
		return nil, err
	}
	compute := func(ctx context.Context) (text, error) {
		sum, err := v.Checksum(ctx)
		if err != nil {
			return nil, err
		}
		return hexLine(sum), nil
	}
	return &lazyText{size: f.size, compute: compute, done: v.Close}, nil
}

// digestsBin is an open digests.bin.
type digestsBin struct {
	view   *hasher.View
	digest int64 // bytes
}

func (d *imageDir) openDigestsBin(ctx context.Context, f *file) (reader, error) {
	v, err := d.openView(ctx, f)
	if err != nil {
		return nil, err
	}
	return &digestsBin{v, int64(d.Image.Image.Spec().Algorithm.Size())}, nil
}

func (r *digestsBin) close() { r.view.Close() }

func (r *digestsBin) readAt(ctx context.Context, dest []byte, off int64) (int, error) {
	first, n, size := records(off, int64(len(dest)), r.digest, r.view.Blocks())
	if n == 0 {
		return 0, nil
	}
	skip := off - first*r.digest
	if skip == 0 && size == n*r.digest {
		return int(size), r.view.ReadDigests(ctx, dest[:size], first)
	}
	buf := make([]byte, n*r.digest)
	if err := r.view.ReadDigests(ctx, buf, first); err != nil {
		return 0, err
	}
	return copy(dest[:size], buf[skip:]), nil
}

// digestsText is an open file digests.
type digestsText struct {
	view      *hasher.View
	digest    int64 // bytes
	blockSize int64
}

func (d *imageDir) openDigests(ctx context.Context, f *file) (reader, error) {
	v, err := d.openView(ctx, f)
	if err != nil {
		return nil, err
	}
	spec := d.Image.Image.Spec()
	return &digestsText{v, int64(spec.Algorithm.Size()), int64(spec.BlockSize)}, nil
}

func (r *digestsText) close() { r.view.Close() }

func (r *digestsText) readAt(ctx context.Context, dest []byte, off int64) (int, error) {
	first, n, size := records(off, int64(len(dest)), lineSize(r.digest), r.view.Blocks())
	if n == 0 {
		return 0, nil
	}
	digests := make([]byte, n*r.digest)
	if err := r.view.ReadDigests(ctx, digests, first); err != nil {
		return 0, err
	}
	return renderLines(dest[:size], off-first*lineSize(r.digest), digests, first, r.digest, r.blockSize), nil
}

// renderLines fills dest with the lines for digests, which begin with that of
// block first, less the first skip bytes. It returns len(dest).
func renderLines(dest []byte, skip int64, digests []byte, first, digest, blockSize int64) int {
	var line []byte
	filled := 0
	for i := int64(0); filled < len(dest); i++ {
		line = appendLine(line[:0], digests[i*digest:(i+1)*digest], (first+i)*blockSize)
		filled += copy(dest[filled:], line[skip:])
		skip = 0
	}
	return filled
}

// records returns which records of a file of total records a read of length
// bytes at off touches, [first, first+n), and how many bytes there are to read.
func records(off, length, record, total int64) (first, n, size int64) {
	size = min(length, total*record-off)
	if size <= 0 {
		return 0, 0, 0
	}
	first = off / record
	return first, (off+size-1)/record - first + 1, size
}
