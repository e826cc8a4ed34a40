package cli

import (
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"hashfs/hasher"
)

// bars makes progress bars on standard error, or none.
type bars struct {
	w io.Writer // nil for none
}

// pollTime is how often a bar asks for the state of the work.
const pollTime = 100 * time.Millisecond

// newBars follows --progress, and without it shows bars on a terminal only.
func newBars(o *sumOptions, stderr io.Writer) bars {
	on := o.progress
	if !o.progressGiven {
		f, ok := stderr.(*os.File)
		on = ok && term.IsTerminal(int(f.Fd()))
	}
	if !on {
		return bars{}
	}
	return bars{stderr}
}

// A bar is one progress bar; nil shows nothing.
type bar struct{ *progressbar.ProgressBar }

// unknown returns a bar for work without a known end.
func (b bars) unknown(name string) *bar { return b.start(name, -1) }

func (b bars) start(name string, total int64) *bar {
	if b.w == nil {
		return nil
	}
	return &bar{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(b.w),
		progressbar.OptionSetDescription(oneLine(name)),
		progressbar.OptionShowBytes(true),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(pollTime),
		progressbar.OptionClearOnFinish(), // before a line of the result
	)}
}

func (b *bar) set(done int64) {
	if b != nil {
		b.Set64(done)
	}
}

func (b *bar) finish() {
	if b != nil {
		b.Clear()
		b.Exit()
	}
}

// watch shows the progress of the work on file, as the image's status names
// it, until the function that it returns is called.
func (b bars) watch(im *hasher.Image, path, file string) (stop func()) {
	if b.w == nil {
		return func() {}
	}
	bar := b.start(filepath.Base(path), im.Status().Size)
	quit := make(chan struct{})
	var polling sync.WaitGroup
	polling.Go(func() {
		tick := time.NewTicker(pollTime)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			for _, w := range im.Status().Work {
				if w.File == file {
					bar.set(w.Done)
				}
			}
		}
	})
	return func() {
		close(quit)
		polling.Wait()
		bar.finish()
	}
}
