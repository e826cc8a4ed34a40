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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ProbeCommand is the first argument of a program that is to run RunProbe
// with the others.
const ProbeCommand = "probe"

// Patience is how long a mount that hangs is waited for. What a probe asks
// is answered from memory, so that only a stuck server takes longer.
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

// report is what a probe writes to its parent.
type report struct {
	Errno  syscall.Errno `json:"errno"` // of the mount as a whole, 0 for none
	Images []Image       `json:"images"`
}

// RunProbe looks into the mount at args[0] and writes what it finds to w. It
// can hang. With a second argument it only finds out whether there is
// somebody to answer.
func RunProbe(w io.Writer, args []string) error {
	if len(args) == 0 {
		return errors.New("probe: no mount point given")
	}
	var r report
	var err error
	// Unlike stat(2), statfs(2) is never answered from the kernel's cache.
	var st unix.Statfs_t
	if err = unix.Statfs(args[0], &st); err == nil && len(args) == 1 {
		r.Images, err = look(args[0])
	}
	if err != nil && !errors.As(err, &r.Errno) {
		r.Errno = unix.EIO
	}
	return json.NewEncoder(w).Encode(r)
}

func look(point string) ([]Image, error) {
	entries, err := os.ReadDir(point)
	if err != nil {
		return nil, err
	}
	images := []Image{}
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
		images = append(images, im)
	}
	return images, nil
}

// Probe returns the images of the mount at point. The error is ErrDead,
// ErrHung, or a syscall.Errno when the mount refuses to be read.
func Probe(ctx context.Context, point string) ([]Image, error) {
	r, err := probe(ctx, point)
	return r.Images, err
}

// Ping returns nil when the mount at point answers, else an error of Probe.
func Ping(ctx context.Context, point string) error {
	_, err := probe(ctx, point, "ping")
	return err
}

func probe(ctx context.Context, args ...string) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	// Not exec.CommandContext: its Wait would wait for one that cannot die.
	cmd := exec.Command("/proc/self/exe", append([]string{ProbeCommand}, args...)...)
	cmd.Args[0] = "hashfs"
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return report{}, fmt.Errorf("start a probe: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ctx.Done():
		cmd.Process.Kill()
		return report{}, ErrHung
	case err := <-ended:
		if err != nil {
			return report{}, fmt.Errorf("probe: %w", err)
		}
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return report{}, fmt.Errorf("probe: %w", err)
	}
	switch r.Errno {
	case 0:
		return r, nil
	case unix.ENOTCONN, unix.ECONNABORTED:
		return report{}, ErrDead
	}
	return report{}, r.Errno
}
