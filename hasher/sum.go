package hasher

import (
	"context"
	"errors"
	"io"
)

// SumReader returns the blkhash of what r gives up to its end, as
// View.Checksum does for an image. It is for pipes, where nothing can be read
// twice or out of order. progress, if not nil, is called with the number of
// bytes read so far.
func SumReader(ctx context.Context, r io.Reader, s Spec, progress func(done int64)) ([]byte, error) {
	outer := &outerHash{Hash: s.Algorithm.New(), digest: int64(s.Algorithm.Size())}
	block := s.Algorithm.New()
	filled := 0 // bytes of the present block
	var digest []byte
	end := func() {
		digest = block.Sum(digest[:0])
		outer.Write(digest)
		block.Reset()
		filled = 0
	}
	size, err := eachPiece(ctx, r, progress, func(p []byte) {
		for len(p) > 0 {
			n := min(len(p), s.BlockSize-filled)
			block.Write(p[:n])
			p = p[n:]
			if filled += n; filled == s.BlockSize {
				end()
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if filled > 0 {
		end()
	}
	return outer.finish(size), nil
}

// PlainSumReader returns the plain digest of what r gives up to its end.
func PlainSumReader(ctx context.Context, r io.Reader, a *Algorithm, progress func(done int64)) ([]byte, error) {
	h := a.New()
	if _, err := eachPiece(ctx, r, progress, func(p []byte) { h.Write(p) }); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// eachPiece calls f with all that r gives, in order, and returns its length.
func eachPiece(ctx context.Context, r io.Reader, progress func(int64), f func([]byte)) (int64, error) {
	buf := make([]byte, pieceBytes)
	size := int64(0)
	for {
		if err := ctx.Err(); err != nil {
			return size, err
		}
		n, err := r.Read(buf)
		f(buf[:n])
		size += int64(n)
		if progress != nil {
			progress(size)
		}
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return size, err
		}
	}
}
