package integration

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Every algorithm, of blocks and plain, from a file and from a pipe, in both
// forms of a line.
func TestSum_algorithms(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	data := random(80, 5*blockSize+123)
	path := filepath.Join(dir, "disk.img")
	writeImage(t, path, data)
	for _, a := range algorithms {
		blocks := newOracleOf(a.new, blockSize, data).sum()
		small := newOracleOf(a.new, 512, data).sum()
		plain := hex.EncodeToString(digest(a.new, data))
		for _, row := range []struct {
			args      []string
			digest    string
			tagBefore string
		}{
			{[]string{"--digest", a.name}, blocks, "blk-" + a.name + "/65536"},
			{[]string{"--digest", a.name + "/512"}, small, "blk-" + a.name + "/512"},
			{[]string{"--plain", "--digest", a.name}, plain, a.name},
		} {
			sum := append([]string{program, "sum"}, row.args...)
			same(t, a.name, output(t, append(sum, path)...), row.digest+"  "+path+"\n")
			same(t, a.name+" --tag", output(t, append(sum, "--tag", path)...), row.tagBefore+" ("+path+") = "+row.digest+"\n")
			pipe := call{argv: sum, stdin: string(data)}
			same(t, a.name+" of a pipe", pipe.output(t), row.digest+"  -\n")
			pipe.argv = append(sum, "--tag", "-")
			same(t, a.name+" of a pipe, --tag", pipe.output(t), row.tagBefore+" (-) = "+row.digest+"\n")
		}
	}
}

// The page cache is left as it was found: empty, full or half full.
func TestSum_page_cache(t *testing.T) {
	dir := scratch(t)
	data := random(81, 24<<20+5000)
	path := filepath.Join(dir, "disk.img")
	writeImage(t, path, data)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	cached := func() int {
		var c unix.Cachestat_t
		if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &c, 0); err != nil {
			t.Skipf("this kernel does not tell what is cached: %v", err)
		}
		return int(c.Cache)
	}
	advise := func(advice int) {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, advice); err != nil {
			t.Fatal(err)
		}
	}
	advise(unix.FADV_DONTNEED)
	if n := cached(); n > 0 {
		t.Skipf("this file system keeps %d pages", n)
	}
	advise(unix.FADV_RANDOM)
	sum := newOracle(data).sum()
	for _, part := range []int{0, len(data) / 2, len(data)} {
		kept := false
		var counts []string
		// The kernel may take a page away meanwhile, but not each time.
		for !kept && len(counts) < 3 {
			if _, err := f.ReadAt(make([]byte, part), 0); err != nil {
				t.Fatal(err)
			}
			before := cached()
			same(t, "checksum", output(t, program, "sum", path), sum+"  "+path+"\n")
			same(t, "plain", output(t, program, "sum", "--plain", path), hex.EncodeToString(digest(sha256.New, data))+"  "+path+"\n")
			after := cached()
			kept = after == before
			counts = append(counts, fmt.Sprintf("%d of %d", after, before))
		}
		if !kept {
			t.Errorf("pages that are cached after it, and were before: %q", counts)
		}
	}
}

// Standard input in all its forms.
func TestSum_stdin(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	data := random(81, 3*blockSize+1)
	path := filepath.Join(dir, "disk.img")
	writeImage(t, path, data)
	want := newOracle(data).sum()
	for _, row := range []struct{ name, script, want string }{
		{"file", `"$0" sum <disk.img`, want},
		{"pipe in small pieces", `dd if=disk.img bs=777 status=none | "$0" sum -`, want},
		{"slow pipe", `{ head -c 100 disk.img; sleep 0.2; tail -c +101 disk.img; } | "$0" sum`, want},
		{"file from the middle", `{ head -c 65536 >/dev/null; "$0" sum; } <disk.img`, newOracle(data[blockSize:]).sum()},
		{"empty", `: | "$0" sum`, newOracle(nil).sum()},
		{"/dev/null", `"$0" sum </dev/null`, newOracle(nil).sum()},
	} {
		got := call{argv: []string{"sh", "-ec", row.script, program}, dir: dir}.output(t)
		same(t, row.name, got, row.want+"  -\n")
	}
	r := call{argv: []string{"sh", "-c", `exec "$0" sum <.`, program}, dir: dir}.run(t)
	if r.Status != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, "is a directory") {
		t.Errorf("a directory as standard input: %+v", r)
	}
}

// odd are names that lists must escape, or that look like something else. An
// equals sign makes no NAME= after a slash.
var odd = []string{
	"plain.img", "with space.img", " leading.img", "new\nline.img", `back\slash.img`, "carriage\rreturn.img", `\n.img`,
	"ünïcode.img", "*star.img", "./a) = b.img", "(a.img", "tab\t.img", "quote\".img", "\xff\xfe.img",
}

// oddFiles writes files of these names, each with other content.
func oddFiles(t *testing.T, dir string) {
	t.Helper()
	for i, name := range odd {
		writeImage(t, filepath.Join(dir, name), random(uint64(100+i), int64(1000*i)))
	}
}

// Names are escaped exactly as sha256sum does it, which can read the lists.
func TestSum_names(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	oddFiles(t, dir)
	theirs := call{argv: append([]string{"sha256sum", "--"}, odd...), dir: dir}.output(t)
	ours := call{argv: append([]string{program, "sum", "--plain", "--"}, odd...), dir: dir}.output(t)
	same(t, "the list", ours, theirs)
	tagged := call{argv: append([]string{program, "sum", "--plain", "--tag", "--"}, odd...), dir: dir}.output(t)
	same(t, "the tagged list", strings.ReplaceAll(tagged, "sha256 (", "SHA256 ("), call{argv: append([]string{"sha256sum", "--tag", "--"}, odd...), dir: dir}.output(t))

	blocks := call{argv: append([]string{program, "sum", "--tag", "--"}, odd...), dir: dir}.output(t)
	var want strings.Builder
	for line := range strings.Lines(theirs) {
		name := strings.TrimSuffix(strings.SplitN(line, "  ", 2)[1], "\n")
		fmt.Fprintf(&want, "%s: OK\n", map[bool]string{true: `\`, false: ""}[line[0] == '\\']+name)
	}
	for _, row := range []struct {
		name, list string
		argv       []string
	}{
		{"plain by sha256sum", ours, []string{"sha256sum", "-c"}},
		{"plain", ours, []string{program, "sum", "-c", "--plain"}},
		{"plain and tagged", tagged, []string{program, "sum", "-c"}},
		{"sha256sum --tag", strings.ReplaceAll(tagged, "sha256 (", "SHA256 ("), []string{program, "sum", "-c"}},
		{"blocks, tagged", blocks, []string{program, "sum", "-c"}},
		{"mixed", blocks + tagged, []string{program, "sum", "-c"}},
	} {
		list := filepath.Join(dir, "list")
		if err := os.WriteFile(list, []byte(row.list), 0o600); err != nil {
			t.Fatal(err)
		}
		wanted := want.String()
		if row.name == "mixed" {
			wanted += wanted
		}
		if row.argv[0] == "sha256sum" {
			// Which names it escapes in its report differs by its version.
			got := call{argv: append(row.argv, "list"), dir: dir}.output(t)
			if strings.Count(got, ": OK\n") != len(odd) {
				t.Errorf("%s: %s", row.name, got)
			}
			continue
		}
		same(t, row.name, call{argv: append(row.argv, "list"), dir: dir}.output(t), wanted)
		same(t, row.name+" from a pipe", call{argv: row.argv, stdin: row.list, dir: dir}.output(t), wanted)
	}
}

// One source that cannot be read does not stop the others.
func TestSum_bad_sources(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := newSample(t, dir)
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	line := newOracle(s.data).sum() + "  disk.img\n"
	got := call{argv: []string{program, "sum", "none.img", "disk.img", "empty", "x.qcow2", "/dev/null", "disk.img,digest=crc", "disk.img,writable", "disk.img"}, dir: dir}.run(t)
	want := result{line + line, strings.Join([]string{
		"hashfs: none.img: no such file or directory",
		"hashfs: empty: no image in this directory: it has no regular file called *.raw, *.img, *.qcow2, *.vmdk, *.vhdx or *.vdi",
		"hashfs: x.qcow2: no such file or directory",
		"hashfs: open /dev/null: is a character device; a raw image is a regular file or a block device",
		`hashfs: disk.img: digest spec "crc": unknown digest "crc": use one of ` + algorithmNames(),
		"hashfs: disk.img: the options writable and cache= are for hashfs mount",
		"",
	}, "\n"), 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A directory stands for its images, and options for one image.
func TestSum_sources(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	a, b := random(95, 100000), random(96, 200000)
	writeImage(t, filepath.Join(dir, "a.img"), a)
	writeImage(t, filepath.Join(dir, "b.raw"), b)
	md5 := algorithms[0].new
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"."}, newOracle(a).sum() + "  a.img\n" + newOracle(b).sum() + "  b.raw\n"},
		{[]string{dir}, newOracle(a).sum() + "  " + dir + "/a.img\n" + newOracle(b).sum() + "  " + dir + "/b.raw\n"},
		{[]string{"b.raw,digest=md5/4k", "a.img"}, newOracleOf(md5, 4096, b).sum() + "  b.raw\n" + newOracle(a).sum() + "  a.img\n"},
		{[]string{"--tag", "x=b.raw,digest=md5/4k"}, "blk-md5/4096 (b.raw) = " + newOracleOf(md5, 4096, b).sum() + "\n"},
		{[]string{"--jobs", "1", "./a.img"}, newOracle(a).sum() + "  ./a.img\n"},
	} {
		got := call{argv: append([]string{program, "sum"}, row.args...), dir: dir}.output(t)
		same(t, fmt.Sprint(row.args), got, row.want)
	}
}

// A source that changes meanwhile gets no line.
func TestSum_changed_while_read(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	path := filepath.Join(dir, "disk.img")
	data := random(97, 64*mib)
	writeImage(t, path, data)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, plain := range []string{"--plain=false", "--plain"} {
		// The slowest digest, so that the writes come in its midst.
		sum := startCommand(t, program, "sum", plain, "--digest=sha3-512", "--jobs=1", path)
		for i := byte(0); !sum.ended(); i++ {
			if _, err := f.WriteAt([]byte{i}, int64(len(data))-1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		want := result{"", "hashfs: " + path + ": it changed while it was read, so there is no digest\n", 1}
		if diff := cmp.Diff(want, sum.result()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", plain, diff)
		}
	}
}

// A file that is cut under the threads that look at it in place.
func TestSum_cut_while_read(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	path := filepath.Join(dir, "disk.img")
	data := random(98, 128*mib)
	const size = 3*mib + 5
	want := map[string]bool{
		newOracle(data).sum() + "  " + path + "\n":        true,
		newOracle(data[:size]).sum() + "  " + path + "\n": true,
	}
	for round := range 20 {
		writeImage(t, path, data)
		sum := startCommand(t, program, "sum", path)
		time.Sleep(time.Duration(round) * 3 * time.Millisecond)
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		switch r := sum.result(); {
		case r.Status == 0 && want[r.Stdout] && r.Stderr == "":
		case r == result{"", "hashfs: " + path + ": it changed while it was read, so there is no digest\n", 1}:
		default:
			t.Errorf("%+v", r)
		}
	}
}

// A list must not end early without a word.
func TestSum_output_fails(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	r := run(t, "sh", "-c", `"$0" sum "$1" >/dev/full`, program, s.path)
	if want := (result{"", "hashfs: write error: no space left on device\n", 1}); r != want {
		t.Errorf("a full device: %+v", r)
	}
	r = run(t, "sh", "-c", `{ "$0" sum "$1" "$1"; echo $? >&2; } | true`, program, s.path)
	if strings.Contains(r.Stderr, "\n0\n") {
		t.Errorf("a closed pipe: %+v", r)
	}
}

// A progress bar is for terminals, and leaves nothing behind.
func TestSum_progress(t *testing.T) {
	t.Parallel()
	need(t, "script")
	dir := scratch(t)
	path := filepath.Join(dir, "disk.img")
	data := random(98, 96*mib)
	writeImage(t, path, data)
	// The slowest digest: what is done at once needs no bar.
	sum := program + " sum --jobs=1 --digest=sha3-512 "
	digest := newOracleOf(newSlowest, blockSize, data).sum()
	line := digest + "  " + path + "\n"
	out := filepath.Join(dir, "out")
	terminal := func(command string) string {
		return output(t, "script", "-qec", command+" >"+out, "/dev/null")
	}
	for _, row := range []struct {
		name, command string
		bar           bool
	}{
		{"on a terminal", sum + path, true},
		{"asked not to", sum + "--progress=false " + path, false},
		{"on a terminal, from a pipe", "cat " + path + " | " + sum, true},
	} {
		shown := terminal(row.command)
		if got := strings.Contains(shown, "iB/s)"); got != row.bar {
			t.Errorf("%s: the terminal shows %q", row.name, shown)
		}
		got := readFile(t, out)
		if want := line; got != want && got != digest+"  -\n" {
			t.Errorf("%s: %q, want %q", row.name, got, want)
		}
	}
	for flags, bar := range map[string]bool{"": false, "--progress ": true} {
		r := run(t, "sh", "-c", sum+flags+path)
		if (r.Stderr != "") != bar || r.Stdout != line || r.Status != 0 {
			t.Errorf("in a pipe, %s: %+v", flags, r)
		}
	}
}

// Ctrl-C ends it at once, with the status that shells use and no line.
func TestSum_interrupted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "disk.img")
	writeSparse(t, path, tib) // minutes of reading, if holes had to be read
	for signal, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		// A plain digest goes through all of it, holes too.
		sum := startCommand(t, program, "sum", "--plain", path)
		for !bytes.Contains(readStatus(sum), []byte("SigCgt:")) {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		start := time.Now()
		sum.cmd.Process.Signal(signal)
		if r := sum.result(); r != (result{"", "", status}) || time.Since(start) > 20*time.Second {
			t.Errorf("%v: %+v after %v", signal, r, time.Since(start))
		}
	}
}

func readStatus(r *running) []byte {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	return text
}
