package blockcache

// State is what is known of a block.
type State uint8

// The states of a block. Only a data block has a digest in the table.
const (
	Unknown State = iota // nothing is known
	Zero                 // reads as zeros
	Data                 // its digest is in the table
	Failed               // could not be read when that was last tried
)

// RunBlocks is the number of blocks that share a page and a kind.
const RunBlocks = 1024

// mixed is the kind of a run whose blocks are not all alike.
const mixed = 4

// A Table holds the states and digests of the blocks of one image. Ranges are
// a first block and a number of blocks, and must lie within the table.
type Table struct {
	cache  *Cache
	blocks int64
	digest int // bytes of a digest

	kinds  []uint8  // a State or mixed, one a run
	states []uint64 // wordsPerRun a run, valid for mixed runs; made when first needed
	pages  []*page  // one a run, nil without
	counts [4]int64 // blocks by state
}

// NewTable returns a table of blocks unknown blocks with digests of
// digestSize bytes.
func (c *Cache) NewTable(blocks int64, digestSize int) *Table {
	t := &Table{cache: c, digest: digestSize}
	c.mu.Lock()
	defer c.mu.Unlock()
	t.resetLocked(blocks)
	return t
}

// Reset forgets everything and gives the table a new length in blocks.
func (t *Table) Reset(blocks int64) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	for run, p := range t.pages {
		if p != nil {
			t.dropPageLocked(int64(run))
		}
	}
	t.resetLocked(blocks)
}

func (t *Table) resetLocked(blocks int64) {
	runs := (blocks + RunBlocks - 1) / RunBlocks
	if blocks != t.blocks || t.kinds == nil {
		t.kinds = make([]uint8, runs)
		t.pages = make([]*page, runs)
		t.states = nil
	}
	clear(t.kinds)
	t.blocks = blocks
	t.counts = [4]int64{Unknown: blocks}
}

// Blocks returns the length of the table in blocks.
func (t *Table) Blocks() int64 {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	return t.blocks
}

// Counts returns the number of blocks in each state, indexed by State.
func (t *Table) Counts() [4]int64 {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	return t.counts
}

// Run returns the state of block first, and how many of the n blocks from
// there on share it without a gap. n must be positive.
func (t *Table) Run(first, n int64) (State, int64) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	s := t.stateLocked(first)
	b, end := first, first+n
	for b < end {
		run := b / RunBlocks
		lo := b % RunBlocks
		hi := min(end-run*RunBlocks, RunBlocks)
		if k := t.kinds[run]; k == mixed {
			same := t.sameLocked(run, lo, hi, s)
			b += same
			if same < hi-lo {
				break
			}
		} else if State(k) != s {
			break
		} else {
			b += hi - lo
		}
	}
	return s, b - first
}

// Digests copies the digests of the data blocks from first on into dst, as
// many as fit, and returns how many it copied. It stops at the first block
// that is not data.
func (t *Table) Digests(dst []byte, first int64) int64 {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	d := int64(t.digest)
	b, end := first, min(first+int64(len(dst))/d, t.blocks)
	for b < end {
		run := b / RunBlocks
		p := t.pages[run]
		if p == nil {
			break
		}
		lo := b % RunBlocks
		hi := min(end-run*RunBlocks, RunBlocks)
		same := t.sameLocked(run, lo, hi, Data)
		if same == 0 {
			break
		}
		copy(dst[(b-first)*d:], p.digests[lo*d:(lo+same)*d])
		t.cache.lru.Get(pageKey{t, run})
		b += same
		if same < hi-lo {
			break
		}
	}
	t.cache.stats.Hits += b - first
	return b - first
}

// Find returns the first blocks in state s, at most limit of them.
func (t *Table) Find(s State, limit int) []int64 {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	var found []int64
	want := min(int64(limit), t.counts[s])
	for run := int64(0); run < int64(len(t.kinds)) && int64(len(found)) < want; run++ {
		if k := t.kinds[run]; k != mixed && State(k) != s {
			continue
		}
		end := min((run+1)*RunBlocks, t.blocks)
		for b := run * RunBlocks; b < end && int64(len(found)) < want; b++ {
			if t.stateLocked(b) == s {
				found = append(found, b)
			}
		}
	}
	return found
}

// SetZero marks n blocks from first on as zero.
func (t *Table) SetZero(first, n int64) { t.set(first, n, Zero) }

// SetFailed marks n blocks from first on as failed.
func (t *Table) SetFailed(first, n int64) { t.set(first, n, Failed) }

// Invalidate marks n blocks from first on as unknown. It takes time by the
// number of blocks and allocates nothing.
func (t *Table) Invalidate(first, n int64) { t.set(first, n, Unknown) }

func (t *Table) set(first, n int64, s State) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	for b, end := first, first+n; b < end; {
		run := b / RunBlocks
		hi := min(end-run*RunBlocks, RunBlocks)
		t.setRunLocked(run, b%RunBlocks, hi, s)
		b = run*RunBlocks + hi
	}
}

// SetData stores digests of consecutive blocks from first on. Where the cache
// has no room, blocks become unknown instead. With scan, the digests come from
// a pass over the image in order, which does not push out its own pages.
func (t *Table) SetData(first int64, digests []byte, scan bool) {
	t.cache.mu.Lock()
	defer t.cache.mu.Unlock()
	d := int64(t.digest)
	n := int64(len(digests)) / d
	t.cache.stats.Misses += n
	for b, end := first, first+n; b < end; {
		run := b / RunBlocks
		lo, hi := b%RunBlocks, min(end-run*RunBlocks, RunBlocks)
		if p := t.pageLocked(run, scan); p != nil {
			copy(p.digests[lo*d:hi*d], digests[(b-first)*d:])
			t.setRunLocked(run, lo, hi, Data)
		} else {
			t.setRunLocked(run, lo, hi, Unknown)
		}
		b = run*RunBlocks + hi
	}
}

// pageLocked returns the page of a run, making it if there is room.
func (t *Table) pageLocked(run int64, scan bool) *page {
	if p := t.pages[run]; p != nil {
		t.cache.lru.Get(pageKey{t, run})
		return p
	}
	size := t.runBlocksLocked(run) * int64(t.digest)
	if !t.cache.roomLocked(size, t, scan) {
		return nil
	}
	p := &page{digests: make([]byte, size)}
	t.pages[run] = p
	t.cache.pageSum += size
	t.cache.lru.Add(pageKey{t, run}, p)
	return p
}

// dropPageLocked frees the page of a run whose data blocks are or will be
// marked otherwise by the caller.
func (t *Table) dropPageLocked(run int64) {
	t.cache.pageSum -= int64(len(t.pages[run].digests))
	t.cache.lru.Remove(pageKey{t, run})
	t.pages[run] = nil
}

// runBlocksLocked returns the number of blocks in a run: RunBlocks, but for a
// shorter last one.
func (t *Table) runBlocksLocked(run int64) int64 {
	return min(t.blocks-run*RunBlocks, RunBlocks)
}
