package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"

	"hashfs/cmd/hashfs/internal/mounts"
)

type statusOptions struct{ json bool }

func newStatusCommand() *cobra.Command {
	o := &statusOptions{}
	c := &cobra.Command{
		Use:   "status [flags] [MOUNTPOINT...]",
		Short: "say what is mounted, and what it is doing",
		Long: `status tells of each hashfs mount, or of those given, its images, how many of their blocks have been hashed, what is being hashed now, and the last error. It never hashes. A mount whose daemon is gone, or that does not answer within seconds, is said to be so.

With --json it prints an array of objects with the keys mountpoint, source, state ("ok", "dead", "hung", "denied", "failed" or "none"), error, and images; an image has its name and either info, which is its info.json, or error.`,
		Example: `  hashfs status
  hashfs status --json /mnt | jq '.[].images[].info.blocks'`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			return runStatus(c.Context(), o, c.OutOrStdout(), c.ErrOrStderr(), args)
		},
	}
	setUsage(c, "hashfs status [--json] [MOUNTPOINT...]")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	return c
}

// mountStatus is one mount, in the form of --json.
type mountStatus struct {
	Point  string         `json:"mountpoint"`
	Source string         `json:"source,omitempty"`
	State  string         `json:"state"`
	Error  string         `json:"error,omitempty"`
	Images []mounts.Image `json:"images"`
}

func runStatus(ctx context.Context, o *statusOptions, stdout, stderr io.Writer, points []string) error {
	var list []mounts.Mount
	var err error
	if len(points) == 0 {
		if list, err = mounts.List(); err != nil {
			return err
		}
	}
	for _, point := range points {
		list = append(list, mounts.Mount{Point: point})
	}
	all := make([]mountStatus, len(list))
	var each sync.WaitGroup
	for i, m := range list {
		each.Go(func() { all[i] = statusOf(ctx, m) })
	}
	each.Wait()
	if o.json {
		err = printJSON(stdout, all)
	} else {
		err = printStatus(stdout, stderr, all)
	}
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	for _, s := range all {
		// Other people's mounts are no failure, but when asked for.
		if s.State != "ok" && (s.State != "denied" || len(points) > 0) {
			return statusError(exitFailure)
		}
	}
	return nil
}

// statusOf looks into one mount; m holds only the point when it was given.
func statusOf(ctx context.Context, m mounts.Mount) mountStatus {
	s := mountStatus{Point: m.Point, Source: m.Source, Images: []mounts.Image{}}
	fail := func(state string, err error) mountStatus {
		s.State, s.Error = state, err.Error()
		return s
	}
	if !m.Hashfs {
		path, err := mounts.Canonical(m.Point)
		if err != nil {
			return fail("none", err)
		}
		found := false
		if m, found, err = mounts.At(path); err != nil {
			return fail("failed", err)
		}
		if !found || !m.Hashfs {
			return fail("none", errors.New("not a hashfs mount"))
		}
		s.Point, s.Source = m.Point, m.Source
	}
	images, err := mounts.Probe(ctx, s.Point)
	switch {
	case err == nil:
		s.State, s.Images = "ok", images
		return s
	case errors.Is(err, mounts.ErrDead):
		return fail("dead", fmt.Errorf("%w: hashfs umount %s clears it", err, s.Point))
	case errors.Is(err, mounts.ErrHung):
		return fail("hung", fmt.Errorf("%w within %v", err, mounts.Patience))
	case isPermission(err):
		return fail("denied", fmt.Errorf("%w: mounted by another user without allow-other", err))
	}
	return fail("failed", err)
}

func printJSON(w io.Writer, all []mountStatus) error {
	if all == nil {
		all = []mountStatus{}
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(all)
}
