package fs

import (
	"context"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/hasher"
)

// userRequests is how many requests that may compute something one user has
// answered at a time; others wait. Each has a few jobs queued, of some megabytes
// each, which is what another user waits for at most.
const userRequests = 16

// A limiter bounds the work that one user can cause.
type limiter struct {
	// mu guards users, who are there while they have requests.
	mu    sync.Mutex
	users map[uint32]*userLimit
}

type userLimit struct {
	requests int           // at work or waiting; guarded by limiter.mu
	places   chan struct{} // one for each at work
}

func newLimiter() *limiter { return &limiter{users: map[uint32]*userLimit{}} }

// enter waits for a place for the user who made the request of ctx, or until
// ctx ends. The caller must call leave if there is no error. If ctx has ended by
// then, the place is taken for as long as the work goes on without who asked for it.
func (l *limiter) enter(ctx context.Context) (leave func(), err error) {
	var uid uint32
	if caller, ok := fuse.FromContext(ctx); ok {
		uid = caller.Uid
	}
	l.mu.Lock()
	u := l.users[uid]
	if u == nil {
		u = &userLimit{places: make(chan struct{}, userRequests)}
		l.users[uid] = u
	}
	u.requests++
	l.mu.Unlock()
	select {
	case u.places <- struct{}{}:
		free := func() {
			<-u.places
			l.left(uid, u)
		}
		return func() {
			if ctx.Err() == nil {
				free()
				return
			}
			time.AfterFunc(hasher.Linger, free)
		}, nil
	case <-ctx.Done():
		l.left(uid, u)
		return nil, ctx.Err()
	}
}

func (l *limiter) left(uid uint32, u *userLimit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u.requests--
	if u.requests == 0 {
		delete(l.users, uid)
	}
}
