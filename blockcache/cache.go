package blockcache

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// A Cache bounds the digests kept by the tables made from it.
type Cache struct {
	// mu guards everything below and everything in the tables of the cache:
	// evicting a page of one table on behalf of another changes both.
	mu       sync.Mutex
	limit    int64 // bytes, 0 keeps no page at all
	pageSum  int64 // bytes of all pages
	reserved int64 // bytes reserved by callers
	lru      *simplelru.LRU[pageKey, *page]
	stats    Stats
}

// Stats counts the work of a cache since it was made.
type Stats struct {
	Bytes, Limit int64 // digest pages and reservations; bytes
	Hits         int64 // digests taken from a table
	Misses       int64 // digests that had to be computed and were put into one
	Evictions    int64 // pages that left for want of room
}

type pageKey struct {
	table *Table
	run   int64
}

// page holds the digests of one run, at fixed places.
type page struct {
	digests []byte
}

// New returns a cache that keeps at most limit bytes.
func New(limit int64) *Cache {
	// The entries are bounded in bytes below, never by their number.
	lru, err := simplelru.NewLRU[pageKey, *page](math.MaxInt, nil)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &Cache{limit: max(limit, 0), lru: lru}
}

// Stats returns the counters as they are now.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Bytes, s.Limit = c.pageSum+c.reserved, c.limit
	return s
}

// Reserve sets n bytes aside for digests that the caller keeps outside of the
// tables; pages give way. It reports false, and reserves nothing, when the
// limit does not allow it even without pages.
func (c *Cache) Reserve(n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reserved+n > c.limit {
		return false
	}
	for c.pageSum+c.reserved+n > c.limit {
		c.evictOldestLocked()
	}
	c.reserved += n
	return true
}

// Release gives back n bytes of what was reserved.
func (c *Cache) Release(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved -= n
}

// evictOldestLocked drops the least recently used page. There must be one.
func (c *Cache) evictOldestLocked() {
	key, p, _ := c.lru.RemoveOldest()
	c.pageSum -= int64(len(p.digests))
	c.stats.Evictions++
	key.table.dropDataLocked(key.run)
}

// roomLocked makes room for n bytes on behalf of table t. A scan does not
// push out pages of its own table: they would be gone before it comes back
// to them, and so would the pages that replace them.
func (c *Cache) roomLocked(n int64, t *Table, scan bool) bool {
	if c.reserved+n > c.limit {
		return false
	}
	for c.pageSum+c.reserved+n > c.limit {
		if oldest, _, ok := c.lru.GetOldest(); scan && ok && oldest.table == t {
			return false
		}
		c.evictOldestLocked()
	}
	return true
}
