package mounts

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrBusy: files of the mount are open, or it is somebody's directory.
var ErrBusy = errors.New("busy")

// Unmount takes the topmost mount at point away; lazily, it is only detached
// and lives until its last file is closed. An ordinary user's mount is taken
// down by fusermount3, whose reason for a failure is passed on in its words.
func Unmount(ctx context.Context, point string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(point, flags)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return ErrBusy
	case !errors.Is(err, unix.EPERM):
		return err
	}
	return fusermount(ctx, point, lazy)
}

func fusermount(ctx context.Context, point string, lazy bool) error {
	tool, err := Fusermount()
	if err != nil {
		return err
	}
	args := []string{"-u"}
	if lazy {
		args = append(args, "-z")
	}
	cmd := exec.CommandContext(ctx, tool, append(args, "--", point)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		reason, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
		if reason == "" {
			reason = err.Error()
		}
		return errors.New(reason)
	}
	return nil
}

// Fusermount returns the path of fusermount3, which an ordinary user needs.
// It is looked for in the usual places too, since mount(8) runs its programs
// with no PATH at all.
func Fusermount() (string, error) {
	for _, name := range []string{"fusermount3", "fusermount"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
		for _, dir := range []string{"/usr/bin/", "/bin/"} {
			if info, err := os.Stat(dir + name); err == nil && info.Mode().IsRegular() {
				return dir + name, nil
			}
		}
	}
	return "", errors.New("fusermount3: not found, and only root can do without: apt install fuse3")
}
