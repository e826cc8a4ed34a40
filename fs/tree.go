package fs

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"hashfs/hasher"
)

// mount is what the nodes of one mount share.
type mount struct {
	o       Options
	log     *slog.Logger
	images  []*imageDir
	started time.Time
	epoch   string // differs between any two mounts
	own     owner  // of what belongs to no image
	metrics *metrics
	forget  *forgetter
	limits  *limiter
	front   *front
	server  *fuse.Server // set before the first request

	// timeout is how long an answer may take before the kernel ends the
	// connection, less a margin; 0 is for ever.
	timeout time.Duration

	// mu guards logged, the text last logged of each image.
	mu     sync.Mutex
	logged map[*imageDir]string
}

func newMount(images []*Image, o Options) (*mount, error) {
	m := &mount{
		o:       o,
		log:     o.Log,
		started: time.Now(),
		epoch:   rand.Text(),
		forget:  newForgetter(),
		limits:  newLimiter(),
		timeout: requestTimeout(),
		logged:  map[*imageDir]string{},
	}
	for i, im := range images {
		d, err := m.newImageDir(im, uint64(i+1))
		if err != nil {
			return nil, err
		}
		m.images = append(m.images, d)
	}
	m.own = m.commonOwner()
	var err error
	m.metrics, err = newMetrics(m)
	return m, err
}

// close frees what the mount has besides what its handles do.
func (m *mount) close() {
	m.forget.stop()
	for _, d := range m.images {
		d.mu.Lock()
		if d.anonymous != nil {
			d.anonymous.Close()
			d.anonymous = nil
		}
		d.mu.Unlock()
	}
}

// deadline returns the context for work on a request that came with ctx. Past
// the kernel's own limit not the request would fail, but the whole mount.
func (m *mount) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if m.timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, m.timeout)
}

// requestTimeout returns 80 % of the time after which the kernel ends a
// connection over a request without an answer (proc(5), since Linux 6.15), or
// 0 where it does not.
func requestTimeout() time.Duration {
	limit := readSeconds("/proc/sys/fs/fuse/default_request_timeout")
	most := readSeconds("/proc/sys/fs/fuse/max_request_timeout")
	if most > 0 && (limit == 0 || most < limit) {
		limit = most
	}
	return limit * 8 / 10
}

func readSeconds(path string) time.Duration {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0 // an older kernel
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}

// fail turns the error of an operation on image d, which may be nil, into what
// the client is told. What becomes EIO is logged, since the client learns no
// more: a read error by package hasher, which knows its place, the rest here,
// once for as long as it is the same.
func (m *mount) fail(ctx context.Context, d *imageDir, op string, err error) syscall.Errno {
	errno := errnoOf(ctx, err)
	var read *hasher.ReadError
	if errno != syscall.EIO || errors.As(err, &read) {
		return errno
	}
	m.mu.Lock()
	again := m.logged[d] == op+err.Error()
	m.logged[d] = op + err.Error()
	m.mu.Unlock()
	if again {
		return errno
	}
	var name string
	if d != nil {
		name = d.Name
	}
	m.log.Error("request failed", "image", name, "op", op, "err", err)
	return errno
}
