package hasher

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestCheckpoints_thinned: there are never more than a mebibyte of them, and those
// that are left are the ones of a larger distance.
func TestCheckpoints_thinned(t *testing.T) {
	c := checkpoints{distance: 1024}
	state := make([]byte, 108)
	const last = 40000
	for i := range int64(last) {
		if at := (i + 1) * 1024; c.wants(at) {
			c.add(checkpoint{at, state})
		}
		if cost := len(c.list) * checkpointCost(checkpoint{0, state}); cost != c.bytes || cost > maxCheckpointBytes {
			t.Fatalf("%d checkpoints, %d bytes", len(c.list), c.bytes)
		}
	}
	if c.distance <= 1024 || c.bytes < maxCheckpointBytes/3 {
		t.Errorf("distance %d, %d bytes", c.distance, c.bytes)
	}
	for i, p := range c.list {
		if p.blocks != int64(i+1)*c.distance {
			t.Fatalf("checkpoint %d is after %d blocks, the distance is %d", i, p.blocks, c.distance)
		}
	}
	for range 100 {
		at := rand.Int64N(last * 1024)
		c.drop(at)
		if i := slices.IndexFunc(c.list, func(p checkpoint) bool { return p.blocks > at }); i >= 0 {
			t.Fatalf("a checkpoint after %d blocks, behind %d", c.list[i].blocks, at)
		}
	}
}
