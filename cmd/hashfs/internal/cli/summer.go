package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hashfs/blockcache"
	"hashfs/cmd/hashfs/internal/source"
	"hashfs/cmd/hashfs/internal/sumlist"
	"hashfs/hasher"
	"hashfs/nbdsrc"
)

// A summer makes digests, one source after another.
type summer struct {
	*sumOptions
	stdin          io.Reader
	stdout, stderr io.Writer
	bars           bars
	pool           *hasher.Pool
}

func runSum(ctx context.Context, o *sumOptions, stdin io.Reader, stdout, stderr io.Writer, args []string) error {
	s := &summer{
		sumOptions: o, stdin: stdin, stdout: stdout, stderr: stderr,
		bars: newBars(o, stderr), pool: hasher.NewPool(o.jobs, false),
	}
	defer s.pool.Close()
	if len(args) == 0 {
		args = []string{"-"}
	}
	failed := false
	for _, arg := range args {
		one := s.print
		if o.check {
			one = s.checkList
		}
		ok, err := one(ctx, arg)
		if err != nil {
			return err
		}
		failed = failed || !ok
	}
	if failed {
		return statusError(exitFailure)
	}
	return nil
}

// writeError ends all: a list with a line missing must not pass for whole.
func writeError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("write error: %w", bare(err))
}

// print prints the lines of one argument. It returns false after telling of
// a failure, and an error when there is no point in going on.
func (s *summer) print(ctx context.Context, arg string) (ok bool, err error) {
	sources, notes, err := s.expand(arg)
	if err != nil {
		complain(s.stderr, "%v", err)
		return false, nil
	}
	for _, note := range notes {
		complain(s.stderr, "warning: %s", note)
	}
	ok = true
	for _, src := range sources {
		kind, err := s.kind(src)
		var digest []byte
		if err == nil {
			digest, err = s.sum(ctx, src, kind)
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return false, ctx.Err() // interrupted: the exit status says so
		case err != nil:
			complain(s.stderr, "%v", err)
			ok = false
			continue
		}
		if !s.plain && src.Location != "-" {
			warnFormat(src, func(w string) { complain(s.stderr, "warning: %s", w) })
		}
		entry := sumlist.Entry{Kind: kind, Digest: digest, Name: src.Location}
		if _, err := io.WriteString(s.stdout, entry.Format(s.tag)); err != nil {
			return false, writeError(err)
		}
	}
	return ok, nil
}

func (s *summer) expand(arg string) (sources []source.Source, notes []string, err error) {
	src, err := source.Parse(arg)
	if err != nil {
		return nil, nil, err
	}
	if src.Writable || src.Cache != "" {
		return nil, nil, fmt.Errorf("%s: the options writable and cache= are for hashfs mount", src.Location)
	}
	if info, err := os.Stat(src.Location); err == nil && info.IsDir() {
		return source.Scan(src)
	}
	return []source.Source{src}, nil, nil
}

// kind returns what digest is made of a source.
func (s *summer) kind(src source.Source) (sumlist.Kind, error) {
	kind := sumlist.Kind{Spec: s.digest.Spec, Plain: s.plain}
	if src.Digest == "" {
		return kind, nil
	}
	if s.plain && strings.Contains(src.Digest, "/") {
		return kind, fmt.Errorf("%s: digest=%s: %w", src.Location, src.Digest, errPlainSize)
	}
	spec, err := hasher.ParseSpec(src.Digest)
	kind.Spec = spec
	return kind, err
}

// errPlainSize: a block size was asked for that would not count.
var errPlainSize = errors.New("a digest by --plain has no block size")

// sum returns the digest of a source, or of standard input for "-". An error
// says of which.
func (s *summer) sum(ctx context.Context, src source.Source, kind sumlist.Kind) (digest []byte, err error) {
	path := src.Location
	if path == "-" {
		if digest, err = s.sumStdin(ctx, kind); err != nil {
			return nil, hashError("standard input", err)
		}
		return digest, nil
	}
	log := slog.New(slog.DiscardHandler)
	opened, err := s.remote.open(ctx, src, log)
	if err != nil {
		return nil, openError(path, err)
	}
	im, err := hasher.New(opened.Source, hasher.Options{
		Spec: kind.Spec, Pool: s.pool, Name: path, Log: log, Cache: blockcache.New(sumCache),
	})
	if err != nil {
		return nil, hashError(path, err) // and the source is closed
	}
	defer im.Close()
	told := tellsHoles(opened.Source)
	digest, err = s.sumImage(ctx, im, path, kind)
	if told && !tellsHoles(opened.Source) {
		// For the image that was a change. Without them there is no other.
		complain(s.stderr, "warning: %s: the server calls data zero: its block status is ignored", path)
		digest, err = s.sumImage(ctx, im, path, kind)
	}
	if err != nil {
		return nil, hashError(path, err)
	}
	return digest, nil
}

// tellsHoles reports whether a source is a server that tells holes from data and
// is believed.
func tellsHoles(src hasher.Source) bool {
	server, ok := src.(interface{ HasExtents() bool })
	return ok && server.HasExtents()
}

func (s *summer) sumStdin(ctx context.Context, kind sumlist.Kind) ([]byte, error) {
	bar := s.bars.unknown("standard input")
	defer bar.finish()
	if kind.Plain {
		return hasher.PlainSumReader(ctx, s.stdin, kind.Spec.Algorithm, bar.set)
	}
	return hasher.SumReader(ctx, s.stdin, kind.Spec, bar.set)
}

func (s *summer) sumImage(ctx context.Context, im *hasher.Image, path string, kind sumlist.Kind) ([]byte, error) {
	if kind.Plain {
		defer s.bars.watch(im, path, "sums/"+kind.Spec.Algorithm.Name())()
		return im.PlainSum(ctx, kind.Spec.Algorithm)
	}
	view, err := im.OpenView(ctx)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	defer s.bars.watch(im, path, "checksum")()
	before := im.Geometry().Generation
	digest, err := view.Checksum(ctx)
	if err == nil && im.Geometry().Generation != before {
		// The view has turned to what the source is now. Whoever asked for
		// the digest of a file does not expect that it changes.
		return nil, hasher.ErrBusy
	}
	return digest, err
}

// sumCache is little: each block is used once.
const sumCache = 8 << 20

// openError shortens the commonest error to what sha256sum says.
func openError(path string, err error) error {
	// A file that is there can lack another, such as its backing file.
	if _, statErr := os.Lstat(path); errors.Is(err, fs.ErrNotExist) && errors.Is(statErr, fs.ErrNotExist) && !nbdsrc.IsURI(path) {
		return fmt.Errorf("%s: %w", path, unix.ENOENT)
	}
	return err
}

// hashError makes an error one about the source of that name.
func hashError(name string, err error) error {
	if errors.Is(err, hasher.ErrStale) || errors.Is(err, hasher.ErrBusy) {
		return fmt.Errorf("%s: it changed while it was read, so there is no digest", name)
	}
	return fmt.Errorf("%s: %w", name, err)
}
