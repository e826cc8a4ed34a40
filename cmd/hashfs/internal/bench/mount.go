package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A mountPoint is a mount under measurement, of hashfs or of the bare loopback.
type mountPoint struct {
	dir string // its parent holds nothing else: a hanging mount blocks who lists that
	end func() error
}

func (l *lab) newPoint() (string, error) {
	parent, err := os.MkdirTemp(l.dir, "mount-")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, "mnt")
	return dir, os.Mkdir(dir, 0o755)
}

// mount mounts the file at path as the image called "image".
func (l *lab) mount(ctx context.Context, path string, flags ...string) (*mountPoint, error) {
	dir, err := l.newPoint()
	if err != nil {
		return nil, err
	}
	source := "image=" + strings.ReplaceAll(path, ",", ",,")
	argv := append([]string{l.hashfs, "mount", "--log-file", filepath.Join(filepath.Dir(dir), "log")}, flags...)
	if _, err := command(ctx, append(argv, source, dir)...); err != nil {
		return nil, err
	}
	return &mountPoint{dir: dir, end: func() error {
		// Also when interrupted: nothing may stay mounted.
		_, err := command(context.WithoutCancel(ctx), l.hashfs, "umount", dir)
		if err != nil {
			unix.Unmount(dir, unix.MNT_DETACH)
		}
		return err
	}}, nil
}

// in returns the path of a file in the image's directory.
func (m *mountPoint) in(name string) string { return filepath.Join(m.dir, "image", name) }

// mountLoopback mounts a directory by the bare file system.
func (l *lab) mountLoopback(ctx context.Context, source string) (*mountPoint, error) {
	dir, err := l.newPoint()
	if err != nil {
		return nil, err
	}
	// Not ended by ctx, but by being unmounted.
	cmd := exec.Command(l.loopback, source, dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: did not mount", l.loopback), cmd.Wait())
	}
	return &mountPoint{dir: dir, end: func() error {
		err := cmd.Process.Signal(unix.SIGTERM) // unmounts
		return errors.Join(err, cmd.Wait())
	}}, nil
}

// onFreshMount returns the measurement of a command on a file of an image that
// has just been mounted, and of which nothing is known.
func (l *lab) onFreshMount(path, file string, argv ...string) measurement {
	return func(ctx context.Context) (took float64, err error) {
		m, err := l.mount(ctx, path)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, m.end()) }()
		return timed(append(argv, m.in(file))...)(ctx)
	}
}

// timedRead opens, reads and closes a small file, with nothing between. The
// signals by which Go's runtime interrupts its threads interrupt a wait for
// hashfs too; it is then asked again, as most programs do.
func timedRead(path string) (float64, error) {
	buf := make([]byte, 256)
	var fd, n int
	start := time.Now()
	err := again(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", path, err)
	}
	err = again(func() (err error) {
		n, err = unix.Read(fd, buf)
		return err
	})
	if closeErr := unix.Close(fd); err == nil {
		err = closeErr
	}
	took := time.Since(start)
	if err == nil && n == 0 {
		err = errors.New("empty")
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return took.Seconds(), nil
}

// again makes a call until no signal interrupts it.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
