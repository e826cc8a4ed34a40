package cli

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hashfs/cmd/hashfs/internal/mounts"
)

// Main runs the command line argv, with the program's name first, and returns
// the exit status. version is what the program was built as, "" if unknown.
func Main(argv []string, version string) int {
	root := NewRoot(version)
	addCompletion(root)
	root.SetArgs(dispatch(root, argv))
	return finish(os.Stderr, root.ExecuteContext(context.Background()))
}

// NewRoot returns the command hashfs with all its subcommands.
func NewRoot(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "hashfs COMMAND",
		Short: "show live digests of disk images as files",
		Long: `hashfs mounts a directory that shows, for each disk image, its digests, its map of holes and data, and the image itself as files. What is read is hashed, and nothing else; what is written through the mount is hashed again when it is next read.

To see what a mount offers, list the directory of an image in it.`,
		Example: `  hashfs mount disk.img /mnt
  cat /mnt/disk/checksum
  head -c 90 /mnt/disk/digests
  hashfs umount /mnt`,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          runRoot,
		Version:       describeVersion(version),

		SuggestionsMinimumDistance: 2,
	}
	root.SetVersionTemplate("hashfs {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%w; see %s --help", err, c.CommandPath())
	})
	setUsage(root, "hashfs COMMAND [flags] ...", "hashfs SOURCE MOUNTPOINT -o OPTIONS   (as mount(8) calls it)")
	root.SetHelpTemplate(helpTemplate)
	root.SetUsageTemplate(helpTemplate)
	root.AddCommand(
		newMountCommand(version),
		newMountTypeCommand(version),
		newUmountCommand(),
		newStatusCommand(),
		newSumCommand(),
		newVersionCommand(version),
		newProbeCommand(),
	)
	return root
}

// addCompletion adds cobra's command, which has no place in the manual.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Short = "print a script for the completion of a shell"
		}
	}
}

func runRoot(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("no command given; see hashfs --help")
	}
	hint := ""
	if similar := c.SuggestionsFor(args[0]); len(similar) > 0 {
		hint = "did you mean " + strings.Join(similar, " or ") + "? "
	}
	return usagef("unknown command %q; %ssee hashfs --help", args[0], hint)
}

// newProbeCommand is what mounts.Probe runs.
func newProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    mounts.ProbeCommand + " MOUNTPOINT",
		Hidden: true,
		RunE: func(c *cobra.Command, args []string) error {
			return mounts.RunProbe(c.OutOrStdout(), args)
		},
	}
}

// mountType is the hidden command that mount(8) gets: by the name that it
// calls us, or since there is no command but what it always says first,
// SOURCE MOUNTPOINT.
const mountType = "mount.hashfs"

func dispatch(root *cobra.Command, argv []string) []string {
	args := argv[1:]
	switch filepath.Base(argv[0]) {
	case mountType, "mount.fuse.hashfs", "mount.fuse3.hashfs":
		if len(args) == 0 || args[0] != mounts.ProbeCommand {
			return append([]string{mountType}, args...)
		}
	}
	// Cobra adds these two only when it runs.
	if positionals(args) != 2 || isCommand(root, args[0]) || args[0] == "help" || strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return args
	}
	return append([]string{mountType}, args...)
}

// positionals counts the arguments before the first flag.
func positionals(args []string) int {
	i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "-") && arg != "-" })
	if i < 0 {
		return len(args)
	}
	return i
}

func isCommand(root *cobra.Command, name string) bool {
	return slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool {
		return c.Name() == name || c.HasAlias(name)
	})
}
