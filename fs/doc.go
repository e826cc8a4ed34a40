// Package fs shows images as a FUSE file system by go-fuse: the names, sizes,
// attributes and errors that docs describe, over the digests that package
// hasher computes. It is the only package that imports go-fuse, here under the
// name fusefs.
//
// # What callers may rely on
//
// No stat and no listing ever hashes, and every size is exact before anything
// is hashed. A handle of a virtual file shows one moment: it holds a
// [hasher.View], or the bytes rendered when it was opened. Work is done for the
// range that is read and ends when the reader is interrupted; what a request
// lends (its context and buffers) is not kept after it.
//
// A file whose size can change is a new inode when it does, so that fstat of
// an open handle stays true. Opening an inode that was overtaken answers
// ESTALE, upon which the kernel looks the name up again, once. All timeouts are
// zero but those of directories, which never change.
//
// # What it refuses
//
// Everything that would change a name, an owner, a mode, a time or a size: with
// EPERM, and opening for writing with EROFS (the image of a read-only source)
// or EACCES (all other files). The size of an image is that of its source.
// There are no extended attributes. Nothing here answers ENOSYS, which the kernel
// takes for the whole mount and for good; go-fuse does so for attributes.
//
// # Locks
//
// No lock of this package is held across a call into hasher or the kernel's
// notification interface, but for imageFile.mu, which is held while the kernel
// is asked whether a file can be passed through. No lock is taken under
// another.
//
// # Tests
//
// The tests here run without a mount: formats, sizes, names, errors and the
// bounds of padded files. What the kernel and tools make of it is tested in
// package integration.
package fs
