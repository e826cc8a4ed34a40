package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"hashfs/blockcache"
	"hashfs/cmd/hashfs/internal/source"
	"hashfs/cmd/hashfs/internal/sumlist"
	"hashfs/filesrc"
	"hashfs/hasher"
)

type sumOptions struct {
	digest specValue
	tag    bool
	plain  bool
	jobs   int

	progress      bool
	progressGiven bool

	check         bool
	report        report
	strict        bool
	ignoreMissing bool
}

const sumLong = `sum prints the digest of each SOURCE, without a mount: what its file "checksum" would show, or with --plain "sums/DIGEST". Without a SOURCE, or when that is -, standard input is read.

A SOURCE is [NAME=]LOCATION[,option=value...] as for hashfs mount, with the options digest= and format=; a LOCATION that is a directory stands for the images in it. A line is

  HEX  LOCATION

and with --tag, which says what the digest is,

  blk-sha256/65536 (LOCATION) = HEX
  sha256 (LOCATION) = HEX           with --plain

As sha256sum does, a name with a newline, a carriage return or a backslash is written with \n, \r and \\, and its line begins with a backslash.

With --check the arguments are lists that hashfs sum has printed, and the files that they name are verified, with the output and the exit status of sha256sum --check. Lines that have a tag can be mixed; others are read only with --digest or --plain, which say what they are.

A source that cannot be read, or changes meanwhile, gets no line but a message. The others are done all the same, and the exit status tells.`

const sumExample = `  hashfs sum disk.img
  hashfs sum --tag /var/lib/images > images.sums
  hashfs sum --check images.sums
  hashfs sum --plain --digest sha512 disk.img      (as sha512sum does)
  zcat disk.img.gz | hashfs sum`

func newSumCommand() *cobra.Command {
	o := &sumOptions{digest: newSpecValue()}
	c := &cobra.Command{
		Use:     "sum [flags] [SOURCE...]",
		Short:   "print or verify digests without a mount",
		Long:    sumLong,
		Example: sumExample,
		Args:    cobra.ArbitraryArgs,
	}
	setUsage(c, "hashfs sum [flags] [SOURCE...]", "hashfs sum --check [flags] [LIST...]")
	f := c.Flags()
	f.SortFlags = false
	f.Var(&o.digest, "digest", "digest, and length of a block; see hashfs mount --help for those there are")
	f.BoolVar(&o.plain, "plain", false, "digest of the bytes in one go, as sha256sum makes it, not of blocks")
	f.BoolVar(&o.tag, "tag", false, "print lines that say which digest they hold")
	f.BoolVar(&o.progress, "progress", false, "show a progress bar (default: when standard error is a terminal)")
	f.IntVar(&o.jobs, "jobs", 0, "number `N` of threads that hash (default: that of the processors)")
	f.BoolVarP(&o.check, "check", "c", false, "verify lists of digests")
	f.BoolVar(&o.ignoreMissing, "ignore-missing", false, "with --check: say nothing of files that are not there")
	addReportFlag(f, &o.report, reportFailures, "quiet", "", "with --check: do not print OK for each file")
	addReportFlag(f, &o.report, reportNothing, "status", "", "with --check: print nothing, the exit status tells")
	f.BoolVar(&o.strict, "strict", false, "with --check: fail when a line is improperly formatted")
	addReportFlag(f, &o.report, reportLines, "warn", "w", "with --check: say which line is improperly formatted")
	c.RegisterFlagCompletionFunc("digest", completeDigest)
	c.RunE = func(c *cobra.Command, args []string) error {
		o.progressGiven = f.Changed("progress")
		if err := o.validate(); err != nil {
			return err
		}
		return interruptible(c.Context(), func(ctx context.Context) error {
			return runSum(ctx, o, c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr(), args)
		})
	}
	return c
}

// validate refuses flags that contradict each other.
func (o *sumOptions) validate() error {
	if o.check && o.tag {
		return usagef("the --tag option is meaningless when verifying checksums")
	}
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"ignore-missing", o.ignoreMissing}, {"quiet", o.report == reportFailures}, {"status", o.report == reportNothing},
		{"strict", o.strict}, {"warn", o.report == reportLines},
	} {
		if f.given && !o.check {
			return usagef("the --%s option is meaningful only when verifying checksums", f.name)
		}
	}
	if o.plain && strings.Contains(o.digest.given, "/") {
		return usagef("--digest %s: %w", o.digest.given, errPlainSize)
	}
	if o.jobs < 0 {
		return usagef("--jobs %d: a number of threads cannot be negative", o.jobs)
	}
	return nil
}

// interruptTime is what work gets to end by itself after a signal.
const interruptTime = 200 * time.Millisecond

// interruptible runs do until it returns or SIGINT or SIGTERM comes, and
// does not wait for a source that hangs. Nothing of do needs cleaning up.
func interruptible(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	select {
	case err := <-done:
		return err
	case s := <-signals:
		cancel()
		select {
		case <-done: // the progress bar is gone from the terminal
		case <-time.After(interruptTime):
		}
		if s == unix.SIGTERM {
			return statusError(128 + int(unix.SIGTERM))
		}
		return statusError(exitInterrupted)
	}
}

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
		bars: newBars(o, stderr), pool: hasher.NewPool(o.jobs),
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
			digest, err = s.sum(ctx, src.Location, kind)
		}
		if err != nil {
			complain(s.stderr, "%v", err)
			ok = false
			continue
		}
		if !s.plain && src.Location != "-" {
			warnFormat(src.Location, func(w string) { complain(s.stderr, "warning: %s", w) })
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

// sum returns the digest of the file at path, or of standard input for "-".
// An error says of which.
func (s *summer) sum(ctx context.Context, path string, kind sumlist.Kind) (digest []byte, err error) {
	if path == "-" {
		if digest, err = s.sumStdin(ctx, kind); err != nil {
			return nil, hashError("standard input", err)
		}
		return digest, nil
	}
	f, err := filesrc.Open(path, filesrc.Options{})
	if err != nil {
		return nil, openError(path, err)
	}
	im, err := hasher.New(f, hasher.Options{
		Spec: kind.Spec, Pool: s.pool, Name: path, Log: slog.New(slog.DiscardHandler),
		Cache: blockcache.New(sumCache),
	})
	if err != nil {
		return nil, hashError(path, err) // and f is closed
	}
	defer im.Close()
	if digest, err = s.sumImage(ctx, im, path, kind); err != nil {
		return nil, hashError(path, err)
	}
	return digest, nil
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
	return view.Checksum(ctx)
}

// sumCache is little: each block is used once.
const sumCache = 8 << 20

// openError shortens the commonest error to what sha256sum says.
func openError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
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
