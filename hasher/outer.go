package hasher

import (
	"encoding"
	"encoding/binary"
	"hash"
	"slices"
)

// blkhash, as nbdcopy --blkhash and blksum compute it, is a hash of hashes:
//
//	H( H(block 1) || ... || H(block N) || LE64(size) )
//
// The last block is hashed as it is, unpadded; size is in bytes.

// zeroBatchBlocks is how many digests of zero blocks the outer hash is fed at
// a time within a run of them.
const zeroBatchBlocks = 2048

// outerHash is the outer hash of an image after some blocks.
type outerHash struct {
	hash.Hash
	zeroBatch func() []byte
	digest    int64 // bytes
}

// addZeros adds n whole blocks of zeros.
func (o *outerHash) addZeros(n int64) {
	batch := o.zeroBatch()
	for n > 0 {
		k := min(n, zeroBatchBlocks)
		o.Write(batch[:k*o.digest])
		n -= k
	}
}

// finish adds the size and returns the checksum.
func (o *outerHash) finish(size int64) []byte {
	o.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
	return o.Sum(nil)
}

// writeZeros writes n zero bytes to h.
func writeZeros(h hash.Hash, n int64) {
	for n > 0 {
		k := min(n, int64(len(zeroPiece)))
		h.Write(zeroPiece[:k])
		n -= k
	}
}

var zeroPiece [pieceBytes]byte

const (
	// checkpointBlocks is the distance of checkpoints, unless there would be
	// too many: less than the blocks whose digests hash in a tenth of a
	// millisecond.
	checkpointBlocks = 1024

	// maxCheckpointBytes bounds the checkpoints of an image.
	maxCheckpointBytes = 1 << 20
)

// A checkpoint is the state of the outer hash after the first `blocks` blocks.
type checkpoint struct {
	blocks int64
	state  []byte
}

// checkpoints lets a checksum begin behind the blocks that have not changed
// since the last one. They are sorted. The image's mutex guards them.
type checkpoints struct {
	list     []checkpoint
	bytes    int
	distance int64 // blocks; doubled when there are too many
}

// wants reports whether a checkpoint after so many blocks is to be kept.
func (c *checkpoints) wants(blocks int64) bool {
	if blocks == 0 || blocks%c.distance != 0 {
		return false
	}
	_, found := c.find(blocks)
	return !found
}

func (c *checkpoints) find(blocks int64) (int, bool) {
	return slices.BinarySearchFunc(c.list, blocks, func(e checkpoint, b int64) int {
		return int(max(-1, min(1, e.blocks-b)))
	})
}

// add keeps a checkpoint that wants asked for.
func (c *checkpoints) add(p checkpoint) {
	i, found := c.find(p.blocks)
	if found {
		return
	}
	c.list = slices.Insert(c.list, i, p)
	c.bytes += checkpointCost(p)
	for c.bytes > maxCheckpointBytes {
		c.distance *= 2
		c.list = slices.DeleteFunc(c.list, func(p checkpoint) bool {
			drop := p.blocks%c.distance != 0
			if drop {
				c.bytes -= checkpointCost(p)
			}
			return drop
		})
	}
}

func checkpointCost(p checkpoint) int { return len(p.state) + 32 }

// drop forgets the checkpoints after more than the given number of blocks.
func (c *checkpoints) drop(blocks int64) {
	i, found := c.find(blocks)
	if found {
		i++
	}
	for _, p := range c.list[i:] {
		c.bytes -= checkpointCost(p)
	}
	clear(c.list[i:])
	c.list = c.list[:i]
}

// below returns the furthest checkpoint whose blocks are all below limit.
func (c *checkpoints) below(limit int64) (checkpoint, bool) {
	i, found := c.find(limit)
	if found {
		return c.list[i], true
	}
	if i == 0 {
		return checkpoint{}, false
	}
	return c.list[i-1], true
}

// saveState returns the state of a resumable hash.
func saveState(h hash.Hash) ([]byte, error) {
	return h.(encoding.BinaryMarshaler).MarshalBinary()
}

func restoreState(h hash.Hash, state []byte) error {
	return h.(encoding.BinaryUnmarshaler).UnmarshalBinary(state)
}

// finalSum is the checksum of a generation.
type finalSum struct {
	generation uint64
	sum        []byte // nil: not known
}
