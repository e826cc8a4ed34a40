package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sample is an image that has all that differs: data, a hole, zeros that are
// data, and a tail. Borders lie on pages, where file systems can put holes.
type sample struct {
	path   string
	size   int64
	data   []byte // all of it
	pieces []piece
}

// newSample writes disk.img into dir.
func newSample(t testing.TB, dir string) *sample {
	t.Helper()
	s := &sample{path: filepath.Join(dir, "disk.img"), size: 10*blockSize + 1000}
	s.pieces = []piece{
		{0, append(random(2, 2*blockSize), make([]byte, blockSize)...)},
		{6*blockSize + 4096, random(3, 4096)},
		{10 * blockSize, random(4, 1000)},
	}
	s.data = make([]byte, s.size)
	for _, p := range s.pieces {
		copy(s.data[p.offset:], p.data)
	}
	writeSparse(t, s.path, s.size, s.pieces...)
	return s
}

// mapText is the extents of the sample, as nbdinfo --map prints them.
const mapText = "" +
	"         0      196608    0  data\n" +
	"    196608      200704    3  hole,zero\n" +
	"    397312        4096    0  data\n" +
	"    401408      253952    3  hole,zero\n" +
	"    655360        1000    0  data\n"

// contents are the files whose every byte is known, by their paths in the
// image's directory.
func (s *sample) contents() map[string]string {
	o := newOracle(s.data)
	return map[string]string{
		"checksum":                o.checksum(),
		"digests":                 o.digests(),
		"digests.bin":             o.bin(),
		"map":                     mapText,
		"image":                   string(s.data),
		"blocks/0000000000010000": string(s.data[blockSize : 2*blockSize]),
		"blocks/00000000000a0000": string(s.data[10*blockSize:]),
		"sums/sha256":             hex.EncodeToString(digest(sha256.New, s.data)) + "\n",
		"sums/md5":                hex.EncodeToString(digest(algorithms[0].new, s.data)) + "\n",
	}
}

func TestMount_foreground_and_background(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	for _, row := range []struct {
		name  string
		mount func(testing.TB, ...string) *mounted
	}{
		{"foreground", mount},
		{"background", mountBackground},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := row.mount(t, s.path)
			for name, want := range s.contents() {
				same(t, name, m.read("disk", name), want)
			}
		})
	}
}

// Programs that write a file to standard output. SRC in their arguments is
// the file.
func TestClients_to_stdout(t *testing.T) {
	t.Parallel()
	need(t, "busybox", "rsync", "tar", "dd", "cmp")
	s := newSample(t, scratch(t))
	m := mount(t, s.path)
	end := func(n int) func(string) string {
		return func(s string) string { return s[max(0, len(s)-n):] }
	}
	start := func(n int) func(string) string {
		return func(s string) string { return s[:min(n, len(s))] }
	}
	count := func(s string) string { return fmt.Sprintln(len(s)) }
	whole := func(s string) string { return s }
	for _, row := range []struct {
		name    string
		command string
		want    func(content string) string
	}{
		{"cat", "cat SRC", whole},
		{"busybox cat", "busybox cat SRC", whole},
		{"cat into a pipe", "cat SRC | cat", whole},
		{"dd", "dd if=SRC status=none", whole},
		{"dd, odd blocks", "dd if=SRC bs=1000 status=none", whole},
		{"dd, large blocks", "dd if=SRC bs=4M status=none", whole},
		{"dd, skip", "dd if=SRC bs=7 skip=3 status=none", func(s string) string { return s[min(21, len(s)):] }},
		{"dd, direct", "dd if=SRC bs=4k iflag=direct status=none", whole},
		{"busybox dd", "busybox dd if=SRC bs=1000 2>/dev/null", whole},
		{"tail -c", "tail -c 32 SRC", end(32)},
		{"busybox tail -c", "busybox tail -c 32 SRC", end(32)},
		{"tail -c of all", "tail -c +1 SRC", whole},
		{"head -c", "head -c 90 SRC", start(90)},
		{"busybox head -c", "busybox head -c 90 SRC", start(90)},
		{"wc -c", "wc -c <SRC", count},
		{"wc -c by reading", "cat SRC | wc -c", count},
		{"busybox wc -c", "busybox wc -c <SRC", count},
		{"stat", "stat -L -c %s SRC", count},
		{"sha256sum", "sha256sum <SRC", func(s string) string { return hex.EncodeToString(digest(sha256.New, []byte(s))) + "  -\n" }},
		{"busybox sha256sum", "busybox sha256sum <SRC", func(s string) string { return hex.EncodeToString(digest(sha256.New, []byte(s))) + "  -\n" }},
		{"od", "od -An -v -tx1 -w1 SRC | tr -d ' \\n' | wc -c", func(s string) string { return fmt.Sprintln(2 * len(s)) }},
		{"tar", "tar -cf - SRC 2>/dev/null | tar -xOf -", whole},
		{"busybox tar", "busybox tar -cf - SRC 2>/dev/null | busybox tar -xOf -", whole},
		{"gzip", "gzip -c SRC | gzip -dc", whole},
		{"split", "split -n 1/1 SRC", whole},
	} {
		t.Run(row.name, func(t *testing.T) {
			for name, content := range s.contents() {
				script := strings.ReplaceAll(row.command, "SRC", m.path("disk", name))
				same(t, row.name+" "+name, output(t, "sh", "-ec", script), row.want(content))
			}
		})
	}
}

// Programs that write a copy, DST.
func TestClients_copy(t *testing.T) {
	t.Parallel()
	need(t, "busybox", "rsync", "tar", "dd", "python3")
	dir := scratch(t)
	s := newSample(t, dir)
	m := mount(t, s.path)
	for _, row := range []struct{ name, command string }{
		{"cp", "cp SRC DST"},
		{"cp -a", "cp -a SRC DST"},
		{"cp --sparse=always", "cp --sparse=always SRC DST"},
		{"cp --sparse=never", "cp --sparse=never SRC DST"},
		{"cp --reflink=auto", "cp --reflink=auto SRC DST"},
		{"busybox cp", "busybox cp SRC DST"},
		{"install", "install -m 600 SRC DST"},
		{"dd", "dd if=SRC of=DST bs=1000 status=none"},
		{"dd conv=sparse", "dd if=SRC of=DST bs=4096 conv=sparse status=none"},
		{"rsync", "rsync SRC DST"},
		{"rsync -a", "rsync -a SRC DST"},
		{"rsync --inplace", "rsync --inplace -S SRC DST"},
		{"cat", "cat SRC >DST"},
	} {
		t.Run(row.name, func(t *testing.T) {
			for name, content := range s.contents() {
				to := filepath.Join(dir, "copy")
				script := strings.NewReplacer("SRC", m.path("disk", name), "DST", to).Replace(row.command)
				output(t, "sh", "-ec", script)
				same(t, row.name+" "+name, readFile(t, to), content)
				if err := os.Remove(to); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Programs that compare say so when a file is the same, and when it is not.
func TestClients_compare(t *testing.T) {
	t.Parallel()
	need(t, "busybox", "cmp", "diff")
	dir := scratch(t)
	s := newSample(t, dir)
	m := mount(t, s.path)
	equal, other := filepath.Join(dir, "equal"), filepath.Join(dir, "other")
	for name, content := range s.contents() {
		writeImage(t, equal, []byte(content))
		last := content[len(content)-1] ^ 1
		writeImage(t, other, append([]byte(content[:len(content)-1]), last))
		for _, tool := range []string{"cmp", "diff -q", "busybox cmp", "busybox diff -q"} {
			argv := append(strings.Fields(tool), m.path("disk", name))
			if r := run(t, append(argv, equal)...); r != (result{}) {
				t.Errorf("%s %s with its content: %+v", tool, name, r)
			}
			if r := run(t, append(argv, other)...); r.Status != 1 {
				t.Errorf("%s %s with another last byte: %+v", tool, name, r)
			}
		}
	}
}

func TestClients_sha256sum_check(t *testing.T) {
	t.Parallel()
	need(t, "busybox")
	s := newSample(t, scratch(t))
	m := mount(t, s.path)
	var want strings.Builder
	for off := int64(0); off < s.size; off += blockSize {
		fmt.Fprintf(&want, "blocks/%016x: OK\n", off)
	}
	for _, argv := range [][]string{{"sha256sum", "-c", "digests"}, {"busybox", "sha256sum", "-c", "digests"}} {
		got := call{argv: argv, dir: m.path("disk")}.output(t)
		same(t, strings.Join(argv, " "), got, want.String())
	}
}

// The checksum is the hash of digests.bin and the size.
func TestClients_checksum_from_digests(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	m := mount(t, s.path)
	var size strings.Builder
	for i := range 8 {
		fmt.Fprintf(&size, `\%03o`, byte(s.size>>(8*i)))
	}
	got := call{argv: []string{"sh", "-ec", "{ cat digests.bin; printf '" + size.String() + "'; } | sha256sum"}, dir: m.path("disk")}.output(t)
	same(t, "sha256sum", got, newOracle(s.data).sum()+"  -\n")
}

// pythonReads prints what each way to read a file gives, in hex.
const pythonReads = `
import hashlib, json, mmap, os, shutil, sys, tempfile
def ways(path):
    yield "open", open(path, "rb").read()
    yield "unbuffered", open(path, "rb", buffering=0).read()
    with open(path, "rb") as f:
        yield "mmap shared", mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)[:]
        yield "mmap private", mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)[:]
        yield "pread", b"".join(os.pread(f.fileno(), 777, at) for at in range(0, os.fstat(f.fileno()).st_size, 777))
        f.seek(0, 2)
        yield "seek", f.seek(0) or f.read()
    with tempfile.TemporaryFile() as to, open(path, "rb") as f:
        while os.sendfile(to.fileno(), f.fileno(), None, 1 << 20):
            pass
        to.seek(0)
        yield "sendfile", to.read()
    with tempfile.NamedTemporaryFile() as to:
        shutil.copyfile(path, to.name)
        yield "copyfile", open(to.name, "rb").read()
for path in sys.argv[1:]:
    print(json.dumps([[way, hashlib.sha256(got).hexdigest()] for way, got in ways(path)]))
`

func TestClients_python(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	s := newSample(t, scratch(t))
	for _, writable := range []bool{false, true} {
		t.Run(fmt.Sprintf("writable %v", writable), func(t *testing.T) {
			m := mount(t, fmt.Sprintf("--writable=%v", writable), s.path)
			argv := []string{"python3", "-c", pythonReads}
			var want []string
			for name, content := range s.contents() {
				argv = append(argv, m.path("disk", name))
				want = append(want, content)
			}
			lines := strings.Split(strings.TrimSpace(output(t, argv...)), "\n")
			if len(lines) != len(want) {
				t.Fatalf("%d lines for %d files", len(lines), len(want))
			}
			for i, line := range lines {
				var got [][2]string
				if err := json.Unmarshal([]byte(line), &got); err != nil {
					t.Fatal(err)
				}
				if len(got) != 8 {
					t.Errorf("%s was read in %d ways", argv[3+i], len(got))
				}
				for _, way := range got {
					if want := hex.EncodeToString(digest(sha256.New, []byte(want[i]))); way[1] != want {
						t.Errorf("%s of %s: content of digest %s, want %s", way[0], argv[3+i], way[1], want)
					}
				}
			}
		})
	}
}

func TestClients_jq(t *testing.T) {
	t.Parallel()
	need(t, "jq")
	s := newSample(t, scratch(t))
	m := mount(t, s.path)
	for _, row := range []struct{ file, filter, want string }{
		{"info.json", `.size, .block_size, .digest, .blocks.total, .last_error`, fmt.Sprintf("%d\n65536\n\"sha256\"\n11\nnull\n", s.size)},
		{"info.json", `.name`, "\"disk\"\n"},
		{"map.json", `[.[] | select(.data) | .length] | add`, "201704\n"},
		{"map.json", `[.[].length] | add`, fmt.Sprintln(s.size)},
		{"map.json", `.[] | select(.start != .offset)`, ""},
	} {
		same(t, row.file+" "+row.filter, output(t, "jq", "-c", row.filter, m.path("disk", row.file)), row.want)
	}
}
