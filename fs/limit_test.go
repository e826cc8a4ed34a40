package fs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/hasher"
)

func userContext(uid uint32) context.Context {
	return fuse.NewContext(context.Background(), &fuse.Caller{Owner: fuse.Owner{Uid: uid}})
}

func TestLimiter_oneUserCannotTakeAnothersPlaces(t *testing.T) {
	l := newLimiter()
	var leaves []func()
	for range userRequests {
		leave, err := l.enter(userContext(1))
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	ctx, cancel := context.WithCancel(userContext(1))
	cancel()
	if _, err := l.enter(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("one more of the same user: %v", err)
	}
	leave, err := l.enter(userContext(2))
	if err != nil {
		t.Fatal(err)
	}
	leave()
	waiting := make(chan error)
	go func() {
		leave, err := l.enter(userContext(1))
		if err == nil {
			leave()
		}
		waiting <- err
	}()
	for _, leave := range leaves {
		leave()
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if len(l.users) != 0 {
		t.Errorf("%d users are kept after their last request", len(l.users))
	}
}

// TestLimiter_interrupted: who is interrupted and comes again has no more work done at
// a time than who stays.
func TestLimiter_interrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		for range userRequests {
			ctx, cancel := context.WithCancel(userContext(1))
			leave, err := l.enter(ctx)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			leave()
		}
		left := time.Now()
		leave, err := l.enter(userContext(1))
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(left); d != hasher.Linger {
			t.Errorf("a place after %v, want %v", d, hasher.Linger)
		}
		leave()
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.users) != 0 {
			t.Errorf("%d users are kept after their last request", len(l.users))
		}
	})
}
