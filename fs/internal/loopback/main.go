// Command loopback mounts a directory by go-fuse's own loopback file system,
// with the mount options, the capabilities and the open flags of a writable
// image of hashfs. It does nothing that a file system of go-fuse could leave
// out, so it bounds what hashfs can reach: make bench compares the two.
//
//	loopback DIRECTORY MOUNTPOINT
//
// It serves until it is unmounted, and unmounts on SIGINT and SIGTERM. When the
// mount can be used it prints a line to standard output.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: loopback DIRECTORY MOUNTPOINT")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "loopback: %v\n", err)
		os.Exit(1)
	}
}

func serve(dir, point string) error {
	inner, err := fusefs.NewLoopbackRoot(dir)
	if err != nil {
		return fmt.Errorf("serve %s: %w", dir, err)
	}
	root := &node{inner.(*fusefs.LoopbackNode)}
	root.RootData.RootNode = root
	server, err := fusefs.Mount(point, root, &fusefs.Options{
		NullPermissions: true,
		MountOptions:    mountOptions(dir),
	})
	if err != nil {
		return fmt.Errorf("mount on %s: %w", point, err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for range signals {
			server.Unmount()
		}
	}()
	fmt.Println("mounted")
	server.Wait()
	return nil
}

// mountOptions are those of package hashfs/fs, which has the reasons, but for
// passthrough: an image that is written does without it.
func mountOptions(dir string) fuse.MountOptions {
	return fuse.MountOptions{
		Name:               "loopback",
		FsName:             dir,
		Options:            []string{"default_permissions", "nosuid", "nodev"},
		DirectMount:        os.Geteuid() == 0,
		MaxWrite:           1 << 20,
		MaxBackground:      64,
		EnableLocks:        true,
		DisableReadDirPlus: true,
		DisableSplice:      true,
		DisableXAttrs:      true,

		ExtraCapabilities:    fuse.CAP_ASYNC_DIO | fuse.CAP_DIRECT_IO_ALLOW_MMAP,
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
	}
}

// node is a loopback node whose files are opened as a writable image is.
type node struct{ *fusefs.LoopbackNode }

var (
	_ fusefs.NodeOpener      = (*node)(nil)
	_ fusefs.NodeWrapChilder = (*node)(nil)
)

func (n *node) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	h, _, errno := n.LoopbackNode.Open(ctx, flags)
	return h, fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES, errno
}

func (n *node) WrapChild(_ context.Context, child fusefs.InodeEmbedder) fusefs.InodeEmbedder {
	return &node{child.(*fusefs.LoopbackNode)}
}
