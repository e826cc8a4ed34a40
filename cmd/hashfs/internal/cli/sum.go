package cli

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

type sumOptions struct {
	digest specValue
	tag    bool
	plain  bool
	jobs   int
	remote remoteOptions

	progress      bool
	progressGiven bool

	check         bool
	report        report
	strict        bool
	ignoreMissing bool
}

const sumLong = `sum prints the digest of each SOURCE, without a mount: what its file "checksum" would show, or with --plain "sums/DIGEST". Without a SOURCE, or when that is -, standard input is read.

A SOURCE is [NAME=]LOCATION[,option=value...] as for hashfs mount, with the options digest=, format=, snapshot= and chain=; a LOCATION that is a directory stands for the images in it. A line is

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
	o.remote.addFlags(f)
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
	return o.remote.check()
}

// interruptTime is what work gets to end by itself after a signal.
const interruptTime = 2 * time.Second

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
