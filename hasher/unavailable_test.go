package hasher

import (
	"context"
	"errors"
	"testing"
	"time"
)

// goneSource is a source that can be away: reads and stamps fail then.
type goneSource struct {
	*memSource
	gone   bool // guarded by the memSource's mutex
	atRead bool // be away from the next read on
}

var errGone = errors.New("the source is away")

func (g *goneSource) setGone(gone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = gone
}

func (g *goneSource) away() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return errGone
	}
	return nil
}

func (g *goneSource) Stamp() (Stamp, error) {
	if err := g.away(); err != nil {
		return Stamp{}, err
	}
	return g.memSource.Stamp()
}

func (g *goneSource) ReadAt(p []byte, off int64) (int, error) {
	if g.atRead {
		g.setGone(true)
	}
	if err := g.away(); err != nil {
		return 0, err
	}
	return g.memSource.ReadAt(p, off)
}

// TestChecksum_stampFails: a source that goes away in the middle of a hash
// fails it, which would otherwise be tried again and again until it is back.
func TestChecksum_stampFails(t *testing.T) {
	src := &goneSource{memSource: newMemSource(1000), atRead: true}
	src.data[0], src.hole[0] = 1, false
	im := newTestImage(t, src, mustSpec(t, "sha256/64"), 1<<20)
	v, err := im.OpenView(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := v.Checksum(ctx); !errors.Is(err, errGone) {
		t.Errorf("checksum: %v", err)
	}
	if err := v.ReadDigests(ctx, make([]byte, 32), 0); !errors.Is(err, errGone) {
		t.Errorf("digest: %v", err)
	}
	src.atRead = false
	src.setGone(false)
	if _, err := v.Checksum(t.Context()); err != nil {
		t.Errorf("checksum when it is back: %v", err)
	}
}

// TestWriteAt_anotherImage: a source that is another image after a write than
// before it, as after a reconnect, is not taken for one that the write changed.
func TestWriteAt_anotherImage(t *testing.T) {
	src := newMemSource(1000)
	spec := mustSpec(t, "sha256/64")
	im := newTestImage(t, src, spec, 1<<20)
	if _, err := viewChecksum(t, im); err != nil {
		t.Fatal(err)
	}
	src.written = func(int64, int64) { // with the source's mutex
		src.written = func(int64, int64) {}
		src.stamp.Inode++
		for i := range src.data {
			src.data[i] |= 0x80
		}
		clear(src.hole)
	}
	if _, err := im.WriteAt(t.Context(), []byte{1}, 500); err != nil {
		t.Fatal(err)
	}
	got, err := viewChecksum(t, im)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(plainChecksum(spec, src.data)) {
		t.Error("the checksum is of the image before")
	}
}

func viewChecksum(t *testing.T, im *Image) ([]byte, error) {
	t.Helper()
	v, err := im.OpenView(t.Context())
	if err != nil {
		return nil, err
	}
	defer v.Close()
	return v.Checksum(t.Context())
}
