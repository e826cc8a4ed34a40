package fs

import (
	"sync"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
)

// keepBlocks is how many names below blocks the kernel may keep of a mount.
// Dropping one costs some 10 µs and a later lookup, so a few may stay.
const keepBlocks = 1024

// A forgetter has the kernel drop names below blocks again. It would keep the
// inodes for as long as it has memory to spare, and we would have to know each
// of them: a loop over the blocks of a large image would never be forgotten.
type forgetter struct {
	wake    chan struct{}
	stopped chan struct{}
	once    sync.Once

	// mu guards queue, the names looked up and not dropped yet, oldest
	// first. It is not held while the kernel drops one, which waits for
	// lookups in that directory to end.
	mu    sync.Mutex
	queue []entry
}

type entry struct {
	dir  *fusefs.Inode
	name string
}

func newForgetter() *forgetter {
	f := &forgetter{wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	go f.run()
	return f
}

// later notes that name was looked up in dir. It never waits, since a lookup
// that did would wait for itself.
func (f *forgetter) later(dir *fusefs.Inode, name string) {
	f.mu.Lock()
	f.queue = append(f.queue, entry{dir, name})
	due := len(f.queue) > keepBlocks
	f.mu.Unlock()
	if !due {
		return
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *forgetter) run() {
	for {
		select {
		case <-f.wake:
		case <-f.stopped:
			return
		}
		for {
			e, ok := f.next()
			if !ok {
				break
			}
			// An error says that the kernel has no such name any more,
			// or that the mount is gone. A file in use stays usable.
			e.dir.NotifyEntry(e.name)
		}
	}
}

func (f *forgetter) next() (entry, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) <= keepBlocks {
		return entry{}, false
	}
	e := f.queue[0]
	f.queue = f.queue[1:]
	return e, true
}

func (f *forgetter) stop() { f.once.Do(func() { close(f.stopped) }) }
