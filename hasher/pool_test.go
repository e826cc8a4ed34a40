package hasher

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWorker_hold: a worker that waits briefly keeps its place, and another time
// one that waits long gives it up, as often as there are requests. That costs no
// allocation.
func TestWorker_hold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(1, false)
		defer p.Close()
		p.do(func(w *worker) {
			for i, wait := range []time.Duration{0, 2 * placePatience, 0, 3 * placePatience, 2 * placePatience, placePatience / 2} {
				long := wait > placePatience
				left := w.hold(func() {
					time.Sleep(wait)
					synctest.Wait()
					if w.active == long {
						t.Errorf("wait %d, of %v: it has a place: %t", i, wait, w.active)
					}
				})
				if left != long {
					t.Errorf("wait %d, of %v: its place was left: %t", i, wait, left)
				}
				if left {
					w.enter()
				}
			}
			waits := 0
			if n := testing.AllocsPerRun(100, func() { w.hold(func() { waits++ }) }); n > 0 {
				t.Errorf("%v allocations for each wait", n)
			}
		})
	})
}
