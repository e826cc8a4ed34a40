package fs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const testBlock = 4096

// testContent returns n bytes, with some blocks of zeros.
func testContent(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	for i := 0; i+testBlock <= n; i += 3 * testBlock {
		clear(b[i : i+testBlock])
	}
	return b
}

// wanted computes the files of an image the plain way.
func wanted(image []byte) map[string]string {
	var bin, digests []byte
	files := map[string]string{"image": string(image)}
	for off := 0; off < len(image); off += testBlock {
		block := image[off:min(off+testBlock, len(image))]
		sum := sha256.Sum256(block)
		bin = append(bin, sum[:]...)
		name := fmt.Sprintf("blocks/%016x", off)
		digests = fmt.Appendf(digests, "%x  %s\n", sum, name)
		files[name] = string(block)
	}
	files["digests"] = string(digests)
	files["digests.bin"] = string(bin)
	files["checksum"] = fmt.Sprintf("%x\n", sha256.Sum256(binary.LittleEndian.AppendUint64(bin, uint64(len(image)))))
	files["sums/sha256"] = fmt.Sprintf("%x\n", sha256.Sum256(image))
	return files
}

func TestFiles_contentAndSize(t *testing.T) {
	for _, c := range []struct {
		name string
		size int
	}{
		{"empty", 0},
		{"one byte", 1},
		{"a block", testBlock},
		{"a short tail", 7*testBlock + 1},
		{"more than a request", 100 * testBlock},
	} {
		t.Run(c.name, func(t *testing.T) {
			content := testContent(c.size)
			k := newTestMount(t, testOptions{content: content})
			for name, want := range wanted(content) {
				if got := k.mustLookup("disk/" + name).Size; got != uint64(len(want)) {
					t.Errorf("%s has %d bytes before it is read, want %d", name, got, len(want))
				}
				if got := string(k.read("disk/" + name)); got != want {
					t.Errorf("%s: %s", name, cmp.Diff(want, got))
				}
			}
			for _, name := range []string{"map", "map.json", "info.json"} {
				if size, got := k.mustLookup("disk/"+name).Size, k.read("disk/"+name); size != uint64(len(got)) {
					t.Errorf("%s has %d bytes, of which %d were said", name, len(got), size)
				}
			}
		})
	}
}

func TestFiles_nothingIsHashedUntilItIsRead(t *testing.T) {
	k := newTestMount(t, testOptions{content: bytes.Repeat([]byte("x"), 100*testBlock)})
	hashed := func() int64 { return k.m.images[0].Image.Image.Status().HashedBytes }
	for _, dir := range []string{"", "disk", "disk/blocks", "disk/sums", ".hashfs"} {
		for _, name := range k.list(dir) {
			k.mustLookup(strings.TrimPrefix(dir+"/"+name, "/"))
		}
	}
	k.mustLookup("disk/sums/sha256")
	for _, name := range []string{"checksum", "digests", "digests.bin", "map", "map.json", "info.json", "image", "sums/md5"} {
		k.open("disk/"+name, syscall.O_RDONLY).close()
	}
	if n := hashed(); n != 0 {
		t.Errorf("listing, stat and open hashed %d bytes", n)
	}
	f := k.open("disk/digests", syscall.O_RDONLY)
	defer f.close()
	f.readAt(90, 0)
	if n := hashed(); n != testBlock {
		t.Errorf("the first line of digests hashed %d bytes, want a block", n)
	}
	f.readAt(2, 2*90-1)
	if n := hashed(); n != 3*testBlock {
		t.Errorf("then two bytes of two other lines hashed %d bytes, want 3 blocks in all", n)
	}
}

func TestDirectories_list(t *testing.T) {
	k := newTestMount(t, testOptions{content: testContent(10 * testBlock)})
	want := map[string][]string{
		"":            {"disk", "CACHEDIR.TAG", ".hashfs"},
		".hashfs":     {"version", "metrics"},
		"disk":        {"blocks", "checksum", "digests", "digests.bin", "image", "info.json", "map", "map.json", "sums"},
		"disk/blocks": nil,
		"disk/sums":   nil,
	}
	for dir, names := range want {
		if diff := cmp.Diff(names, k.list(dir)); diff != "" {
			t.Errorf("%s: %s", dir, diff)
		}
	}
	k.read("disk/sums/md5")
	if got := k.list("disk/sums"); !slices.Equal(got, []string{"md5"}) {
		t.Errorf("after reading sums/md5 sums lists %q", got)
	}
	for _, name := range []string{"nothing", "disk/nothing", "disk/blocks/0000000000000001", "disk/blocks/000000000000a000", "disk/sums/SHA256"} {
		if _, status := k.lookup(name); status != fuse.ENOENT {
			t.Errorf("look up %s: %v, want ENOENT", name, status)
		}
	}
}

func TestHandles_seeTheMomentOfTheirOpen(t *testing.T) {
	before := testContent(5*testBlock + 1)
	k := newTestMount(t, testOptions{content: before, writable: true})
	files := []string{"checksum", "digests", "digests.bin"}
	old := map[string]*testFile{}
	for _, name := range files {
		old[name] = k.open("disk/"+name, syscall.O_RDONLY)
		defer old[name].close()
	}
	image := k.open("disk/image", syscall.O_RDWR)
	defer image.close()
	after := slices.Clone(before)
	copy(after[testBlock+5:], "overwritten")
	if n, status := image.write([]byte("overwritten"), testBlock+5); n != 11 || !status.Ok() {
		t.Fatalf("wrote %d bytes: %v", n, status)
	}
	for _, name := range files {
		if got, want := string(old[name].all()), wanted(before)[name]; got != want {
			t.Errorf("%s opened before: %s", name, cmp.Diff(want, got))
		}
		if got, want := string(k.read("disk/"+name)), wanted(after)[name]; got != want {
			t.Errorf("%s opened after: %s", name, cmp.Diff(want, got))
		}
	}
	if got := image.all(); !bytes.Equal(got, after) {
		t.Error("image does not show what was written")
	}
}

func TestResize_isANewInode(t *testing.T) {
	k := newTestMount(t, testOptions{content: testContent(5 * testBlock)})
	names := []string{"digests", "digests.bin", "checksum", "image", "map", "sums/md5", "blocks/0000000000001000"}
	old := map[string]fuse.EntryOut{}
	for _, name := range names {
		old[name] = k.mustLookup("disk/" + name)
	}
	if err := os.Truncate(k.path, 9*testBlock); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		now := k.mustLookup("disk/" + name)
		if now.NodeId == old[name].NodeId || now.Ino == old[name].Ino {
			t.Errorf("%s is the inode that it was", name)
		}
		if name != "image" && k.size(old[name].NodeId) != old[name].Size {
			t.Errorf("the old %s has another size now", name)
		}
		if name != "map" {
			if _, status := k.openNode(old[name].NodeId, syscall.O_RDONLY); status != fuse.Status(syscall.ESTALE) {
				t.Errorf("open of the old %s: %v, want ESTALE", name, status)
			}
		}
	}
	if size := len(k.read("disk/digests.bin")); size != 9*sha256.Size {
		t.Errorf("digests.bin has %d bytes, want 9 digests", size)
	}
}

func TestReplaced_imageIsStale(t *testing.T) {
	k := newTestMount(t, testOptions{content: testContent(5 * testBlock)})
	f := k.open("disk/image", syscall.O_RDONLY)
	defer f.close()
	if _, status := f.readAt(100, 0); !status.Ok() {
		t.Fatal(status)
	}
	other := bytes.Repeat([]byte("other"), testBlock)
	if err := os.WriteFile(k.path+".new", other, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(k.path+".new", k.path); err != nil {
		t.Fatal(err)
	}
	if got := k.read("disk/image"); !bytes.Equal(got, other) {
		t.Error("an image opened after the rename is not the new file")
	}
	if _, status := f.readAt(100, 0); status != fuse.Status(syscall.ESTALE) {
		t.Errorf("reading on after the rename: %v, want ESTALE", status)
	}
}

func TestMap_isANewInodeWhenItChanges(t *testing.T) {
	k := newTestMount(t, testOptions{content: bytes.Repeat([]byte("x"), 64*testBlock), writable: true})
	before := k.mustLookup("disk/map")
	f := k.open("disk/map", syscall.O_RDONLY)
	defer f.close()
	if again := k.mustLookup("disk/map"); again.NodeId != before.NodeId {
		t.Error("another inode, and nothing changed")
	}
	image := k.open("disk/image", syscall.O_RDWR)
	defer image.close()
	punch := &fuse.FallocateIn{
		InHeader: header(image.node), Fh: image.fh,
		Offset: 16 * testBlock, Length: 16 * testBlock,
		Mode: unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
	}
	if status := k.front.Fallocate(nil, punch); status == fuse.Status(syscall.EOPNOTSUPP) {
		t.Skip("the temporary directory's file system cannot punch holes")
	} else if !status.Ok() {
		t.Fatal(status)
	}
	after := k.mustLookup("disk/map")
	if after.NodeId == before.NodeId || after.Ino == before.Ino {
		t.Error("the map changed, but not its inode")
	}
	want := "         0      262144    0  data\n"
	if got := string(f.all()); got != want || k.size(before.NodeId) != uint64(len(want)) {
		t.Errorf("the map opened before is %q of %d bytes, want %q", got, k.size(before.NodeId), want)
	}
	want = "         0       65536    0  data\n" +
		"     65536       65536    3  hole,zero\n" +
		"    131072      131072    0  data\n"
	if got := string(k.read("disk/map")); got != want || after.Size != uint64(len(want)) {
		t.Errorf("the map is %q of %d bytes, want %q", got, after.Size, want)
	}
}

func TestInfo_tellsWhatItIs(t *testing.T) {
	k := newTestMount(t, testOptions{content: testContent(5*testBlock + 1), writable: true})
	generation := func() (i info) {
		t.Helper()
		if err := json.Unmarshal(k.read("disk/info.json"), &i); err != nil {
			t.Fatal(err)
		}
		return i
	}
	first := generation()
	if first.Size != 5*testBlock+1 || first.Digest != "sha256" || first.BlockSize != testBlock ||
		first.Blocks.Total != 6 || !first.Writable || first.LastError != nil || len(first.Epoch) < 16 {
		t.Errorf("info is %+v", first)
	}
	if second := generation(); second.Generation != first.Generation {
		t.Error("the generation moved, and nothing changed")
	}
	image := k.open("disk/image", syscall.O_RDWR)
	defer image.close()
	image.write([]byte("x"), 0)
	if third := generation(); third.Generation == first.Generation || third.Epoch != first.Epoch {
		t.Error("a write does not show in the generation")
	}
}

func TestMetrics_keepTheirSize(t *testing.T) {
	k := newTestMount(t, testOptions{content: testContent(50 * testBlock)})
	size := k.mustLookup(".hashfs/metrics").Size
	k.read("disk/checksum")
	for op := range ops {
		k.m.metrics.requests[op].Store(1<<63 - 1)
		k.m.metrics.failures[op].Store(-1 << 62)
	}
	got := k.read(".hashfs/metrics")
	if uint64(len(got)) != size {
		t.Errorf("metrics have %d bytes, of which %d were said", len(got), size)
	}
	for _, want := range []string{
		"hashfs_image_size_bytes{image=\"disk\"} 204800\n",
		"hashfs_image_blocks{image=\"disk\",state=\"unknown\"} 0\n",
		"# TYPE hashfs_requests_total counter\n",
	} {
		if !bytes.Contains(got, []byte(want)) {
			t.Errorf("metrics lack %q", want)
		}
	}
}
