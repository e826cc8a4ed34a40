package mounts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ProbeCommand is the first argument of a program that is to run RunProbe
// with the others.
const ProbeCommand = "probe"

// Patience is how long each answer of a mount that may hang is waited for. What
// a probe asks is answered from memory, so that only a stuck server takes longer.
const Patience = 3 * time.Second

// Errors of Probe.
var (
	ErrDead = errors.New("its daemon is gone")
	ErrHung = errors.New("it does not answer")
)

// An Image is what one directory of a mount says about itself.
type Image struct {
	Name  string          `json:"name"`
	Info  json.RawMessage `json:"info,omitempty"`
	Error string          `json:"error,omitempty"`
}

// message is what a probe writes to its parent: first that the mount answers,
// then each image, and the end, with what went wrong with the mount as a whole.
type message struct {
	Image *Image        `json:"image,omitempty"`
	PID   int           `json:"pid,omitempty"`
	End   bool          `json:"end,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"`
}

// RunProbe looks into the mount at args[0] and writes what it finds to w. It
// can hang. With a second argument it only finds out whether there is
// somebody to answer.
func RunProbe(w io.Writer, args []string) error {
	if len(args) == 0 {
		return errors.New("probe: no mount point given")
	}
	out := json.NewEncoder(w)
	// Unlike stat(2), statfs(2) is never answered from the kernel's cache.
	err := unix.Statfs(args[0], new(unix.Statfs_t))
	end := message{End: true}
	switch {
	case err != nil:
	case len(args) == 1:
		err = look(args[0], func(m message) error { return out.Encode(m) })
	default:
		pid, _ := os.ReadFile(filepath.Join(args[0], ".hashfs", "pid")) // who may not, need not know
		end.PID, _ = strconv.Atoi(string(bytes.TrimSpace(pid)))
	}
	if err != nil && !errors.As(err, &end.Errno) {
		end.Errno = unix.EIO
	}
	return out.Encode(end)
}

func look(point string, tell func(message) error) error {
	if err := tell(message{}); err != nil {
		return err
	}
	entries, err := os.ReadDir(point)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == ".hashfs" {
			continue
		}
		im := Image{Name: e.Name()}
		content, err := os.ReadFile(filepath.Join(point, e.Name(), "info.json"))
		content = bytes.TrimSpace(content)
		switch {
		case err != nil:
			im.Error = fmt.Sprintf("info.json: %v", bare(err))
		case !json.Valid(content):
			im.Error = "info.json: not valid JSON"
		default:
			im.Info = content
		}
		if err := tell(message{Image: &im}); err != nil {
			return err
		}
	}
	return nil
}

// Probe returns the images of the mount at point. The error is ErrDead,
// ErrHung, or a syscall.Errno when the mount refuses to be read.
func Probe(ctx context.Context, point string) ([]Image, error) {
	images, _, err := probe(ctx, point)
	return images, err
}

// Ping returns the process ID of the daemon when the mount at point answers, or 0 if
// it does not tell, else an error of Probe.
func Ping(ctx context.Context, point string) (pid int, err error) {
	_, pid, err = probe(ctx, point, "ping")
	return pid, err
}

func probe(ctx context.Context, args ...string) (images []Image, pid int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, 0, fmt.Errorf("start a probe: %w", err)
	}
	defer r.Close()
	// Not exec.CommandContext: its Wait would wait for one that cannot die.
	cmd := exec.Command("/proc/self/exe", append([]string{ProbeCommand}, args...)...)
	cmd.Args[0] = "hashfs"
	cmd.Stdout = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, 0, fmt.Errorf("start a probe: %w", err)
	}
	go cmd.Wait()
	images, pid, err = collect(ctx, r)
	if err != nil {
		cmd.Process.Kill()
	}
	return images, pid, err
}

// collect takes what a probe writes until its end. A mount of many images may
// take long as a whole, so that each message is waited for by itself.
func collect(ctx context.Context, r io.Reader) (images []Image, pid int, err error) {
	messages, failed := make(chan message), make(chan error, 1)
	go func() {
		for in := json.NewDecoder(r); ; {
			var m message
			if err := in.Decode(&m); err != nil {
				failed <- err
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	images = []Image{}
	patience := time.NewTimer(Patience)
	for {
		select {
		case m := <-messages:
			patience.Reset(Patience)
			if m.Image != nil {
				images = append(images, *m.Image)
			}
			if m.End {
				return images, m.PID, mountError(m.Errno)
			}
		case err := <-failed:
			return nil, 0, fmt.Errorf("probe: it ended early: %w", err)
		case <-patience.C:
			return nil, 0, ErrHung
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// mountError is the error of a mount that answers with errno.
func mountError(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.ENOTCONN, unix.ECONNABORTED:
		return ErrDead
	}
	return errno
}
