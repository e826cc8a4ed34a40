package fs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// newServer mounts and returns go-fuse's server of the mount. An error is one
// line, without the mount point.
func (s *Server) newServer(front *front, opts *fuse.MountOptions) (*fuse.Server, error) {
	if s.direct {
		return fuse.NewServer(front, s.mountpoint, opts) // an error is the kernel's
	}
	said, err := newCapture()
	if err != nil {
		return nil, err
	}
	server, err := fuse.NewServer(front, s.mountpoint, opts)
	text := said.end()
	if err == nil {
		os.Stderr.WriteString(text)
		return server, nil
	}
	if reason := helperReason(text); reason != "" {
		return nil, errors.New(reason)
	}
	return nil, errors.New(oneLine(err.Error())) // go-fuse's, with a newline
}

// A capture takes what programs write that are started with our standard error.
// go-fuse starts fusermount3 so, and knows of its failure the exit status only.
// What this process writes elsewhere, its log for example, is not affected.
type capture struct{ memory, before *os.File }

func newCapture() (*capture, error) {
	fd, err := unix.MemfdCreate("stderr", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("keep what fusermount3 says: %w", err)
	}
	c := &capture{os.NewFile(uintptr(fd), "stderr"), os.Stderr}
	os.Stderr = c.memory
	return c, nil
}

// end returns what was written.
func (c *capture) end() string {
	os.Stderr = c.before
	defer c.memory.Close()
	text, err := io.ReadAll(io.NewSectionReader(c.memory, 0, 1<<16))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// helperReason makes a reason of what fusermount3 said, "" if it said nothing.
// Its lines begin with its own path.
func helperReason(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	path, reason, ok := strings.Cut(line, ": ")
	if !ok {
		return line
	}
	return filepath.Base(path) + ": " + reason
}
