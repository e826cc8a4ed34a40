package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// A map that has changed is another inode, so that one that is open keeps the
// size that fstat says.
func TestMap_inode(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	path := filepath.Join(dir, "disk.img")
	writeSparse(t, path, mib, piece{0, random(40, 4096)})
	for _, name := range []string{"map", "map.json"} {
		t.Run(name, func(t *testing.T) {
			m := mount(t, "--writable", path)
			before, content := inode(t, m.path("disk", name)), m.read("disk", name)
			open, err := os.Open(m.path("disk", name))
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			if again := inode(t, m.path("disk", name)); again != before {
				t.Errorf("another inode though nothing has changed: %d, %d", before, again)
			}
			// Over data: the map stays.
			writeAt(t, m.path("disk", "image"), []byte("x"), 0)
			same(t, "the map after a write to data", m.read("disk", name), content)
			if again := inode(t, m.path("disk", name)); again != before {
				t.Errorf("another inode though the map is the same: %d, %d", before, again)
			}
			writeAt(t, m.path("disk", "image"), random(41, 8192), mib/2)
			if again := inode(t, m.path("disk", name)); again == before {
				t.Errorf("the same inode though the map has changed")
			}
			if now := m.read("disk", name); now == content || len(now) <= len(content) {
				t.Errorf("after a write into a hole the map is %q", now)
			}
			// The open one is as it was.
			info, err := open.Stat()
			if err != nil || info.Size() != int64(len(content)) {
				t.Errorf("fstat of the open map: %v, %v, want %d bytes", info, err, len(content))
			}
			buf := new(bytes.Buffer)
			if _, err := buf.ReadFrom(open); err != nil {
				t.Fatal(err)
			}
			same(t, "the open map", buf.String(), content)
			if err := os.Truncate(path, mib); err != nil {
				t.Fatal(err)
			}
			output(t, "fallocate", "-p", "-o", fmt.Sprint(mib/2), "-l", "8192", m.path("disk", "image"))
		})
	}
}

// The time of a file is that of the last change.
func TestTimes(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := newSample(t, dir)
	setAge(t, s.path, 24*time.Hour)
	backing := func() time.Time { return modTime(t, s.path) }
	m := mount(t, "--writable", s.path)
	files := []string{"checksum", "digests", "digests.bin", "map", "map.json", "image", "blocks/0000000000000000", "sums/sha256", ".", "blocks", "sums"}
	check := func(when string, ok func(time.Time) bool) {
		t.Helper()
		for _, f := range files {
			if got := modTime(t, m.path("disk", f)); !ok(got) {
				t.Errorf("%s: the time of %s is %v, that of the backing file %v", when, f, got, backing())
			}
		}
	}
	old := backing()
	check("at the start", old.Equal)
	m.read("disk", "checksum")
	m.read("disk", "sums", "sha256")
	check("after hashing", old.Equal)
	writeAt(t, m.path("disk", "image"), []byte("x"), 3)
	now := backing()
	check("after a write", func(got time.Time) bool { return !got.Before(now) && time.Since(got) < time.Minute })
	moved := modTime(t, m.path("disk", "digests"))
	writeAt(t, m.path("disk", "image"), []byte("y"), 3)
	check("after another write", moved.Before)
	setAge(t, s.path, -time.Hour)
	future := backing()
	check("after the backing file was touched", future.Equal)
	writeAt(t, s.path, []byte("z"), 3)
	check("after a write behind the mount's back", func(got time.Time) bool { return !got.Before(backing()) })
}

func modTime(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}
