package cli

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"hashfs/cmd/hashfs/internal/source"
	"hashfs/filesrc"
	hashfs "hashfs/fs"
	"hashfs/hasher"
	"hashfs/nbdsrc"
)

// remoteOptions are those of images that are reached over NBD, by a server of
// the user's or by a qemu-nbd of our own.
type remoteOptions struct {
	timeout   time.Duration
	noExtents bool
}

func (o *remoteOptions) addFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.timeout, "nbd-timeout", 30*time.Second, "`TIME` after which an NBD server that does not answer is given up")
	f.BoolVar(&o.noExtents, "no-extents", false, "do not believe what NBD servers say of holes and zeros")
}

func (o *remoteOptions) check() error {
	if o.timeout < time.Second {
		return usagef("--nbd-timeout %v: it is a second at least", o.timeout)
	}
	return nil
}

// openSource is a source that was opened, with what a mount tells of it.
type openSource struct {
	hasher.Source
	backing hashfs.Backing // nil where there is no local file
	keep    bool           // keep digests between opens
	why     string         // that is so
}

// open opens a source. An error is one line.
func (o *remoteOptions) open(ctx context.Context, s source.Source, log *slog.Logger) (*openSource, error) {
	var opened *openSource
	var err error
	switch s.Format {
	case "raw":
		opened, err = openFile(s)
	case "nbd":
		opened, err = o.openExport(ctx, s, log)
	default:
		opened, err = o.openImage(ctx, s, log)
	}
	if err != nil {
		return nil, err
	}
	if s.Cache != "" {
		opened.keep, opened.why = s.Cache == "keep", "by the option cache="+s.Cache
	}
	return opened, nil
}

// Digests are kept only where no change from outside can go unnoticed.

func openFile(s source.Source) (*openSource, error) {
	f, err := filesrc.Open(s.Location, filesrc.Options{Writable: s.Writable})
	if err != nil {
		return nil, err
	}
	opened := &openSource{Source: f, backing: f, keep: true, why: "changes from outside show in the file's times"}
	if f.Device() {
		opened.keep, opened.why = false, "changes from outside to a device cannot be seen"
		if s.Writable {
			opened.keep, opened.why = true, "the device is held exclusively"
		}
	}
	return opened, nil
}

func (o *remoteOptions) openExport(ctx context.Context, s source.Source, log *slog.Logger) (*openSource, error) {
	e, err := nbdsrc.Open(ctx, s.Location, o.export(s, log))
	if err != nil {
		return nil, err
	}
	return &openSource{Source: e, why: "changes from outside to an NBD export cannot be seen"}, nil
}

func (o *remoteOptions) openImage(ctx context.Context, s source.Source, log *slog.Logger) (*openSource, error) {
	im, err := nbdsrc.OpenImage(ctx, nbdsrc.ImageOptions{
		Path: s.Location, Format: s.Format, Snapshot: s.Snapshot, TrustChain: s.TrustChain,
		Options: o.export(s, log),
	})
	if err != nil {
		return nil, err
	}
	opened := &openSource{Source: im, backing: im, keep: true, why: "qemu locks the files, and changes show in their times"}
	if !im.Watched() {
		opened.keep, opened.why = false, "the chain leads to something else than files"
	}
	return opened, nil
}

func (o *remoteOptions) export(s source.Source, log *slog.Logger) nbdsrc.Options {
	return nbdsrc.Options{
		Writable: s.Writable, NoExtents: o.noExtents, Timeout: o.timeout, Log: log, Name: s.Name,
	}
}

// warnFormat warns of a raw file that looks like another format, unless the
// user has said that it is raw.
func warnFormat(s source.Source, warn func(string)) {
	if s.Format != "raw" || s.RawGiven {
		return
	}
	if format := filesrc.LooksLike(s.Location); format != "" {
		warn(fmt.Sprintf("%s: taken as raw by its name, but begins like %s: the digests are those of the file's own bytes; format=raw says that it is meant so, format=%s serves the image in it",
			s.Location, format, format))
	}
}
