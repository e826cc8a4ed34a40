package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hashfs/blockcache"
	"hashfs/cmd/hashfs/internal/source"
	hashfs "hashfs/fs"
	"hashfs/hasher"
)

// openImages are the images of a mount, with what they share.
type openImages struct {
	cache  *blockcache.Cache
	pool   *hasher.Pool
	images []*hashfs.Image
}

// open opens the images. It owns nothing when it fails.
func (p *mountPlan) open(ctx context.Context, sources []source.Source, log *slog.Logger, warn func(string)) (_ *openImages, err error) {
	var unowned []*openSource // that no image owns yet
	opened := &openImages{}
	defer func() {
		if err != nil {
			for _, s := range unowned {
				s.Close()
			}
			opened.close(log)
		}
	}()
	var needed float64
	for _, s := range sources {
		src, err := p.remote.open(ctx, s, log)
		if err != nil {
			return nil, p.explainOpen(s, err)
		}
		unowned = append(unowned, src)
		spec, err := p.spec(s)
		if err != nil {
			return nil, err
		}
		needed += cacheNeed(src.Size(), spec)
		warnFormat(s, warn)
	}
	limit, tooLow := cacheLimit(p.cacheSize, needed, memory())
	if tooLow != "" {
		warn(tooLow)
	}
	opened.cache, opened.pool = blockcache.New(limit), hasher.NewPool(p.jobs, true)
	for _, s := range sources {
		src := unowned[0]
		unowned = unowned[1:]
		if err := opened.add(p, s, src, log); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Location, err)
		}
	}
	return opened, nil
}

// add makes an image of src, which belongs to that from now on, or is closed.
func (o *openImages) add(p *mountPlan, s source.Source, src *openSource, log *slog.Logger) error {
	spec, err := p.spec(s)
	if err != nil {
		return errors.Join(err, src.Close())
	}
	mode := "none"
	if src.keep {
		mode = "keep"
	}
	if s.Format == "nbd" {
		log = log.With("export", s.Location)
	}
	im, err := hasher.New(src.Source, hasher.Options{
		Spec: spec, Cache: o.cache, Pool: o.pool, Log: log, Name: s.Name, Volatile: !src.keep,
	})
	if err != nil {
		return err
	}
	o.images = append(o.images, &hashfs.Image{
		Name: s.Name, Source: s.Arg, Format: s.Format, CacheMode: mode, CacheReason: src.why,
		Image: im, Backing: src.backing,
	})
	return nil
}

// close closes the images.
func (o *openImages) close(log *slog.Logger) {
	for _, im := range o.images {
		if err := im.Image.Close(); err != nil {
			log.Error("close failed", "image", im.Name, "error", err)
		}
	}
	if o.pool != nil {
		o.pool.Close()
	}
}

// explainOpen adds the way out to an image that cannot be opened: to one that is
// not there, where the command line was perhaps understood in another way than
// it was meant.
func (p *mountPlan) explainOpen(s source.Source, err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w: raise their limit by ulimit -n, or mount fewer images", err)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if s.Named {
		literal := s.Name + "=" + s.Location
		if _, statErr := os.Lstat(literal); statErr == nil {
			return fmt.Errorf("%w: for the file called %s write ./%s", err, literal, literal)
		}
	}
	if p.byType && !strings.Contains(s.Location, "/") {
		return fmt.Errorf("%w: and it is no command; see hashfs --help", err)
	}
	return err
}

// cacheNeed is the memory, in bytes, for the digests of a whole image. The
// table beside them is a few percent; overlays of open handles are more.
func cacheNeed(size int64, spec hasher.Spec) float64 {
	blocks := math.Ceil(float64(size) / float64(spec.BlockSize))
	return blocks * float64(spec.Algorithm.Size()) * 1.15
}

// cacheFloor is what small images get beyond their needs: the overlays of
// handles that are open during a write count too.
const cacheFloor = 16 << 20

// cacheLimit chooses the bound of the cache, and says when it is lower than
// what is needed to hash every block only once.
func cacheLimit(given sizeValue, needed float64, memory int64) (limit int64, tooLow string) {
	limit = given.bytes
	what := "--cache-size"
	if !given.given {
		limit = int64(math.Ceil(min(max(needed, cacheFloor), float64(memory/4))))
		what = "a quarter of the memory"
	}
	if float64(limit) < needed {
		tooLow = fmt.Sprintf("%s is %s, and the digests of all images need %s: some blocks will be hashed again and again",
			what, formatSize(limit), formatSize(int64(needed)))
	}
	return limit, tooLow
}

// memory returns the machine's, in bytes.
func memory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1 << 30
	}
	return int64(min(uint64(info.Totalram)*uint64(info.Unit), math.MaxInt64))
}
