package cli

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"log/syslog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A logger is where messages go once the mount is usable.
type logger struct {
	*slog.Logger
	file *os.File // becomes standard error, so that a crash is told there; nil: none
	note string   // what the user is to be told about it
}

func (p *mountPlan) openLog(isDaemon bool) (*logger, error) {
	if p.logFile != "" {
		f, err := os.OpenFile(p.logFile, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOCTTY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the log file %s: %w", p.logFile, bare(err))
		}
		return fileLogger(f), nil
	}
	if !isDaemon {
		return fileLogger(os.Stderr), nil
	}
	if w, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "hashfs"); err == nil {
		return &logger{Logger: slog.New(newQueueHandler(newSyslogHandler(w)))}, nil
	}
	if info, err := os.Stderr.Stat(); err == nil && info.Mode().IsRegular() {
		// A number of its own: the daemon's standard error is replaced.
		fd, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("keep standard error: %w", err)
		}
		log := fileLogger(os.NewFile(uintptr(fd), "standard error"))
		log.note = "there is no syslog: the daemon's messages go to standard error, a file; --log-file chooses another"
		return log, nil
	}
	return &logger{
		Logger: slog.New(slog.DiscardHandler),
		note:   "there is no syslog, and standard error is no file: the daemon's messages are lost; --log-file keeps them",
	}, nil
}

func fileLogger(f *os.File) *logger {
	return &logger{Logger: slog.New(newQueueHandler(slog.NewTextHandler(f, nil))), file: f}
}

// A priorityWriter is what a syslogHandler needs of a syslog.Writer.
type priorityWriter interface {
	Debug(string) error
	Info(string) error
	Warning(string) error
	Err(string) error
}

// A syslogHandler gives each record its syslog priority, and leaves time and
// level, which syslog has of its own, out of the text.
type syslogHandler struct {
	slog.Handler // writes into line
	shared       *syslogLine
}

type syslogLine struct {
	out priorityWriter

	// mu guards line: records come from many goroutines.
	mu   sync.Mutex
	line bytes.Buffer
}

func newSyslogHandler(out priorityWriter) *syslogHandler {
	shared := &syslogLine{out: out}
	text := slog.NewTextHandler(&shared.line, &slog.HandlerOptions{
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
				return slog.Attr{}
			}
			return a
		},
	})
	return &syslogHandler{text, shared}
}

func (h *syslogHandler) Handle(ctx context.Context, r slog.Record) error {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	h.shared.line.Reset()
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	line := h.shared.line.String()
	switch {
	case r.Level >= slog.LevelError:
		return h.shared.out.Err(line)
	case r.Level >= slog.LevelWarn:
		return h.shared.out.Warning(line)
	case r.Level >= slog.LevelInfo:
		return h.shared.out.Info(line)
	}
	return h.shared.out.Debug(line)
}

func (h *syslogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &syslogHandler{h.Handler.WithAttrs(attrs), h.shared}
}

func (h *syslogHandler) WithGroup(name string) slog.Handler {
	return &syslogHandler{h.Handler.WithGroup(name), h.shared}
}
