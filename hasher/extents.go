package hasher

import (
	"context"
	"slices"
)

// A Map is the extents of an image at one moment: sorted, without gaps, from
// 0 to Size, neighbours of one type merged. It comes from the source alone,
// never from what hashing found out. It is not changed.
type Map struct {
	Size    int64 // bytes
	Extents []Extent
	Serial  uint64 // two maps of an image with one serial are equal
}

// extentMap is the map last asked for.
type extentMap struct {
	era, generation uint64
	m               *Map // nil: none yet
	task            *taskFor[*Map]
}

// Extents gives the extents of [off, off+length) as they are now, like
// ExtentSource; the range is cut at the end of the image.
func (im *Image) Extents(ctx context.Context, off, length int64, yield func(Extent) bool) error {
	im.mu.Lock()
	length = min(length, im.size-off)
	im.mu.Unlock()
	if length <= 0 {
		return nil
	}
	if im.extents == nil {
		yield(Extent{Offset: off, Length: length})
		return nil
	}
	return im.extents.Extents(ctx, off, length, yield)
}

// Map returns the map of the present moment. The source is asked only if the
// image changed since it was asked last. If writes keep changing the image
// meanwhile, they are held up for the last try.
func (im *Image) Map(ctx context.Context) (*Map, error) {
	for try := range settleTries {
		if err := im.settle(ctx); err != nil {
			return nil, err
		}
		im.mu.Lock()
		em, size := im.extentMap, im.size
		known := em.m != nil && !im.volatile && em.era == im.era && em.generation == im.generation
		slot := &im.extentMap.task
		if im.volatile {
			slot = new(*taskFor[*Map])
		}
		im.mu.Unlock()
		if known {
			return em.m, nil
		}
		m, err := share(ctx, im, slot, "map", size, func(ctx context.Context, t *task) (*Map, error) {
			return im.askMap(ctx, try == settleTries-1)
		})
		if m != nil || err != nil {
			return m, err
		}
	}
	return nil, ErrBusy
}

// askMap asks the source for all extents. It returns nil if the image changed
// meanwhile. With alone, it keeps mutations away.
func (im *Image) askMap(ctx context.Context, alone bool) (*Map, error) {
	if alone {
		barrier := &mutation{barrier: true, done: make(chan struct{})}
		im.mu.Lock()
		im.mutations = append(im.mutations, barrier)
		im.mu.Unlock()
		defer func() {
			im.mu.Lock()
			defer im.mu.Unlock()
			im.removeLocked(barrier)
		}()
		if err := im.awaitBarrier(ctx, barrier); err != nil {
			return nil, err
		}
	}
	im.mu.Lock()
	m := &Map{Size: im.size}
	era, generation, writing := im.era, im.generation, im.writes > 0
	im.mu.Unlock()
	err := im.Extents(ctx, 0, m.Size, func(e Extent) bool {
		if n := len(m.Extents); n > 0 && m.Extents[n-1].Type == e.Type {
			m.Extents[n-1].Length += e.Length
		} else {
			m.Extents = append(m.Extents, e)
		}
		return ctx.Err() == nil
	})
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = im.check()
	}
	if err != nil {
		return nil, err
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.era != era || im.generation != generation || writing {
		return nil, nil
	}
	old := im.extentMap.m
	switch {
	case old == nil:
		m.Serial = 1
	case old.Size == m.Size && slices.Equal(old.Extents, m.Extents):
		m.Serial = old.Serial
	default:
		m.Serial = old.Serial + 1
	}
	im.extentMap.m, im.extentMap.era, im.extentMap.generation = m, era, generation
	return m, nil
}
