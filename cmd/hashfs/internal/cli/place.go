package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hashfs/cmd/hashfs/internal/mounts"
	"hashfs/cmd/hashfs/internal/source"
)

// preparePoint checks that something can be mounted on the directory point,
// after clearing dead mounts of ours off it, and returns its canonical path.
func preparePoint(ctx context.Context, point string, nonEmpty bool, warn func(string)) (string, error) {
	path, err := mounts.Canonical(point)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s: no such directory: make the mount point by mkdir", point)
	} else if err != nil {
		return "", fmt.Errorf("%s: %w", point, err)
	}
	if err := clearDead(ctx, path, warn); err != nil {
		return "", err
	}
	dir, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", point, bare(err))
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		return "", fmt.Errorf("%s: %w", point, bare(err))
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s: not a directory: the mount point is the last argument", point)
	}
	if nonEmpty {
		return path, nil
	}
	switch _, err := dir.Readdirnames(1); {
	case err == nil:
		return "", fmt.Errorf("%s: the mount point is not empty: choose an empty directory, or hide its files by -o nonempty", point)
	case !errors.Is(err, io.EOF):
		return "", fmt.Errorf("%s: %w", point, bare(err))
	}
	return path, nil
}

// clearDead takes mounts away whose daemons are gone; one that lives, or
// hangs, is an error.
func clearDead(ctx context.Context, path string, warn func(string)) error {
	for {
		m, found, err := mounts.At(path)
		if err != nil {
			return err
		}
		if !found || !m.Hashfs {
			return nil
		}
		switch _, err := mounts.Ping(ctx, path); {
		case errors.Is(err, mounts.ErrDead):
		case errors.Is(err, mounts.ErrHung):
			return fmt.Errorf("%s: a hashfs mount is there that does not answer: detach it by hashfs umount --lazy %s", path, path)
		default:
			return fmt.Errorf("%s: a hashfs mount is there already: hashfs umount %s takes it away", path, path)
		}
		if err := mounts.Unmount(ctx, path, true); err != nil {
			return fmt.Errorf("%s: clear a dead mount: %w", path, err)
		}
		warn(path + ": cleared a mount whose daemon is gone")
	}
}

// checkOverlap refuses what a mount on point would hide or nest: images below
// it, and a point within a directory of images, whose files would then be
// images and the mount's by turns. A mount point beside an image is common.
func checkOverlap(point string, args, images []source.Source) error {
	for _, s := range images {
		// Where this fails, opening the image will say why.
		path, err := filepath.EvalSymlinks(s.Location)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err == nil && within(point, path) {
			return fmt.Errorf("%s: the image lies below the mount point %s, which would hide it: choose another directory", s.Location, point)
		}
	}
	for _, s := range args {
		dir, err := filepath.EvalSymlinks(s.Location)
		if err == nil {
			dir, err = filepath.Abs(dir)
		}
		if err != nil {
			continue
		}
		if info, err := os.Stat(dir); err == nil && info.IsDir() && within(dir, point) {
			return fmt.Errorf("%s: the mount point lies in the directory of images %s: choose another directory", point, s.Location)
		}
	}
	return nil
}

// within reports whether the clean absolute path is dir or below it.
func within(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// checkFUSE tells in time what the mount call would tell less clearly.
func checkFUSE(allowOther bool) error {
	const device = "/dev/fuse"
	// fusermount3 opens it with the rights of who runs it.
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return deviceError(device, err)
	}
	f.Close()
	if os.Geteuid() == 0 {
		return nil
	}
	if _, err := mounts.Fusermount(); err != nil {
		return err
	}
	if allowOther && !allowedByConf("/etc/fuse.conf") {
		return errors.New("allow-other: an ordinary user may not: have root add the line user_allow_other to /etc/fuse.conf")
	}
	return nil
}

func deviceError(device string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%s: %w: load the kernel's module by modprobe fuse", device, bare(err))
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: %w: this container is not given the device", device, bare(err))
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: %w: run as root, or have root open the device to users by chmod 666 %s", device, bare(err), device)
	}
	return fmt.Errorf("%s: %w", device, bare(err))
}

// allowedByConf reads the file as fusermount3 does: a line of its own.
func allowedByConf(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

// bare takes the operation and the path off an error of package os, for a
// message that has said both.
func bare(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
