package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A kind is a sort of file that experiments read.
type kind string

// The files. How random data was written decides the size of the folios that
// hold it in the page cache, and that what it costs to map it.
const (
	smallPieces kind = "random-128k" // random data, written 128 KiB at a time
	largePieces kind = "random-4m"   // random data, written 4 MiB at a time
	zeros       kind = "zeros"       // zeros that were written
	hole        kind = "hole"        // of 1000 GiB
	digests     kind = "random-500m" // as long as the digests of that hole
)

const (
	fullSize    = 4 << 30
	quickSize   = 256 << 20
	holeSize    = 1000 << 30
	digestsSize = holeSize / blockSize * 32
	blockSize   = 64 << 10
)

// A dataSet makes the files when they are first asked for, and removes them.
type dataSet struct {
	dir  string
	size int64 // of the larger files
	made map[kind]bool
}

func newDataSet(dir string, quick bool) (*dataSet, error) {
	dir, err := os.MkdirTemp(dir, "hashfs-bench-data-")
	if err != nil {
		return nil, err
	}
	d := &dataSet{dir: dir, size: fullSize, made: map[kind]bool{}}
	if quick {
		d.size = quickSize
	}
	if err := d.checkSpace(); err != nil {
		d.remove()
		return nil, err
	}
	return d, nil
}

// checkSpace refuses a file system that is too small, before it is filled.
func (d *dataSet) checkSpace() error {
	var st unix.Statfs_t
	if err := unix.Statfs(d.dir, &st); err != nil {
		return fmt.Errorf("free space of %s: %w", d.dir, err)
	}
	need := 4*d.size + digestsSize + 256<<20 // three files, and one of them as a qcow2
	if free := int64(st.Bavail) * int64(st.Bsize); free < need {
		return fmt.Errorf("%s: %d MiB are free, and %d MiB are needed: choose another place with -dir", d.dir, free>>20, need>>20)
	}
	return nil
}

func (d *dataSet) remove() { os.RemoveAll(d.dir) }

// get returns the path of a file, which it makes if need be. It is in the page
// cache then; warmed sees to that later.
func (d *dataSet) get(ctx context.Context, k kind) (string, error) {
	path := filepath.Join(d.dir, string(k))
	if !d.made[k] {
		if err := d.make(ctx, k, path); err != nil {
			return "", err
		}
		d.made[k] = true
	}
	return path, nil
}

func (d *dataSet) make(ctx context.Context, k kind, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	switch k {
	case smallPieces:
		err = fill(ctx, f, random(1), d.size, 128<<10)
	case largePieces:
		err = fill(ctx, f, random(2), d.size, 4<<20)
	case digests:
		err = fill(ctx, f, random(3), digestsSize, 128<<10)
	case zeros:
		err = fill(ctx, f, zeroReader{}, d.size, 128<<10)
	case hole:
		err = f.Truncate(holeSize)
	}
	if err == nil {
		err = f.Sync() // else its being written back disturbs what is measured
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

// fill writes size bytes of r, piece bytes with each write(2).
func fill(ctx context.Context, f *os.File, r io.Reader, size int64, piece int) error {
	buf := make([]byte, piece)
	for size > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := buf[:min(int64(piece), size)]
		if _, err := io.ReadFull(r, p); err != nil {
			return err
		}
		if _, err := f.Write(p); err != nil {
			return err
		}
		size -= int64(len(p))
	}
	return nil
}

// random returns random bytes, the same each time.
func random(seed byte) io.Reader { return rand.NewChaCha8([32]byte{seed}) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// warm sees to it that the page cache holds a file, but for a hundredth at most:
// what else runs, and kernels that reclaim memory before it is short, take some
// away again at any time.
func warm(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	const tries = 5
	var have int64
	for range tries {
		var known bool
		if have, known, err = cached(f); err != nil {
			return err
		}
		if known && have >= st.Size()-st.Size()/100 {
			return nil
		}
		if err := readAll(f); err != nil {
			return err
		}
		if !known {
			return nil // more than to read it cannot be done
		}
	}
	return fmt.Errorf("%s: only %d of %d MiB stay in the page cache: there is too little memory", path, have>>20, st.Size()>>20)
}

// warmed warms a file each time before it measures.
func warmed(path string, run measurement) measurement {
	return func(ctx context.Context) (float64, error) {
		if err := warm(path); err != nil {
			return 0, err
		}
		return run(ctx)
	}
}

func readAll(f *os.File) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for {
		if _, err := f.Read(buf); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// cached returns how many bytes of a file the page cache holds. A kernel before
// 6.5 does not tell.
func cached(f *os.File) (bytes int64, known bool, err error) {
	var c unix.Cachestat_t
	switch err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &c, 0); err {
	case nil:
		return int64(c.Cache) * int64(os.Getpagesize()), true, nil
	case unix.ENOSYS:
		return 0, false, nil
	default:
		return 0, false, fmt.Errorf("page cache of %s: %w", f.Name(), err)
	}
}

// chill takes a file out of the page cache. With all, and if we may, all the
// caches of the machine go, so that what the file system keeps of the file is
// cold as well.
func chill(path string, all bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // a dirty page stays
		return err
	}
	if all && os.Geteuid() == 0 {
		if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0); err != nil {
			return err
		}
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop %s from the page cache: %w", path, err)
	}
	have, known, err := cached(f)
	if err == nil && known && have > 1<<20 {
		err = fmt.Errorf("%s: %d MiB do not leave the page cache: who else uses it?", path, have>>20)
	}
	return err
}
