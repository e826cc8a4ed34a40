package integration

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCacheDirTag(t *testing.T) {
	t.Parallel()
	need(t, "tar")
	s := newSample(t, scratch(t))
	m := mount(t, s.path)
	// The signature is the first thing in the file, by https://bford.info/cachedir/.
	if got := m.read("CACHEDIR.TAG"); !strings.HasPrefix(got, "Signature: 8a477f597d28d172789f06886806bc55\n") {
		t.Errorf("it begins %q", got[:min(60, len(got))])
	}
	list := call{argv: []string{"sh", "-c", "tar --exclude-caches-all -cf - . 2>/dev/null | tar -tf -"}, dir: m.dir}.output(t)
	if strings.Contains(list, "disk") {
		t.Errorf("tar --exclude-caches-all took %q", list)
	}
}

func TestVersion_file(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	m := mount(t, s.path)
	same(t, "version", "hashfs "+m.read(".hashfs", "version"), output(t, program, "version"))
}

// The metrics are those of the Prometheus text format, each with help and type.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	name := `we"ird \ näme`
	m := mount(t, "--writable", name+"="+s.path)
	families := m.metrics()
	if len(families) == 0 {
		t.Fatal("no metrics")
	}
	for n, f := range families {
		if !regexp.MustCompile(`^hashfs_[a-z_]+$`).MatchString(n) || f.GetHelp() == "" || f.GetType().String() == "UNTYPED" {
			t.Errorf("%s: help %q, type %s", n, f.GetHelp(), f.GetType())
		}
		if strings.HasSuffix(n, "_total") != (f.GetType().String() == "COUNTER") {
			t.Errorf("%s is a %s", n, f.GetType())
		}
	}
	image := fmt.Sprintf("{image=%q}", name)
	if got := m.metric("hashfs_image_size_bytes" + image); got != float64(s.size) {
		t.Errorf("size: %v", got)
	}
	before := m.metric("hashfs_image_hashed_bytes_total" + image)
	m.read(name, "checksum")
	// The hole is not read, the rest once: three blocks, the block around a
	// page of data, and the tail.
	if got := m.metric("hashfs_image_hashed_bytes_total"+image) - before; got > 5*blockSize || got < 3*blockSize+1000 {
		t.Errorf("bytes hashed for the checksum: %v", got)
	}
	generation := m.metric("hashfs_image_generation" + image)
	writes := m.metric(`hashfs_requests_total{op="write"}`)
	writeAt(t, m.path(name, "image"), []byte("x"), 1)
	if got := m.metric("hashfs_image_generation" + image); got <= generation {
		t.Errorf("generation: %v, before %v", got, generation)
	}
	if got := m.metric(`hashfs_requests_total{op="write"}`); got != writes+1 {
		t.Errorf("writes: %v, before %v", got, writes)
	}
	if got := m.metric(fmt.Sprintf("hashfs_image_blocks{image=%q,state=%q}", name, "unknown")); got != 1 {
		t.Errorf("blocks unknown after a write to one: %v", got)
	}
}

func TestStatfs(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	writeSparse(t, filepath.Join(dir, "a.img"), 10*gib+1)
	writeSparse(t, filepath.Join(dir, "b.raw"), 5*gib)
	writeSparse(t, filepath.Join(dir, "c.img"), 0)
	m := mount(t, dir)
	for _, path := range []string{m.dir, m.path("a"), m.path("b", "image"), m.path(".hashfs", "version")} {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil {
			t.Fatal(err)
		}
		if total := int64(st.Blocks) * st.Bsize; total < 15*gib+1 || total > 15*gib+st.Bsize*3 {
			t.Errorf("%s: %d bytes in all", path, total)
		}
		if st.Bfree != 0 || st.Bavail != 0 || st.Ffree != 0 || st.Namelen != 255 {
			t.Errorf("%s: %+v", path, st)
		}
	}
	if got := output(t, "df", "--output=avail,pcent", m.dir); !strings.Contains(got, "0 100%") {
		t.Errorf("df says %s", got)
	}
	if fields := strings.Fields(output(t, "findmnt", "-n", "-o", "FSTYPE,SOURCE,OPTIONS", m.dir)); len(fields) != 3 ||
		fields[0] != "fuse.hashfs" || fields[1] != dir || !strings.Contains(fields[2], "nosuid,nodev") {
		t.Errorf("findmnt says %q", fields)
	}
}
