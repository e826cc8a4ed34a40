package hasher

import (
	"math/bits"

	"hashfs/blockcache"
)

// An overlay keeps what blocks were before they were overwritten, for one
// moment of an image: block -> digest, zero or unreadable. A block is put in
// once and never changed. Blocks lie in groups of overlayBlocks; a group that
// is all zero is one entry of a map, so that runs of zeros stay cheap.
//
// The image's mutex guards an overlay.
type overlay struct {
	digest int // bytes of a digest
	groups map[int64]*overlayGroup
	low    int64 // the lowest block held, while groups is not empty
	bytes  int64 // what it costs in memory, roughly, for the cache's limit
}

const (
	overlayBlocks = 1024
	overlayWords  = overlayBlocks / 64

	// overlayGroupBytes is the cost of a group besides its digests: three
	// bitmaps, slice headers and a place in a map.
	overlayGroupBytes = 512

	// zeroGroupBytes is the cost of a group of zeros: its place in the map.
	zeroGroupBytes = 64
)

// overlayGroup holds the blocks of one group: three bitmaps, and the digests
// of the data blocks in the order of the blocks.
type overlayGroup struct {
	held, data, failed [overlayWords]uint64 // data and failed are parts of held
	digests            []byte
}

// zeroGroup stands for all groups whose blocks are all zero.
var zeroGroup = func() *overlayGroup {
	g := new(overlayGroup)
	for i := range g.held {
		g.held[i] = ^uint64(0)
	}
	return g
}()

// held is what an overlay says of a block.
type held uint8

const (
	heldNot held = iota
	heldZero
	heldData
	heldFailed
)

func (g *overlayGroup) kind(i int64) held {
	w, bit := i/64, uint64(1)<<(i%64)
	switch {
	case g.held[w]&bit == 0:
		return heldNot
	case g.data[w]&bit != 0:
		return heldData
	case g.failed[w]&bit != 0:
		return heldFailed
	}
	return heldZero
}

// rank returns the number of data blocks below i.
func (g *overlayGroup) rank(i int64) int {
	n := 0
	for w := range i / 64 {
		n += bits.OnesCount64(g.data[w])
	}
	return n + bits.OnesCount64(g.data[i/64]&(1<<(i%64)-1))
}

// empty reports whether no block below limit is held.
func (o *overlay) emptyBelow(limit int64) bool {
	return len(o.groups) == 0 || o.low >= limit
}

// run tells what is held of block b, and for how many of the n blocks from
// there on that is the same. Runs of held blocks end with their group.
func (o *overlay) run(b, n int64) (held, int64) {
	if len(o.groups) == 0 {
		return heldNot, n
	}
	for at := b; at < b+n; {
		group, i := at/overlayBlocks, at%overlayBlocks
		end := min(overlayBlocks, b+n-group*overlayBlocks)
		g := o.groups[group]
		if g == nil {
			at = group*overlayBlocks + end
			continue
		}
		k := g.kind(i)
		if k != heldNot && at > b {
			return heldNot, at - b
		}
		j := i + 1
		for j < end && g.kind(j) == k {
			j++
		}
		at += j - i
		if k != heldNot {
			return k, at - b
		}
		if j < end {
			return heldNot, at - b
		}
	}
	return heldNot, n
}

// digests appends the digests of the data blocks [b, b+n) of one group.
func (o *overlay) digests(dst []byte, b, n int64) []byte {
	g := o.groups[b/overlayBlocks]
	at := g.rank(b%overlayBlocks) * o.digest
	return append(dst, g.digests[at:at+int(n)*o.digest]...)
}

// group returns the group of block b for a change, making it if need be.
func (o *overlay) group(b int64) *overlayGroup {
	if len(o.groups) == 0 || b < o.low {
		o.low = b
	}
	if o.groups == nil {
		o.groups = map[int64]*overlayGroup{}
	}
	g := o.groups[b/overlayBlocks]
	if g == nil {
		g = new(overlayGroup)
		o.groups[b/overlayBlocks] = g
		o.bytes += overlayGroupBytes
	}
	return g
}

// setData puts in data blocks from b on, none of which is held.
func (o *overlay) setData(b int64, digests []byte) {
	for len(digests) > 0 {
		g, i := o.group(b), b%overlayBlocks
		n := min(overlayBlocks-i, int64(len(digests)/o.digest))
		// The blocks are not held, so their digests lie side by side.
		at, size := g.rank(i)*o.digest, int(n)*o.digest
		g.digests = append(g.digests, digests[:size]...)
		copy(g.digests[at+size:], g.digests[at:])
		copy(g.digests[at:], digests[:size])
		o.bytes += int64(size)
		for j := i; j < i+n; j++ {
			g.held[j/64] |= 1 << (j % 64)
			g.data[j/64] |= 1 << (j % 64)
		}
		digests = digests[size:]
		b += n
	}
}

// setZero puts in n zero blocks from b on, none of which is held.
func (o *overlay) setZero(b, n int64) {
	for end := b + n; b < end; {
		i := b % overlayBlocks
		k := min(overlayBlocks-i, end-b)
		if k == overlayBlocks {
			o.group(b)
			o.groups[b/overlayBlocks] = zeroGroup
			o.bytes += zeroGroupBytes - overlayGroupBytes
		} else {
			g := o.group(b)
			for j := i; j < i+k; j++ {
				g.held[j/64] |= 1 << (j % 64)
			}
		}
		b += k
	}
}

// setFailed puts in block b, not held yet, as one that cannot be read.
func (o *overlay) setFailed(b int64) {
	g, i := o.group(b), b%overlayBlocks
	g.held[i/64] |= 1 << (i % 64)
	g.failed[i/64] |= 1 << (i % 64)
}

// fill takes over what the table knows of the blocks of [s.lo, s.hi) that are
// not held yet. It returns the first block that the table does not know, or
// s.hi; blocks before it are held now.
func (o *overlay) fill(s span, t *blockcache.Table, buf []byte) int64 {
	for b := s.lo; b < s.hi; {
		if k, n := o.run(b, s.hi-b); k != heldNot {
			b += n
			continue
		} else if state, known := t.Run(b, n); state == blockcache.Zero {
			o.setZero(b, known)
			b += known
		} else if state == blockcache.Data {
			// The cache may drop the page between these two lines.
			got := t.Digests(buf[:min(known*int64(o.digest), int64(len(buf)))], b)
			if got == 0 {
				return b
			}
			o.setData(b, buf[:got*int64(o.digest)])
			b += got
		} else {
			return b
		}
	}
	return s.hi
}
