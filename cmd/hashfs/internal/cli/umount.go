package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"hashfs/cmd/hashfs/internal/mounts"
)

type umountOptions struct{ lazy bool }

func newUmountCommand() *cobra.Command {
	o := &umountOptions{}
	c := &cobra.Command{
		Use:     "umount [flags] MOUNTPOINT...",
		Aliases: []string{"unmount"},
		Short:   "take mounts away",
		Long: `umount takes hashfs mounts away, also such whose daemon was killed, and nothing else, and returns when the daemon has ended and its images are free. A mount that is in use is left alone, unless --lazy: then it is detached, and lives until its last file is closed.

Root unmounts by itself; for an ordinary user fusermount3 does it.`,
		Example: `  hashfs umount /mnt
  hashfs umount --lazy /mnt`,
		Args:              arguments(1, -1, "a MOUNTPOINT is needed"),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			return runUmount(c.Context(), o, c.ErrOrStderr(), args)
		},
	}
	setUsage(c, "hashfs umount [--lazy] MOUNTPOINT...")
	c.Flags().BoolVarP(&o.lazy, "lazy", "l", false, "detach now, end with the last open file")
	return c
}

func runUmount(ctx context.Context, o *umountOptions, stderr io.Writer, points []string) error {
	setPath()
	failed := false
	for _, point := range points {
		if err := umount(ctx, point, o.lazy, func(w string) { complain(stderr, "warning: %s: %s", point, w) }); err != nil {
			complain(stderr, "%s: %v", point, err)
			failed = true
		}
	}
	if failed {
		return statusError(exitFailure)
	}
	return nil
}

func umount(ctx context.Context, point string, lazy bool, warn func(string)) error {
	path, err := mounts.Canonical(point)
	if err != nil {
		return err
	}
	m, found, err := mounts.At(path)
	switch {
	case err != nil:
		return err
	case !found:
		return errors.New("nothing is mounted here")
	case !m.Hashfs:
		return errors.New("not a hashfs mount: umount(8) takes it away")
	}
	// A dead mount with a process in it would be busy for ever.
	pid, hung := 0, false
	if !lazy {
		pid, err = mounts.Ping(ctx, path)
		lazy, hung = errors.Is(err, mounts.ErrDead), errors.Is(err, mounts.ErrHung)
	}
	daemon, found := mounts.FindDaemon(pid)
	if found {
		defer daemon.Close()
	}
	copies := m.Copies()
	err = mounts.Unmount(ctx, path, lazy)
	if errors.Is(err, mounts.ErrBusy) {
		return errors.New("busy: files are open in it, or it is somebody's working directory: close them, or detach it by --lazy")
	}
	if err != nil && !lazy {
		return fmt.Errorf("%w: if it is busy, detach it by --lazy", err)
	}
	if err != nil || lazy {
		return err
	}
	for _, c := range copies {
		if c.Remains() {
			warn("it is still mounted in " + c.Where + ", and its images are in use")
			return nil
		}
	}
	if hung {
		warn("its daemon does not answer, and may still use its images")
	}
	if found && !daemon.Await(ctx, endPatience) {
		return fmt.Errorf("unmounted, but its daemon, process %d, has not ended, and may still use its images", pid)
	}
	return nil
}

// endPatience is longer than a daemon needs that gives a qemu-nbd up.
const endPatience = 45 * time.Second

func completeMounts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	list, err := mounts.List()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var points []string
	for _, m := range list {
		points = append(points, m.Point)
	}
	return points, cobra.ShellCompDirectiveNoFileComp
}
