package hasher

import (
	"slices"
	"time"

	"hashfs/blockcache"
)

// Status is what an image knows and does, at one moment.
type Status struct {
	Geometry
	BlockCounts BlockCounts
	Cache       blockcache.Stats // of all images that share the cache
	CacheNeeded int64            // bytes that would hold all digests of this image
	Work        []Work           // by the time of their start
	LastError   *Failure         // nil: none since the start
	Bad         []int64          // offsets of failed blocks in bytes, the first 64
	HashedBytes int64            // read and hashed since the start
	ReadErrors  int64            // since the start
}

// BlockCounts says how many blocks are in which state.
type BlockCounts struct {
	Total, Unknown, Zero, Data, Failed int64
}

// Work is a computation under way.
type Work struct {
	File        string // that was read: "checksum", "map" or "sums/" and an algorithm
	Done, Total int64  // bytes
	Started     time.Time
}

// A Failure is a read that failed.
type Failure struct {
	Offset, Length int64 // bytes
	Message        string
	Time           time.Time
}

// maxBad bounds Status.Bad.
const maxBad = 64

// Status returns the present status. It neither reads nor waits. If writes are
// under way it moves the generation.
func (im *Image) Status() Status {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.writes > 0 {
		// Two looks at one generation promise that nothing changed between
		// them, which nobody can say while a write is under way.
		im.generation++
	}
	c := im.table.Counts()
	s := Status{
		Geometry:    im.geometryLocked(),
		BlockCounts: BlockCounts{im.blocks, c[blockcache.Unknown], c[blockcache.Zero], c[blockcache.Data], c[blockcache.Failed]},
		Cache:       im.cache.Stats(),
		CacheNeeded: im.blocks * im.digestSize,
		HashedBytes: im.hashedBytes,
		ReadErrors:  im.readErrors,
	}
	for _, b := range im.table.Find(blockcache.Failed, maxBad) {
		s.Bad = append(s.Bad, b*int64(im.spec.BlockSize))
	}
	if im.failure != nil {
		f := *im.failure
		s.LastError = &f
	}
	for t := range im.tasks {
		s.Work = append(s.Work, Work{t.file, t.doneBytes.Load(), t.total, t.started})
	}
	slices.SortFunc(s.Work, func(a, b Work) int { return a.Started.Compare(b.Started) })
	return s
}
