// Command gendocs writes the man pages and the shell completions of hashfs,
// from the commands themselves.
//
//	go run ./cmd/hashfs/internal/gendocs -man DIR -completions DIR
//
// The date of the pages is that of $SOURCE_DATE_EPOCH when it is set, so that
// they can be reproduced.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"hashfs/cmd/hashfs/internal/cli"
)

func main() {
	man := flag.String("man", "", "directory for hashfs*.1")
	completions := flag.String("completions", "", "directory for hashfs.bash, _hashfs and hashfs.fish")
	version := flag.String("version", "", "version to name in the pages")
	flag.Parse()
	if flag.NArg() > 0 || *man == "" && *completions == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := generate(*man, *completions, *version); err != nil {
		fmt.Fprintf(os.Stderr, "gendocs: %v\n", err)
		os.Exit(1)
	}
}

func generate(man, completions, version string) error {
	if completions != "" {
		if err := writeCompletions(cli.NewRoot(version), completions); err != nil {
			return err
		}
	}
	if man == "" {
		return nil
	}
	if err := os.MkdirAll(man, 0o755); err != nil {
		return err
	}
	root := cli.NewRoot(version)
	root.DisableAutoGenTag = true // it holds a date
	cli.Manual(root)
	return doc.GenManTree(root, &doc.GenManHeader{
		Section: "1",
		Source:  "hashfs " + version,
		Manual:  "User Commands",
	}, man)
}

func writeCompletions(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := root.GenBashCompletionFileV2(filepath.Join(dir, "hashfs.bash"), true); err != nil {
		return err
	}
	if err := root.GenZshCompletionFile(filepath.Join(dir, "_hashfs")); err != nil {
		return err
	}
	return root.GenFishCompletionFile(filepath.Join(dir, "hashfs.fish"), true)
}
