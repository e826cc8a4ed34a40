package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"hashfs/cmd/hashfs/internal/daemon"
	"hashfs/cmd/hashfs/internal/source"
	hashfs "hashfs/fs"
)

// serveAsChild is the daemon. Its parent says what goes wrong before ready.
func (p *mountPlan) serveAsChild(ctx context.Context, child *daemon.Child) error {
	log, err := p.openLog(true)
	if err == nil {
		err = p.serve(ctx, log, child.Warn, func() error { return child.Ready(log.file) })
	}
	if err == nil {
		return nil
	}
	// After Ready nobody listens; what went wrong then is in the log.
	child.Fail(oneLine(err.Error()), exitFailure)
	return statusError(exitFailure)
}

func (p *mountPlan) serveInForeground(ctx context.Context, warn func(string)) error {
	log, err := p.openLog(false)
	if err != nil {
		return err
	}
	// When the reader of our messages goes away, the mount must not.
	signal.Ignore(unix.SIGPIPE)
	return p.serve(ctx, log, warn, func() error {
		if _, err := sd.SdNotify(false, sd.SdNotifyReady); err != nil {
			warn(fmt.Sprintf("systemd cannot be told that the mount is ready: %v", err))
		}
		return nil
	})
}

// serve mounts, calls ready, and serves until the mount has ended.
func (p *mountPlan) serve(ctx context.Context, log *logger, warn func(string), ready func() error) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	if !signal.Ignored(unix.SIGHUP) {
		signal.Notify(signals, unix.SIGHUP) // the terminal of --foreground is gone
	}
	raiseFileLimit()
	setPath()

	images, notes, err := source.Expand(p.sources)
	if err != nil {
		return err
	}
	for _, note := range notes {
		warn(note)
	}
	point, err := preparePoint(ctx, p.point, p.nonEmpty, warn)
	if err != nil {
		return err
	}
	if err := checkOverlap(point, p.sources, images); err != nil {
		return err
	}
	opened, err := p.open(ctx, images, log.Logger, warn)
	if err != nil {
		return err
	}
	defer opened.close(log.Logger)
	if err := checkFUSE(p.allowOther); err != nil {
		return err
	}
	if err := interrupted(signals); err != nil {
		return err
	}
	server, err := hashfs.Mount(opened.images, p.fsOptions(point, opened, log.Logger))
	if err != nil {
		return err
	}
	r := &running{server: server, log: log.Logger, point: point, signals: signals}
	if log.note != "" {
		warn(log.note)
	}
	err = interrupted(signals)
	if err == nil {
		err = ready()
	}
	if err != nil {
		r.detach()
		return fmt.Errorf("%s: unmounted again: %w", point, err)
	}
	log.Info("mounted", "mountpoint", point, "images", len(images), "version", describeVersion(p.version))
	return r.run()
}

// interrupted returns an error when a signal has come already.
func interrupted(signals <-chan os.Signal) error {
	select {
	case s := <-signals:
		return fmt.Errorf("ended by a signal: %v", s)
	default:
		return nil
	}
}

func (p *mountPlan) fsOptions(point string, opened *openImages, log *slog.Logger) hashfs.Options {
	name := "hashfs"
	if len(p.sources) == 1 {
		// As in fstab, by which mount -a knows that it is mounted.
		name = p.sources[0].Arg
	}
	return hashfs.Options{
		Mountpoint: point, FsName: name, AllowOther: p.allowOther, MountOptions: p.kernel,
		UID: p.owner.uid, GID: p.owner.gid, Mode: p.mode.mode,
		Cache: opened.cache, Log: log, Version: describeVersion(p.version),
	}
}

// running is a mount in use.
type running struct {
	server  *hashfs.Server
	log     *slog.Logger
	point   string
	signals <-chan os.Signal
}

// forceTime is how long a second signal waits for the mount to go away.
const forceTime = time.Second

// run returns when the mount has ended. The first signal unmounts or, when
// the mount is busy, detaches; the second one ends it all.
func (r *running) run() error {
	ended := make(chan error, 1)
	go func() { ended <- r.server.Wait() }()
	stopping := false
	for {
		select {
		case err := <-ended:
			if err != nil {
				r.log.Error("the mount was cut off", "mountpoint", r.point, "error", err)
				return fmt.Errorf("the mount was cut off: %w", err)
			}
			r.log.Info("unmounted", "mountpoint", r.point)
			return nil
		case s := <-r.signals:
			if stopping {
				r.log.Warn("ended by a second signal, open files are cut off", "mountpoint", r.point, "signal", s.String())
				r.force()
			}
			stopping = true
			sd.SdNotify(false, sd.SdNotifyStopping)
			r.log.Info("ending", "mountpoint", r.point, "signal", s.String())
			go r.stop()
		}
	}
}

// stop unmounts, or else detaches.
func (r *running) stop() {
	err := r.server.Unmount()
	if err == nil {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, unix.EBUSY) {
		level = slog.LevelInfo
	}
	r.log.Log(context.Background(), level,
		"cannot be unmounted now: detached, and served until the last file is closed; a second signal ends it at once",
		"mountpoint", r.point, "reason", err)
	r.detach()
}

func (r *running) detach() {
	if err := r.server.Detach(); err != nil {
		r.log.Error("detach failed", "mountpoint", r.point, "error", err)
	}
}

// force ends the process, and leaves no dead mount behind if it can.
func (r *running) force() {
	done := make(chan struct{})
	go func() { r.server.Detach(); close(done) }()
	select {
	case <-done:
	case <-time.After(forceTime):
	}
	os.Exit(exitFailure)
}

// fileLimit is enough for an open file of each of many clients.
const fileLimit = 1 << 16

// raiseFileLimit raises the bound of open files, the hard one too where we
// may. The Go runtime has raised the soft one already.
func raiseFileLimit() {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil && l.Max < fileLimit {
		unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: fileLimit, Max: fileLimit})
	}
}
