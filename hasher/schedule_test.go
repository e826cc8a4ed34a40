package hasher

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	modelSeed = flag.Uint64("model.seed", 0, "run only this seed of the model test")
	modelLong = flag.Duration("model.time", 5*time.Second, "how long each of the model tests runs")
)

func modelTime() time.Duration { return *modelLong }

// scheduler decides who goes on: goroutines stop at each park, and when all
// that can run have stopped, one of them, chosen by the seed, is let go.
type scheduler struct {
	rng *rand.Rand

	mu     sync.Mutex
	parked []chan struct{}
	free   bool // nobody is stopped any more
}

func (s *scheduler) park(string) {
	s.mu.Lock()
	if s.free {
		s.mu.Unlock()
		return
	}
	ch := make(chan struct{})
	s.parked = append(s.parked, ch)
	s.mu.Unlock()
	<-ch
}

// step lets one go, and reports whether there was one.
func (s *scheduler) step() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parked) == 0 {
		return false
	}
	i := s.rng.IntN(len(s.parked))
	close(s.parked[i])
	s.parked = append(s.parked[:i], s.parked[i+1:]...)
	return true
}

func (s *scheduler) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = true
	for _, ch := range s.parked {
		close(ch)
	}
	s.parked = nil
}

// runSchedule runs the model under the schedule of its seed. It must be
// called in a bubble of synctest, whose clock stands still while anybody can
// run.
func runSchedule(cfg modelConfig) error {
	// Whoever waits for a writer that has ended by now still has to see it.
	defer time.Sleep(time.Second)
	s := &scheduler{rng: rand.New(rand.NewPCG(cfg.seed, 4))}
	pool := NewPool(2, false)
	defer pool.Close()
	m, err := newModel(cfg, pool, s.park)
	if err != nil {
		return err
	}
	defer m.im.Close()
	defer s.release()
	ended := make(chan struct{})
	var all sync.WaitGroup
	for i := range cfg.actors {
		all.Go(m.actor(i, s.park).run)
	}
	go func() {
		all.Wait()
		close(ended)
	}()
	for idle := 0; ; {
		synctest.Wait()
		select {
		case <-ended:
			s.release()
			return m.settled()
		default:
		}
		if s.rng.IntN(16) == 0 {
			// Time goes by also while others could run.
			time.Sleep(time.Duration(s.rng.Int64N(int64(6 * modelTick))))
		}
		if s.step() {
			idle = 0
			continue
		}
		// All wait for a timer, or for each other.
		if idle++; idle > 10_000 {
			return fmt.Errorf("deadlock")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestModel_scheduled drives the same operations one step at a time.
func TestModel_scheduled(t *testing.T) {
	if *modelSeed != 0 {
		synctest.Test(t, func(t *testing.T) {
			if err := runSchedule(configFor(*modelSeed)); err != nil {
				t.Fatalf("seed %d, %+v: %v", *modelSeed, configFor(*modelSeed), err)
			}
		})
		return
	}
	start := time.Now()
	seeds := 0
	for seed := uint64(start.UnixNano()); time.Since(start) < modelTime() && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			if err := runSchedule(configFor(seed)); err != nil {
				t.Errorf("seed %d, %+v: %v", seed, configFor(seed), err)
			}
		})
		seeds++
	}
	t.Logf("%d schedules", seeds)
}
