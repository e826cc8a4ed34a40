package integration

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An outsider changes the file of an image behind the mount's back.
type outsider struct {
	t    *testing.T
	path string
	data []byte // of the file that has the name now
	seed uint64
}

func (o *outsider) content(n int64) []byte {
	o.seed++
	return random(1000+o.seed, n)
}

// write writes some bytes into the file.
func (o *outsider) write(off, n int64) {
	o.t.Helper()
	f, err := os.OpenFile(o.path, os.O_WRONLY, 0)
	if err != nil {
		o.t.Fatal(err)
	}
	defer f.Close()
	p := o.content(n)
	if _, err := f.WriteAt(p, off); err != nil {
		o.t.Fatal(err)
	}
	o.data = append(o.data, make([]byte, max(0, off+n-int64(len(o.data))))...)
	copy(o.data[off:], p)
}

func (o *outsider) truncate(size int64) {
	o.t.Helper()
	if err := os.Truncate(o.path, size); err != nil {
		o.t.Fatal(err)
	}
	o.data = append(o.data[:min(size, int64(len(o.data)))], make([]byte, max(0, size-int64(len(o.data))))...)
}

// replace puts another file of size bytes in its place by rename(2).
func (o *outsider) replace(size int64) {
	o.t.Helper()
	o.data = o.content(size)
	writeImage(o.t, o.path+".new", o.data)
	if err := os.Rename(o.path+".new", o.path); err != nil {
		o.t.Fatal(err)
	}
}

// A step is what an outsider does, with what becomes of a handle of digests
// that was opened before: whether the image has another size after it.
type step struct {
	name    string
	do      func(o *outsider)
	resizes bool
}

var steps = []step{
	{"write a byte", func(o *outsider) { o.write(5*blockSize+3, 1) }, false},
	{"write all", func(o *outsider) { o.write(0, int64(len(o.data))) }, false},
	{"write, with the times set back", func(o *outsider) {
		st, err := os.Stat(o.path)
		if err != nil {
			o.t.Fatal(err)
		}
		o.write(7*blockSize, 5000)
		output(o.t, "touch", "--date="+st.ModTime().Format(time.RFC3339Nano), o.path)
	}, false},
	{"truncate to less", func(o *outsider) { o.truncate(int64(len(o.data)) - 3*blockSize - 5) }, true},
	{"truncate to more", func(o *outsider) { o.truncate(int64(len(o.data)) + 2*blockSize) }, true},
	{"append", func(o *outsider) { o.write(int64(len(o.data)), 1000) }, true},
	{"truncate and write the same size", func(o *outsider) {
		size := int64(len(o.data))
		o.truncate(0)
		o.write(0, size)
	}, false},
	{"replace, of the same size", func(o *outsider) { o.replace(int64(len(o.data))) }, false},
	{"replace, of another size", func(o *outsider) { o.replace(ioSize + 100) }, true},
	{"empty", func(o *outsider) { o.truncate(0) }, true},
	{"fill again", func(o *outsider) { o.write(0, ioSize) }, true},
}

// Whatever is done to the file of a read-only image, what is read afterwards
// is what is there. A handle of before shows what is now if nothing of it had
// been read, and the image has not another size; else it is stale.
func TestOutside_read_only(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "disk.img")
	o := &outsider{t: t, path: path, data: random(40, ioSize)}
	writeImage(t, path, o.data)
	d := mountDisk(t, path)
	for _, s := range steps {
		fresh, used := openTwo(t, d.path("disk", "digests.bin"))
		digests := make([]byte, 32)
		if _, err := used.ReadAt(digests, 0); err != nil && len(o.data) > 0 {
			t.Fatal(err)
		}
		empty := len(o.data) == 0
		s.do(o)

		_, err := used.ReadAt(digests, 0)
		if !empty { // of which nothing could be read
			wantErrno(t, s.name+": a handle that was read", err, unix.ESTALE)
		}
		_, err = fresh.ReadAt(digests, 0)
		switch {
		case empty:
		case s.resizes:
			wantErrno(t, s.name+": a handle that was not read", err, unix.ESTALE)
		default:
			wantErrno(t, s.name+": a handle that was not read", err, 0)
			sameBytes(t, s.name+": a handle that was not read", digests, newOracle(o.data).blocks[:32])
		}
		sameBytes(t, s.name+": backing file", []byte(readFile(t, path)), o.data)
		d.checkHere(s.name)
		same(t, s.name+": image", d.read("disk", "image"), string(o.data))
		same(t, s.name+": sums/sha256", d.read("disk", "sums", "sha256"), fmt.Sprintf("%x\n", sha256.Sum256(o.data)))
	}
	d.check("after all")

	// A file that is gone is served for as long as it is held.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	d.checkDigests("disk", newOracle(o.data))
	same(t, "deleted: image", d.read("disk", "image"), string(o.data))
	writeImage(t, path, o.content(3*blockSize))
	d.check("made anew")
}

// openTwo opens a file twice.
func openTwo(t testing.TB, path string) (a, b *os.File) {
	t.Helper()
	for _, f := range []**os.File{&a, &b} {
		var err error
		if *f, err = os.Open(path); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*f).Close() })
	}
	return a, b
}

// A writable image is followed too when somebody writes its file in spite of
// the lock. It keeps its file when the name leads to another one, and says so.
func TestOutside_writable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "disk.img")
	o := &outsider{t: t, path: path, data: random(41, ioSize)}
	writeImage(t, path, o.data)
	d := mountDisk(t, path, "--writable")
	through := d.open(os.O_RDWR)
	for i, s := range steps[:7] {
		s.do(o)
		d.checkHere(s.name)
		p := o.content(100)
		if _, err := through.WriteAt(p, int64(i)*1000); err != nil {
			t.Fatal(err)
		}
		copy(o.data[i*1000:], p)
		d.checkHere(s.name + ", then written")
	}
	d.check("after all")

	for _, row := range []struct {
		name string
		do   func()
	}{
		{"replaced", func() {
			kept := o.data
			o.replace(2 * blockSize)
			o.data = kept
		}},
		{"deleted", func() {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		row.do()
		d.checkDigests("disk", newOracle(o.data))
		p := o.content(100)
		if _, err := through.WriteAt(p, 0); err != nil {
			t.Fatal(err)
		}
		copy(o.data, p)
		d.checkDigests("disk", newOracle(o.data))
		same(t, row.name+": image", d.read("disk", "image"), string(o.data))
		// The name is looked up once a second, when something is asked.
		for i := 0; i < 100 && !strings.Contains(d.log(), "renamed or deleted"); i++ {
			time.Sleep(50 * time.Millisecond)
			d.info("disk")
		}
	}
	d.expect("level=WARN msg=.*renamed or deleted.* image=disk")
	if n := strings.Count(d.log(), "renamed or deleted"); n != 1 {
		t.Errorf("that the name is lost is logged %d times, want once:\n%s", n, d.log())
	}
}

// Writes that come within one tick of the file system's clock, each with a
// look at the digests between, are all seen.
func TestOutside_within_a_tick(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "disk.img")
	data := random(42, 4*blockSize)
	writeImage(t, path, data)
	d := mountDisk(t, path)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sums := make(chan string)
	for i := range 40 {
		// The look goes on while the second write is done, or before it, or
		// after it.
		write := func() {
			data[i]++
			if _, err := f.WriteAt(data[i:i+1], int64(i)); err != nil {
				t.Error(err)
			}
		}
		write()
		go func() {
			sum, _ := readAll(d.path("disk", "checksum"))
			sums <- sum
		}()
		time.Sleep(time.Duration(i) * time.Millisecond)
		before := newOracle(data).checksum()
		write()
		after := newOracle(data).checksum()
		if sum := <-sums; sum != before && sum != after {
			t.Errorf("step %d: the checksum is %q, want %q or %q", i, sum, before, after)
		}
		same(t, fmt.Sprintf("step %d: checksum", i), d.read("disk", "checksum"), after)
	}
	d.check("after all")
}

// One write(2) of a gigabyte moves the file's times when it begins. Digests
// that are read all the while are of before or of after it, never of between.
func TestOutside_large_write(t *testing.T) {
	t.Parallel()
	size := gib
	if testing.Short() {
		size = 128 * mib
	}
	path := filepath.Join(scratch(t), "disk.img")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The same megabytes over and over: a buffer as large as the write would
	// be most of what the test takes.
	const part = 8 * mib
	write := func(fill byte) {
		p := bytes.Repeat([]byte{fill}, int(part))
		iov := make([][]byte, size/part)
		for i := range iov {
			iov[i] = p
		}
		if n, err := unix.Pwritev(int(f.Fd()), iov, 0); err != nil || int64(n) != size {
			t.Errorf("write of %d bytes: %d, %v", size, n, err)
		}
	}
	sum := func(fill byte) string {
		o := newOracle(bytes.Repeat([]byte{fill}, blockSize))
		o.blocks, o.size = bytes.Repeat(o.blocks, int(size/blockSize)), size
		return o.checksum()
	}
	write(1)
	d := mountDisk(t, path)
	for fill := byte(1); fill < 3; fill++ {
		before, after := sum(fill), sum(fill+1)
		done := make(chan struct{})
		go func() { write(fill + 1); close(done) }()
		for going := true; going; {
			select {
			case <-done:
				going = false
			default:
			}
			got, err := readAll(d.path("disk", "checksum"))
			if err == nil && got != before && got != after {
				t.Errorf("within the write the checksum is %q, want %q or %q", got, before, after)
			} else if err != nil {
				wantErrno(t, "within the write", err, unix.EBUSY)
			}
		}
		same(t, "checksum", d.read("disk", "checksum"), after)
	}
}
