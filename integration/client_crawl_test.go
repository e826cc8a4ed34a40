package integration

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// diskUsage is what a file takes on disk, in bytes.
func diskUsage(t testing.TB, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// What lists and looks, hashes nothing and reads nothing of the image.
func TestCrawlers_hash_nothing(t *testing.T) {
	t.Parallel()
	need(t, "find", "getfattr", "busybox")
	s := newSample(t, scratch(t))
	m := mount(t, s.path, "one="+s.path)
	for _, command := range []string{
		"ls -laR", "ls -lR --color=always", "ls -Z", "find . -ls", "find . -type f -size +0 -newer /proc/version",
		"find . -printf '%p %s %T@ %m\\n'", "du -sh .", "du -a --apparent-size .", "stat disk/* disk/*/*",
		"stat -L disk/blocks/0000000000000000 disk/sums/sha256", "test -r disk/checksum",
		"busybox find . -type f", "busybox ls -lR", "busybox du -s .", "df .", "stat -f .",
		"getfattr -d -m - -R . || true", "ls disk/blocks disk/sums", "realpath disk/checksum", "tar --exclude=info.json --exclude=metrics -cf /dev/null .",
	} {
		r := call{argv: []string{"sh", "-c", command + " 2>&1"}, dir: m.dir}.run(t)
		if r.Status != 0 && !strings.Contains(command, "||") && !strings.HasPrefix(command, "stat disk/* ") {
			t.Errorf("%s: %+v", command, r)
		}
		for _, image := range []string{"disk", "one"} {
			if i := m.info(image); i.Blocks.Unknown != 11 || i.Cache.Misses != 0 {
				t.Errorf("%s: %d blocks of %s are known, %d were hashed", command, 11-i.Blocks.Unknown, image, i.Cache.Misses)
			}
			if n := m.metric(`hashfs_image_hashed_bytes_total{image="` + image + `"}`); n != 0 {
				t.Errorf("%s: %v bytes of %s were hashed", command, n, image)
			}
		}
	}
	if got := output(t, "ls", m.path("disk", "blocks")); got != "" {
		t.Errorf("blocks/ lists %q", got)
	}
}

// du counts the backing file once for each image, and nothing else.
func TestCrawlers_du(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	m := mount(t, s.path)
	var kb int64
	if _, err := fmt.Sscan(output(t, "du", "-k", "-s", m.dir), &kb); err != nil {
		t.Fatal(err)
	}
	if want := diskUsage(t, s.path) / 1024; kb != want {
		t.Errorf("du says %d KiB, the backing file takes %d", kb, want)
	}
}

// Crawlers that read everything end, and the digests are right afterwards.
func TestCrawlers_read_everything(t *testing.T) {
	t.Parallel()
	need(t, "grep", "rsync", "tar")
	dir := scratch(t)
	path := filepath.Join(dir, "disk.img")
	data := random(9, 3*blockSize+17)
	copy(data[2*blockSize:], "needle in the hay")
	writeImage(t, path, data)
	m := mount(t, path)

	got := call{argv: []string{"grep", "-r", "-l", "-a", "needle in the hay", "."}, dir: m.dir}.output(t)
	if got != "./disk/image\n" {
		t.Errorf("grep -r found %q", got)
	}
	o := newOracle(data)
	if r := run(t, "grep", "-rc", o.sum(), m.path("disk")); !strings.Contains(r.Stdout, "/checksum:1\n") {
		t.Errorf("grep for the checksum: %+v", r)
	}
	sha256sum := hex.EncodeToString(digest(o.newHash, data)) + "\n"
	for _, row := range []struct{ name, command string }{
		{"cp -r", "cp -r . DST"},
		{"cp -a", "cp -a . DST"},
		{"rsync", "rsync -a . DST"},
		{"tar", "mkdir DST && tar -cf - disk | tar -xf - -C DST"},
	} {
		t.Run(row.name, func(t *testing.T) {
			to := filepath.Join(dir, "copy")
			// Directories are 0500, so that root alone can fill their copies.
			needRoot(t)
			call{argv: []string{"sh", "-ec", strings.ReplaceAll(row.command, "DST", to)}, dir: m.dir}.output(t)
			same(t, "checksum", readFile(t, to+"/disk/checksum"), o.checksum())
			same(t, "digests", readFile(t, to+"/disk/digests"), o.digests())
			same(t, "image", readFile(t, to+"/disk/image"), string(data))
			if names, err := os.ReadDir(to + "/disk/blocks"); err != nil || len(names) > 0 {
				t.Errorf("blocks/ was copied with %v, %v", names, err)
			}
			if err := os.RemoveAll(to); err != nil {
				t.Fatal(err)
			}
		})
	}
	same(t, "sums/sha256", m.read("disk", "sums", "sha256"), sha256sum)
	if got := output(t, "ls", m.path("disk", "sums")); got != "sha256\n" {
		t.Errorf("sums/ lists %q", got)
	}
	m.checkDigests("disk", o)
}

// rsync sees by the time, in seconds, that a file of the same size has changed.
func TestCrawlers_rsync_again(t *testing.T) {
	t.Parallel()
	need(t, "rsync")
	dir := scratch(t)
	s := newSample(t, dir)
	setAge(t, s.path, time.Hour)
	m := mount(t, "--writable", s.path)
	to := filepath.Join(dir, "copy")
	transferred := func() string {
		return output(t, "rsync", "-a", "--out-format=%n", m.path("disk", "checksum"), m.path("disk", "digests.bin"), to+"/")
	}
	if got := transferred(); !strings.Contains(got, "checksum\n") || !strings.Contains(got, "digests.bin\n") {
		t.Errorf("the first run transferred %q", got)
	}
	if got := transferred(); got != "" {
		t.Errorf("a run with nothing changed transferred %q", got)
	}
	for _, row := range []struct {
		name, file string
		after      func()
	}{
		{"behind the mount's back", s.path, func() { setAge(t, s.path, time.Minute) }},
		{"through the mount", m.path("disk", "image"), func() {}},
	} {
		s.data[blockSize] ^= 0xff
		writeAt(t, row.file, s.data[blockSize:blockSize+1], blockSize)
		row.after()
		if got := transferred(); got != "checksum\ndigests.bin\n" {
			t.Errorf("%s: a run after a write transferred %q", row.name, got)
		}
		o := newOracle(s.data)
		same(t, row.name+": checksum", readFile(t, to+"/checksum"), o.checksum())
		same(t, row.name+": digests.bin", readFile(t, to+"/digests.bin"), o.bin())
	}
}
