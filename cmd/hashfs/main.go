// Command hashfs shows live digests of disk images as files, through FUSE.
// See hashfs --help, and package hashfs/fs for what a mount offers.
package main

import (
	"os"

	"hashfs/cmd/hashfs/internal/cli"
)

// version is set by the linker: -ldflags "-X main.version=1.2.3".
var version string

func main() {
	os.Exit(cli.Main(os.Args, version))
}
