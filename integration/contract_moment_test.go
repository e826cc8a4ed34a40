package integration

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A handle that was opened before a write shows the image from before it, in
// whatever order it is read, and one that is opened afterwards the new one.
func TestMoment_of_open(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	m := mount(t, "--writable", s.path)
	before := s.contents()
	handles := map[string]*os.File{}
	partly := map[string]*os.File{} // the first half is read before the write
	for _, name := range []string{"checksum", "digests", "digests.bin", "map", "map.json", "info.json"} {
		for _, all := range []map[string]*os.File{handles, partly} {
			f, err := os.Open(m.path("disk", name))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			all[name] = f
		}
		if _, err := io.CopyN(new(bytes.Buffer), partly[name], 40); err != nil {
			t.Fatal(err)
		}
	}
	info := m.info("disk")
	mapJSON := m.read("disk", "map.json")

	// Into data, into the hole, and into the tail.
	for i, off := range []int64{blockSize - 10, 4*blockSize + 100, s.size - 5} {
		data := random(uint64(50+i), 5)
		copy(s.data[off:], data)
		writeAt(t, m.path("disk", "image"), data, off)
	}
	read := func(f *os.File) string {
		t.Helper()
		content := new(bytes.Buffer)
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := content.ReadFrom(f); err != nil {
			t.Fatalf("%s: %v", f.Name(), err)
		}
		return content.String()
	}
	for _, all := range []map[string]*os.File{handles, partly} {
		for _, name := range []string{"checksum", "digests", "digests.bin", "map"} {
			same(t, name+" of before the write", read(all[name]), before[name])
		}
		same(t, "map.json of before the write", read(all["map.json"]), mapJSON)
		if i := parseInfo(t, read(all["info.json"])); i.Generation != info.Generation {
			t.Errorf("info.json of before the write: generation %d, want %d", i.Generation, info.Generation)
		}
	}
	m.checkDigests("disk", newOracle(s.data))
	if i := m.info("disk"); i.Generation <= info.Generation {
		t.Errorf("info.json after the write: generation %d, before %d", i.Generation, info.Generation)
	}
	if now := m.read("disk", "map"); now == before["map"] {
		t.Errorf("the map after a write into a hole is that of before")
	}
}

func parseInfo(t *testing.T, text string) info {
	t.Helper()
	var i info
	if err := json.Unmarshal([]byte(text), &i); err != nil {
		t.Fatal(err)
	}
	return i
}

// image and blocks are live: a handle shows what is written after its open.
func TestMoment_live_files(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	m := mount(t, "--writable", s.path)
	image, err := os.Open(m.path("disk", "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	block, err := os.Open(m.path("disk", "blocks", "0000000000010000"))
	if err != nil {
		t.Fatal(err)
	}
	defer block.Close()
	for i, file := range []string{m.path("disk", "image"), s.path} {
		data := random(uint64(60+i), 100)
		writeAt(t, file, data, blockSize+7)
		for _, at := range []struct {
			f   *os.File
			off int64
		}{{image, blockSize + 7}, {block, 7}} {
			got := make([]byte, len(data))
			if _, err := at.f.ReadAt(got, at.off); err != nil {
				t.Fatal(err)
			}
			same(t, at.f.Name()+" after a write to "+file, string(got), string(data))
		}
	}
}

// A plain digest takes the data in order: while that is written without a
// pause it is none.
func TestMoment_sums_while_written(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "disk.img")
	data := random(70, 48*mib)
	writeImage(t, path, data)
	m := mount(t, "--writable", path)
	image, err := os.OpenFile(m.path("disk", "image"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := byte(0); ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			case <-time.After(time.Millisecond):
			}
			if _, err := image.WriteAt([]byte{i}, int64(len(data))-1); err != nil {
				stopped <- err
				return
			}
		}
	}()
	r := run(t, "cat", m.path("disk", "sums", "sha3-512"))
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if r.Status != 1 || !strings.Contains(r.Stderr, "Device or resource busy") || r.Stdout != "" {
		t.Errorf("cat sums/sha3-512 during writes: %+v, want EBUSY", r)
	}
	// The digest is there once it holds still.
	want := output(t, program, "sum", "--plain", "--digest", "sha3-512", path)
	same(t, "sums/sha3-512", m.read("disk", "sums", "sha3-512"), want[:128]+"\n")
}
