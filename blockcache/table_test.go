package blockcache

import (
	"runtime"
	"testing"
)

func TestTable_holeCostsNothing(t *testing.T) {
	const blocks = 1000 << 30 / 65536
	c := New(1 << 20)
	tab := c.NewTable(blocks, 32)
	tab.SetZero(0, blocks)
	if s, n := tab.Run(5, blocks-5); s != Zero || n != blocks-5 {
		t.Errorf("Run = %d, %d", s, n)
	}
	if tab.states != nil || c.Stats().Bytes != 0 {
		t.Errorf("a hole costs states or %d bytes of digests", c.Stats().Bytes)
	}
}

func TestTable_scanKeepsOwnPages(t *testing.T) {
	c := New(2 * RunBlocks * 32)
	own, other := c.NewTable(4*RunBlocks, 32), c.NewTable(RunBlocks, 32)
	digests := make([]byte, RunBlocks*32)
	other.SetData(0, digests, true)
	for run := range int64(4) {
		own.SetData(run*RunBlocks, digests, true)
	}
	if n := own.Counts()[Data]; n != 2*RunBlocks {
		t.Errorf("%d data blocks kept of own scan, want the first two runs", n)
	}
	if s, _ := own.Run(0, 1); s != Data {
		t.Errorf("the scan pushed out its own first page")
	}
	own.SetData(3*RunBlocks, digests, false)
	if s, _ := own.Run(3*RunBlocks, 1); s != Data {
		t.Errorf("a lookup outside of a scan was not kept")
	}
}

func TestCache_reservationsPushPagesOut(t *testing.T) {
	c := New(2 * RunBlocks * 32)
	tab := c.NewTable(2*RunBlocks, 32)
	tab.SetData(0, make([]byte, 2*RunBlocks*32), false)
	if !c.Reserve(10) {
		t.Fatal("no room beside evictable pages")
	}
	if s, _ := tab.Run(0, 1); s != Unknown {
		t.Errorf("block of the evicted page is in state %d, want unknown", s)
	}
	if c.Reserve(2 * RunBlocks * 32) {
		t.Error("reserved more than the limit")
	}
	c.Release(10)
	if !c.Reserve(2 * RunBlocks * 32) {
		t.Error("no room after release")
	}
}

func TestTable_findStopsAtLimit(t *testing.T) {
	tab := New(0).NewTable(5000, 32)
	tab.SetFailed(4000, 3)
	tab.SetFailed(7, 1)
	for limit, want := range [][]int64{{}, {7}, {7, 4000}, {7, 4000, 4001}, {7, 4000, 4001, 4002}, {7, 4000, 4001, 4002}} {
		got := tab.Find(Failed, limit)
		if len(got) != len(want) {
			t.Fatalf("Find(%d) = %v, want %v", limit, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("Find(%d) = %v, want %v", limit, got, want)
			}
		}
	}
}

func TestTable_lookupsAndInvalidationAllocateNothing(t *testing.T) {
	tab := New(1<<30).NewTable(100*RunBlocks, 32)
	tab.SetData(0, make([]byte, 50*RunBlocks*32), false)
	tab.SetZero(50*RunBlocks, 50*RunBlocks)
	dst := make([]byte, 64*32)
	b := int64(0)
	allocs := testing.AllocsPerRun(1000, func() {
		b = (b + 37*64) % (100*RunBlocks - 64)
		tab.Run(b, 64)
		tab.Digests(dst, b)
		tab.Invalidate(b, 64)
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestTable_denseImageCostsLittleMoreThanItsDigests(t *testing.T) {
	for _, digest := range []int{16, 32, 64} {
		const blocks = 1 << 20
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		tab := New(1<<40).NewTable(blocks, digest)
		batch := make([]byte, RunBlocks*digest)
		for b := int64(0); b < blocks; b += RunBlocks {
			tab.SetData(b, batch, true)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		per := float64(after.HeapAlloc-before.HeapAlloc) / blocks
		if limit := 1.15 * float64(digest); per > limit {
			t.Errorf("digest of %d bytes: %.2f bytes a block, want at most %.2f", digest, per, limit)
		}
		runtime.KeepAlive(tab)
	}
}

func BenchmarkTable_digests(b *testing.B) {
	tab := New(1<<30).NewTable(64*RunBlocks, 32)
	tab.SetData(0, make([]byte, 64*RunBlocks*32), false)
	dst := make([]byte, RunBlocks*32)
	b.SetBytes(int64(len(dst)))
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		tab.Digests(dst, i%63*RunBlocks+512)
	}
}

func BenchmarkTable_invalidateBlock(b *testing.B) {
	tab := New(1<<30).NewTable(64*RunBlocks, 32)
	tab.SetData(0, make([]byte, 64*RunBlocks*32), false)
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		tab.Invalidate(i*4099%(64*RunBlocks), 1)
	}
}
