// Package filesrc serves raw disk images in regular files and on block devices
// as a [hasher.Source], on Linux.
//
// # What callers may rely on
//
// After [Open] a file is reached only through descriptors held since then: the
// image's own, and one of each directory that its name passes through. No path
// is walked again, so a mount may cover the image's directory. The one
// exception is a symbolic link that is changed to lead elsewhere: its new
// target is walked once, and must not lie below the mount. A directory on the
// way that is exchanged for another is not noticed.
//
// A read-only image follows its name: when that leads to another regular file,
// the next [File.Stamp] turns to it, while reads in flight end on the file
// that they began on. A writable image keeps its file, and [File.Replaced]
// tells. No method takes missing bytes for zeros: past the end of a file that
// shrank, ReadAt returns io.EOF and Extents says data.
//
// All methods may be called at once from many goroutines, but for Close, which
// comes last.
//
// # Locks
//
// A read-only image takes no lock, and is served whoever else writes it.
//
// A writable image is held by open file description locks (fcntl(2)), by the
// protocol of QEMU's block/file-posix.c, where a byte stands for a permission:
//
//	byte 100+i, read-locked: its holder has permission i
//	byte 200+i, read-locked: its holder lets nobody else have permission i
//
//	i = 0 consistent read, 1 write, 2 write unchanged, 3 resize
//
// Held are 0 and 1, and denied to others are 1, 2 and 3. The bytes outside
// QEMU's two ranges of 64 are write-locked. So these exclude each other, in
// both directions and whoever comes first:
//
//   - QEMU and its tools that write the image, or that read it and want nobody
//     to write it (qemu-img convert, a guest's disk, though read-only);
//   - another writable hashfs, or the same file given twice;
//   - any program with a POSIX or open file description lock on the whole file
//     or its beginning, shared or exclusive (libvirt's virtlockd locks byte 0).
//
// Not excluded are:
//
//   - readers and writers without locks (dd, cp, mount -o loop, nbdkit);
//   - QEMU's tools that only look, for which a raw image may change meanwhile
//     (qemu-img info and compare, qemu-io -r, any with --force-share), as they
//     look at the disk of a running guest; and QEMU with locking=off;
//   - flock(2) locks, which are a world of their own on local file systems;
//   - other hosts, where a network file system does not pass locks on.
//
// What clients of the mount lock is apart from all this: see [File.LockFile].
//
// # Limits
//
// Only regular files and block devices are served. All else is refused without
// waiting and without touching the device behind it. /proc has to be mounted.
//
// The tests run on tmpfs and on the file system of the temporary directory; as
// root also on ramfs, which cannot punch, and on XFS and Btrfs.
package filesrc
