package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
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
