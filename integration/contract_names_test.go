package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Block names are exact.
func TestBlocks_names(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	path := filepath.Join(dir, "disk.img")
	const size = 0xb*blockSize + 1
	data := random(32, size)
	writeImage(t, path, data)
	m := mount(t, path)
	for off := int64(0); off < size; off += blockSize {
		same(t, fmt.Sprintf("the block at %d", off), m.read("disk", "blocks", fmt.Sprintf("%016x", off)), string(data[off:min(off+blockSize, size)]))
	}
	for _, row := range []struct{ name, file string }{
		{"upper case", "00000000000A0000"},
		{"prefix", "0x000000000a0000"},
		{"too short", "0"},
		{"one digit too few", "000000000000000"},
		{"one digit too many", "00000000000000000"},
		{"not aligned", "0000000000000001"},
		{"not aligned, within the image", "0000000000008000"},
		{"just beyond the end", "00000000000c0000"},
		{"beyond the end", "0000000001000000"},
		{"no offset", "7fffffffffff0000"},
		{"sign bit", "8000000000000000"},
		{"negative", "ffffffffffff0000"},
		{"minus", "-000000000010000"},
		{"plus", "+000000000010000"},
		{"space", " 000000000010000"},
		{"no digit", "000000000000000g"},
		{"decimal point", "0000000000010.00"},
		{"other digits", "０0000000000000"},
		{"a word", "checksum"},
	} {
		if _, err := os.Lstat(m.path("disk", "blocks", row.file)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: blocks/%s: %v, want ENOENT", row.name, row.file, err)
		}
	}
	for _, name := range []string{"sha257", "SHA256", "sha256sum", "crc32", ""} {
		if name == "" {
			continue
		}
		if _, err := os.Lstat(m.path("disk", "sums", name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("sums/%s: %v, want ENOENT", name, err)
		}
	}
	for _, name := range []string{"Checksum", "digests.txt", "generation", "snapshots", "image.bmap"} {
		if _, err := os.Lstat(m.path("disk", name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, want ENOENT", name, err)
		}
	}
}

// Names that are allowed are directories, and say the same in info.json.
func TestNames(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	data := []byte("some data")
	path := filepath.Join(dir, "disk.img")
	writeImage(t, path, data)
	names := []string{
		"with space", " leading", "trailing ", "quote'single", `quote"double`, `back\slash`, "per%cent", "a=b,c", "$HOME", "*?[x]",
		"ünïcødé", "日本語", "🙂", "-dash", "--writable", ".hidden", "...", "a..b", "blocks", "map", "image", "#hash", "~",
		strings.Repeat("n", 255), strings.Repeat("é", 127), "CacheDir.tag",
	}
	var sources []string
	for _, name := range names {
		// A name given by NAME= must not hold =; such come from a file's name.
		file := filepath.Join(dir, name)
		if !strings.ContainsAny(name, "=,") {
			sources = append(sources, name+"="+path)
			continue
		}
		writeImage(t, file, data)
		sources = append(sources, strings.ReplaceAll(file, ",", ",,"))
	}
	m := mount(t, append([]string{"--"}, sources...)...)
	want := newOracle(data).checksum()
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]fs.DirEntry{}
	for _, e := range entries {
		listed[e.Name()] = e
	}
	for _, name := range names {
		if e := listed[name]; e == nil || !e.IsDir() {
			t.Errorf("%q is not listed as a directory", name)
		}
		same(t, name, m.read(name, "checksum"), want)
		if i := m.info(name); i.Name != name {
			t.Errorf("info.json calls %q %q", name, i.Name)
		}
		if got := m.metric(fmt.Sprintf("hashfs_image_size_bytes{image=%q}", name)); got != 9 {
			t.Errorf("metrics: the size of %q is %v", name, got)
		}
	}
	if len(entries) != len(names)+2 {
		t.Errorf("%d entries for %d images, CACHEDIR.TAG and .hashfs", len(entries), len(names))
	}
}
