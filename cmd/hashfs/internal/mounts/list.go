package mounts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/moby/sys/mountinfo"
)

// fsType is what the kernel calls the mounts.
const fsType = "fuse.hashfs"

// A Mount is one entry of the mount table.
type Mount struct {
	Point  string // absolute
	Source string
	Hashfs bool // false: of another type, in the way or asked for by mistake
	bind   bool // shows a part of a file system only
	id     int
	device [2]int
}

// read returns the table, in its order, without what is mounted over.
func read(table io.Reader) ([]Mount, error) {
	infos, err := mountinfo.GetMountsFromReader(table, nil)
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	var mounts []Mount
	for _, i := range infos {
		m := Mount{Point: i.Mountpoint, Source: i.Source, Hashfs: i.FSType == fsType, bind: i.Root != "/", id: i.ID, device: [2]int{i.Major, i.Minor}}
		// The kernel lists mounts in the order in which they were made.
		mounts = slices.DeleteFunc(mounts, func(below Mount) bool { return below.Point == m.Point })
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// ownTable is the mount table of this process.
const ownTable = "/proc/self/mountinfo"

func table(path string) ([]Mount, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	defer f.Close()
	return read(f)
}

// List returns the hashfs mounts, sorted by their mount points.
func List() ([]Mount, error) {
	mounts, err := table(ownTable)
	if err != nil {
		return nil, err
	}
	return only(mounts), nil
}

func only(mounts []Mount) []Mount {
	mounts = slices.DeleteFunc(mounts, func(m Mount) bool { return !m.Hashfs || m.bind })
	slices.SortFunc(mounts, func(a, b Mount) int {
		if a.Point < b.Point {
			return -1
		}
		return 1
	})
	return mounts
}

// At returns the topmost mount on the directory point, which is as Canonical
// returned it, and whether there is one.
func At(point string) (Mount, bool, error) {
	mounts, err := table(ownTable)
	if err != nil {
		return Mount{}, false, err
	}
	for _, m := range mounts {
		if m.Point == point {
			return m, true, nil
		}
	}
	return Mount{}, false, nil
}

// A Copy is another place where the file system of a mount is mounted.
type Copy struct {
	table string // the mount table that it is in
	mount Mount
	Where string // for a message
}

// Copies returns where else the file system of the mount is mounted: at other mount
// points, and in other mount namespaces. What it may not look into it passes over.
func (m Mount) Copies() (copies []Copy) {
	seen := map[string]bool{}
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, path := range append([]string{ownTable}, tables...) {
		process := filepath.Dir(path)
		namespace, err := os.Readlink(filepath.Join(process, "ns", "mnt"))
		if err != nil || seen[namespace] {
			continue
		}
		seen[namespace] = true
		mounts, _ := table(path) // the process may have ended
		for _, other := range mounts {
			switch {
			case other.device != m.device:
			case len(seen) > 1:
				copies = append(copies, Copy{path, other, "the mount namespace of process " + filepath.Base(process)})
			case other != m:
				copies = append(copies, Copy{path, other, other.Point})
			}
		}
	}
	return copies
}

// Remains reports whether the copy is still there. Its device alone would not tell: the
// number of one that has gone is given to the next.
func (c Copy) Remains() bool {
	mounts, _ := table(c.table) // with its process it is gone too
	return slices.Contains(mounts, c.mount)
}

// maxLinks is how many links in a row Linux follows.
const maxLinks = 40

// Canonical returns the absolute path of a mount point, links resolved, in
// the form of the mount table. What is mounted there is not asked anything
// that could hang: only the directories above it are.
func Canonical(point string) (string, error) {
	mounts, err := table(ownTable)
	if err != nil {
		return "", err
	}
	for range maxLinks {
		abs, err := filepath.Abs(point)
		if err != nil {
			return "", err
		}
		parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			return "", bare(err)
		}
		path := filepath.Join(parent, filepath.Base(abs))
		if slices.ContainsFunc(mounts, func(m Mount) bool { return m.Point == path }) {
			return path, nil
		}
		target, err := os.Readlink(path)
		switch {
		case errors.Is(err, syscall.EINVAL): // no link
			return path, nil
		case err != nil:
			return "", bare(err)
		case filepath.IsAbs(target):
			point = target
		default:
			point = filepath.Join(parent, target)
		}
	}
	return "", syscall.ELOOP
}

// bare takes the operation and the path off an error of package os.
func bare(err error) error {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err
	}
	return err
}
