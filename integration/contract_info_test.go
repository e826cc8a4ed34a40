package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// keys returns the keys of a JSON object in their order, with those of objects
// in it as outer.inner.
func keys(t *testing.T, text string) []string {
	t.Helper()
	var all []string
	in := json.NewDecoder(strings.NewReader(text))
	var walk func(prefix string)
	walk = func(prefix string) {
		open, err := in.Token()
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; in.More() && (open == json.Delim('{') || open == json.Delim('[')); i++ {
			name := prefix
			if open == json.Delim('{') {
				key, err := in.Token()
				if err != nil {
					t.Fatal(err)
				}
				name = strings.TrimPrefix(prefix+"."+key.(string), ".")
				all = append(all, name)
			}
			walk(name)
		}
		if open == json.Delim('{') || open == json.Delim('[') {
			if _, err := in.Token(); err != nil {
				t.Fatal(err)
			}
		}
	}
	walk("")
	return all
}

func TestInfo_keys_and_values(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := newSample(t, dir)
	m := mount(t, "--cache-size=1m", "My disk="+s.path+",digest=blake2b256/4k,writable,cache=none", s.path)
	text := m.read("My disk", "info.json")
	want := []string{
		"name", "source", "format", "size", "block_size", "digest", "construction", "algorithms", "writable", "cache_mode", "cache_reason", "epoch", "generation",
		"blocks", "blocks.total", "blocks.unknown", "blocks.zero", "blocks.data", "blocks.failed",
		"cache", "cache.bytes", "cache.limit", "cache.needed", "cache.hits", "cache.misses", "cache.evictions",
		"work", "last_error", "bad",
	}
	if diff := cmp.Diff(want, keys(t, text)); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	got := m.info("My disk")
	wantInfo := info{
		Name: "My disk", Source: "My disk=" + s.path + ",digest=blake2b256/4k,writable,cache=none", Format: "raw",
		Size: s.size, BlockSize: 4096, Digest: "blake2b256", Construction: "blkhash", Writable: true, CacheMode: "none",
		Epoch: got.Epoch, Bad: []int64{},
	}
	for _, a := range algorithms {
		wantInfo.Algorithms = append(wantInfo.Algorithms, a.name)
	}
	blocks := (s.size + 4095) / 4096
	wantInfo.Blocks.Total, wantInfo.Blocks.Unknown = blocks, blocks
	wantInfo.Cache.Needed = blocks * 32
	wantInfo.Cache.Limit = got.Cache.Limit
	if diff := cmp.Diff(wantInfo, got, cmp.Transformer("work", func(i info) info { i.Work = nil; return i })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if limit := m.info("disk").Cache.Limit; limit != mib {
		t.Errorf("the limit of the cache is %d, given was 1m", limit)
	}
	if i := m.info("disk"); i.Writable || i.CacheMode != "keep" || i.Epoch != got.Epoch || len(i.Epoch) < 16 {
		t.Errorf("the other image: %+v", i)
	}
}

// Its size is fixed at the mount, whatever it holds; the rest is white space.
func TestInfo_fixed_size(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	m := mount(t, "--writable", s.path)
	size := func(name string) int64 {
		info, err := os.Stat(m.path(name))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	files := []string{"disk/info.json", ".hashfs/metrics", ".hashfs/version"}
	before := map[string]int64{}
	for _, f := range files {
		before[f] = size(f)
	}
	m.read("disk", "checksum")
	writeAt(t, m.path("disk", "image"), []byte("x"), 0)
	m.read("disk", "digests")
	for _, f := range files {
		content := m.read(f)
		if size(f) != before[f] || int64(len(content)) != before[f] || !strings.HasSuffix(content, "\n") {
			t.Errorf("%s: %d bytes were %d, and %d were read", f, size(f), before[f], len(content))
		}
	}
	if text := m.read("disk", "info.json"); !json.Valid([]byte(text)) || strings.TrimRight(text, " \n")[0] != '{' {
		t.Errorf("info.json is no JSON: %q", text)
	}
}

// The generation moves with every change, from inside and outside, and with
// nothing else; the epoch is another at each start.
func TestInfo_generation_and_epoch(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	m := mount(t, "--writable", s.path)
	first := m.info("disk")
	for _, step := range []struct {
		name  string
		do    func()
		moves bool
	}{
		{"nothing", func() {}, false},
		{"hashing", func() { m.read("disk", "checksum"); m.read("disk", "sums", "md5") }, false},
		{"reading the image", func() { m.read("disk", "image") }, false},
		{"a write", func() { writeAt(t, m.path("disk", "image"), []byte("x"), 7) }, true},
		{"the same write once more", func() { writeAt(t, m.path("disk", "image"), []byte("x"), 7) }, true},
		{"punching", func() { output(t, "fallocate", "-p", "-o", "0", "-l", "4096", m.path("disk", "image")) }, true},
		{"a refused truncate", func() { os.Truncate(m.path("disk", "image"), 1) }, false},
		{"fsync", func() { output(t, "sync", m.path("disk", "image")) }, false},
		{"a write behind the mount's back", func() { writeAt(t, s.path, []byte("y"), 9) }, true},
		{"another size", func() { os.Truncate(s.path, s.size+10) }, true},
	} {
		before := m.info("disk")
		step.do()
		after := m.info("disk")
		if moved := after.Generation > before.Generation; moved != step.moves || after.Generation < before.Generation {
			t.Errorf("%s: generation %d, before %d", step.name, after.Generation, before.Generation)
		}
		if after.Epoch != first.Epoch {
			t.Errorf("%s: the epoch has changed", step.name)
		}
	}
	m.unmount()
	if again := mount(t, s.path).info("disk"); again.Epoch == first.Epoch {
		t.Errorf("the epoch is the same after another start: %s", again.Epoch)
	}
}

// What is being hashed is seen while it is.
func TestInfo_work(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "disk.img")
	// The smallest blocks are slow enough to be looked at.
	const size = 64 * mib
	writeImage(t, path, random(42, size))
	m := mount(t, "--jobs=1", path+",digest=md5/4")
	cat := startCommand(t, "cat", m.path("disk", "checksum"))
	defer cat.stop()
	deadline := time.Now().Add(patience)
	for {
		i := m.info("disk")
		if len(i.Work) > 0 {
			w := i.Work[0]
			if w.File != "checksum" || w.Total != size || w.Done < 0 || w.Done > size || time.Since(w.Started) > patience || time.Until(w.Started) > time.Minute {
				t.Errorf("work: %+v", w)
			}
			status := run(t, program, "status", m.dir)
			if !strings.Contains(status.Stdout, "    now     checksum: ") {
				t.Errorf("status: %+v", status)
			}
			return
		}
		if time.Now().After(deadline) || cat.ended() {
			t.Fatalf("no work was seen in info.json; cat has ended: %v", cat.ended())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

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
