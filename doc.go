// Package hashfs is the top of a module that shows live digests of disk images
// as files. It has no code; its tests check what holds for the whole tree.
//
// The packages, of which each may use only those below it:
//
//	cmd/hashfs   the command line
//	fs           the mount, by FUSE
//	filesrc      images in regular files
//	nbdsrc       images that NBD servers export
//	hasher       digests, and what keeps them right while an image is written
//	blockcache   what is known of each block
//	integration  tests of the program on real mounts
//
// See docs/architecture.md for how they work together.
package hashfs
