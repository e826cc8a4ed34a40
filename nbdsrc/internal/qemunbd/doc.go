// Package qemunbd serves a disk image in one of QEMU's formats through a
// private qemu-nbd child on a unix socket, after having checked every file that
// the image leads to.
//
// # Why there is a check
//
// The header of an image says which other files it consists of: a backing file,
// an external data file, extents, a parent. It is written by whoever owns the
// image, and followed by a daemon that is root: an unchecked qcow2 of an
// ordinary user whose backing or data file is a file of root's shows that file,
// and lets it be changed. So this package reads the headers itself and opens
// every further file with the rights of the owner: user, groups and no
// capabilities, through all directories on the way. What the owner could not
// open is refused, with each path named. In a chain with files of several owners
// each could have written what leads on, so each has to be able to open it. An
// external data file or extent of a writable image has to be writable for them,
// too. Names that QEMU would take for a protocol (nbd:, ssh:, json:) are
// refused, and so is a backing file without a recorded format, which QEMU would
// guess from bytes that a guest can write. TrustChain waives the owner's rights
// and the names, not the formats.
//
// A daemon that is not root cannot take on the rights of others. It goes by mode
// bits then, and refuses what an access control list decides.
//
// # What callers may rely on
//
// qemu-nbd gets the descriptors of the files that were checked, and no names:
// every node of the chain is spelled out in --image-opts as a driver over
// file.driver=file with /proc/self/fd/N, and the end of the chain as backing=.
// The descriptor of a VMDK with extents is replaced by one that we write, in
// memory. What is left to QEMU is to read the headers again. Should they have
// been changed meanwhile to lead elsewhere, the child is found to have other
// files or sockets open than it was given, and is ended before anybody is
// served. It may have opened and locked such a file by then.
//
// The child ends when the daemon does, even by SIGKILL, and at [Server.Close].
// When it dies by itself, it is started again at the same socket, and the chain
// is checked again. [Server.Restarts] moves before the new one can be reached.
//
// A read-only image follows its name, and the child is started again when any
// file of the chain was changed, since QEMU keeps tables of the old content in
// memory: [Server.Stamp] does that. It answers for the state that is served, one
// that was at rest when the child was started. The files that a writable image
// writes are QEMU's own, under its locks; their stamps move with our writes and
// at any later time at which QEMU writes a table back.
//
// All methods may be called from several goroutines.
//
// # Formats
//
// Read by specification or, where there is none, as QEMU's drivers do: qcow,
// qcow2 (docs/interop/qcow2.txt), qed, vmdk (VMware Virtual Disk Format 5.0),
// vhdx (MS-VHDX), vdi and vpc (also called vhd). parallels, bochs and cloop are
// left to QEMU; they lead to no other file. Refused are differencing vhdx, vdi
// and vpc images, for which QEMU does not look at the parent, VMDK extents that
// it would leave out, and internal snapshots older than a resize, which it shows
// at the wrong size.
//
// # Limits
//
// Linux 5.6 or later, with /proc. Only regular files are served. A chain has at
// most 64 levels and 256 files.
//
// The tests run the real qemu-nbd, and the attacks as root against a directory
// that nobody else can enter. The readers of headers are fuzzed.
package qemunbd
