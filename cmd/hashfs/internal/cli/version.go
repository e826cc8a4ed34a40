package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand(version string) *cobra.Command {
	c := &cobra.Command{
		Use:     "version",
		Short:   "say which version this is",
		Example: "  hashfs version",
		Args:    arguments(0, 0, "no arguments are taken"),
		RunE: func(c *cobra.Command, args []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "hashfs %s\n", describeVersion(version))
			return err
		},
	}
	setUsage(c, "hashfs version")
	return c
}

// describeVersion returns the version that the linker was given, or else the
// module's, with the revision if that is known, and what built it.
func describeVersion(version string) string {
	revision, modified := "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if version == "" {
			version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = " " + s.Value[:min(12, len(s.Value))]
			case s.Key == "vcs.modified" && s.Value == "true":
				modified = "+changes"
			}
		}
	}
	if version == "" {
		version = "(devel)"
	}
	return fmt.Sprintf("%s%s%s (%s %s/%s)", version, revision, modified, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
