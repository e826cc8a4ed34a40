package integration

import (
	"crypto/md5"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// badImages makes what is no image, and what is, in a directory.
func badImages(t *testing.T) string {
	t.Helper()
	dir := scratch(t)
	for _, d := range []string{"mnt", "full/mnt", "none", "images/mnt", "twins"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"disk.img", "disk.raw", "full/a.img", "images/a.img", "none/notes.txt", "twins/a.img", "twins/a.raw", "a=b.img", "c,d.img"} {
		writeImage(t, filepath.Join(dir, f), []byte("data"))
	}
	for link, to := range map[string]string{"dangling.img": "nowhere", "loop.img": "loop.img", "images/link.img": "a.img"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.img"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s.img"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	// 2^32 blocks of 4 bytes are 16 GiB.
	writeSparse(t, filepath.Join(dir, "large.img"), 16*gib+1)
	return dir
}

// Each is refused by one line that says what is wrong with what, and the way
// out if there is one, with nothing mounted and nobody left behind. DIR in a
// message is the directory of it all.
func TestBadInput_mount(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	dir := badImages(t)
	for _, row := range []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"no such file", []string{"none.img", "mnt"}, 1, "open none.img: no such file or directory"},
		{"no such directory", []string{"no/ne.img", "mnt"}, 1, "open no/ne.img: no such file or directory"},
		{"one of several is missing", []string{"disk.img", "none.img", "mnt"}, 1, "open none.img: no such file or directory"},
		{"dangling link", []string{"dangling.img", "mnt"}, 1, "open dangling.img: no such file or directory"},
		{"circle of links", []string{"loop.img", "mnt"}, 1, "open loop.img: too many levels of symbolic links"},
		{"equals sign in the name of a file", []string{"a=b.img", "mnt"}, 1, "open b.img: no such file or directory: for the file called a=b.img write ./a=b.img"},
		{"comma in the name of a file", []string{"c,d.img", "mnt"}, 2, `c: unknown option "d.img": the options are format=, digest=, writable, cache=, snapshot=, chain=; a comma in a location is doubled (,,)`},
		{"fifo", []string{"fifo.img", "mnt"}, 1, "open fifo.img: is a fifo; a raw image is a regular file or a block device"},
		{"socket", []string{"s.img", "mnt"}, 1, "open s.img: is a socket; a raw image is a regular file or a block device"},
		{"character device", []string{"/dev/zero", "mnt"}, 1, "open /dev/zero: is a character device; a raw image is a regular file or a block device"},
		{"no length", []string{"/proc/version", "mnt"}, 1, "open /proc/version: has content, but says that it is empty: it is made as it is read; copy it to a regular file"},
		{"directory without images", []string{"none", "mnt"}, 1, "none: no image in this directory: it has no regular file called *.raw, *.img, *.qcow2, *.vmdk, *.vhdx or *.vdi"},
		{"mount point is missing", []string{"disk.img", "nosuch"}, 1, "nosuch: no such directory: make the mount point by mkdir"},
		{"mount point is a file", []string{"disk.img", "disk.raw"}, 1, "disk.raw: not a directory: the mount point is the last argument"},
		{"mount point is not empty", []string{"disk.img", "full"}, 1, "full: the mount point is not empty: choose an empty directory, or hide its files by -o nonempty"},
		{"image below the mount point", []string{"-o", "nonempty", "full/a.img", "full"}, 1, "full/a.img: the image lies below the mount point DIR/full, which would hide it: choose another directory"},
		{"no mount point", []string{"disk.img"}, 2, "mount: a SOURCE and a MOUNTPOINT are needed; see hashfs mount --help"},
		{"duplicate default names", []string{"disk.img", "disk.raw", "mnt"}, 1, `disk.img and disk.raw: both are called "disk": name one by NAME=LOCATION`},
		{"duplicate given names", []string{"x=disk.img", "x=disk.raw", "mnt"}, 1, `disk.img and disk.raw: both are called "x": name one by NAME=LOCATION`},
		{"unknown digest", []string{"--digest", "crc32", "disk.img", "mnt"}, 2, `invalid argument "crc32" for "--digest" flag: digest spec "crc32": unknown digest "crc32": use one of ` + algorithmNames() + "; see hashfs mount --help"},
		{"unknown digest of one", []string{"disk.img,digest=sha2", "mnt"}, 2, `disk.img: digest spec "sha2": unknown digest "sha2": use one of ` + algorithmNames()},
		{"block size of no power of two", []string{"disk.img,digest=md5/6", "mnt"}, 2, `disk.img: digest spec "md5/6": block size 6 is not a power of two`},
		{"block size too small", []string{"disk.img,digest=md5/2", "mnt"}, 2, `disk.img: digest spec "md5/2": block size 2 is below the minimum of 4 bytes`},
		{"block size too large", []string{"disk.img,digest=md5/128m", "mnt"}, 2, `disk.img: digest spec "md5/128m": block size 128m is above the maximum of 64M`},
		{"block size of zero", []string{"disk.img,digest=md5/0", "mnt"}, 2, `disk.img: digest spec "md5/0": block size 0 is below the minimum of 4 bytes`},
		{"negative block size", []string{"disk.img,digest=md5/-4", "mnt"}, 2, `disk.img: digest spec "md5/-4": block size "-4" is not a number of bytes with an optional suffix such as k or M`},
		{"block size is no number", []string{"disk.img,digest=md5/x", "mnt"}, 2, `disk.img: digest spec "md5/x": block size "x" is not a number of bytes with an optional suffix such as k or M`},
		{"block size is missing", []string{"disk.img,digest=md5/", "mnt"}, 2, `disk.img: digest spec "md5/": block size "" is not a number of bytes with an optional suffix such as k or M`},
		{"block size beyond all numbers", []string{"disk.img,digest=md5/18446744073709551616", "mnt"}, 2, `disk.img: digest spec "md5/18446744073709551616": block size 18446744073709551616 is above the maximum of 64M`},
		{"too many blocks", []string{"--cache-size", "1t", "--digest", "md5/4", "large.img", "mnt"}, 1, "large.img: 4294967297 blocks of 4 bytes: at most 2^32 are possible, choose a larger block size"},
		{"no such qcow2", []string{"none.qcow2", "mnt"}, 1, "DIR/none.qcow2 is missing: no such file or directory"},
		{"qcow2 by option", []string{"disk.img,format=qcow2", "mnt"}, 1, "open DIR/disk.img: it has not the magic of qcow2"},
		{"unknown format", []string{"disk.img,format=iso", "mnt"}, 2, `disk.img: option format: unknown format "iso": there are raw, qcow2, vmdk, vhdx, vdi, vpc, qed, qcow, parallels, bochs, cloop`},
		{"NBD without a host", []string{"nbd:///x", "mnt"}, 1, `"nbd:///x" is no NBD URI: the host is missing`},
		{"NBD without a server", []string{"nbd://localhost:1/x", "mnt"}, 1, "open nbd://localhost:1/x: no server listens at localhost:1: connection refused"},
		{"NBD without a socket", []string{"nbd+unix:///x?socket=/none", "mnt"}, 1, "open nbd+unix:///x?socket=/none: there is no socket /none: is the server running: no such file or directory"},
		{"format of a URI", []string{"nbd://localhost/x,format=raw", "mnt"}, 2, "nbd://localhost/x: option format: an NBD server tells nothing of formats: leave out format=raw"},
		{"unknown option", []string{"disk.img,frob", "mnt"}, 2, `disk.img: unknown option "frob": the options are format=, digest=, writable, cache=, snapshot=, chain=; a comma in a location is doubled (,,)`},
		{"empty source", []string{"", "mnt"}, 2, `source "": no location given: it is [NAME=]LOCATION[,option=value...]`},
		{"empty name", []string{"=disk.img", "mnt"}, 2, `source "=disk.img": the image's name is empty: give another one by NAME=LOCATION`},
		{"name of the directory itself", []string{".=disk.img", "mnt"}, 2, `source ".=disk.img": an image cannot be called ".": give another one by NAME=LOCATION`},
		{"name of the parent", []string{"..=disk.img", "mnt"}, 2, `source "..=disk.img": an image cannot be called "..": give another one by NAME=LOCATION`},
		{"reserved name", []string{".hashfs=disk.img", "mnt"}, 2, `source ".hashfs=disk.img": the name ".hashfs" is reserved: give another one by NAME=LOCATION`},
		{"name with a newline", []string{"a\nb=disk.img", "mnt"}, 2, `source "a\nb=disk.img": the name "a\nb" has control characters: give another one by NAME=LOCATION`},
		{"name that is no UTF-8", []string{"\xff=disk.img", "mnt"}, 2, `source "\xff=disk.img": the name "\xff" is not valid UTF-8: give another one by NAME=LOCATION`},
		{"name too long", []string{strings.Repeat("n", 256) + "=disk.img", "mnt"}, 2,
			`source "` + strings.Repeat("n", 256) + `=disk.img": the name "nnnnnnnnnnnnnnnnnnnn"... is longer than 255 bytes: give another one by NAME=LOCATION`},
		{"ro and writable", []string{"-o", "ro,writable", "disk.img", "mnt"}, 2, "the mount options ro and writable contradict each other"},
		{"mode for others", []string{"--mode", "0444", "disk.img", "mnt"}, 2, `invalid argument "0444" for "--mode" flag: others may not be let in: digests tell what is in an image; see hashfs mount --help`},
		{"unknown owner", []string{"--owner", "nobody-at-all", "disk.img", "mnt"}, 2, `invalid argument "nobody-at-all" for "--owner" flag: no such user: nobody-at-all; see hashfs mount --help`},
		{"size of the cache", []string{"--cache-size", "1x", "disk.img", "mnt"}, 2, `invalid argument "1x" for "--cache-size" flag: "1x" is no size: it is a number of bytes, or of units with a suffix k, m, g or t; see hashfs mount --help`},
		{"unknown flag", []string{"--frob", "disk.img", "mnt"}, 2, "unknown flag: --frob; see hashfs mount --help"},
		{"log file", []string{"--log-file", "no/log", "disk.img", "mnt"}, 1, "open the log file no/log: no such file or directory"},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, how := range [][]string{{program, "mount"}, {program, "mount", "--foreground"}} {
				got := call{argv: append(how, row.args...), dir: dir}.run(t)
				want := result{"", "hashfs: " + strings.ReplaceAll(row.want, "DIR", dir) + "\n", row.status}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%q (-want +got):\n%s", append(how[1:], row.args...), diff)
				}
				for _, point := range mountsBelow(dir) {
					t.Errorf("%s is mounted", point)
					run(t, program, "umount", point)
				}
			}
		})
	}
}

func algorithmNames() string {
	var names []string
	for _, a := range algorithms {
		names = append(names, a.name)
	}
	return strings.Join(names, ", ")
}

// The most blocks that an image can have are not too many.
func TestBadInput_just_few_enough_blocks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(scratch(t), "large.img")
	tail := []byte{1, 2, 3, 4}
	writeSparse(t, path, 16*gib, piece{16*gib - 4, tail})
	m := mount(t, "--cache-size", "1t", "--digest", "md5/4", path)
	if info, err := os.Stat(m.path("large", "digests.bin")); err != nil || info.Size() != 64*gib {
		t.Errorf("digests.bin: %v, %v", info, err)
	}
	same(t, "the last digest", output(t, "tail", "-c", "16", m.path("large", "digests.bin")), string(digest(md5.New, tail)))
}

// A mount is not covered by another one, and one that is in the way is named.
func TestBadInput_mounted_already(t *testing.T) {
	t.Parallel()
	s := newSample(t, scratch(t))
	m := mount(t, s.path)
	for _, args := range [][]string{{"mount"}, {"mount", "--foreground"}, {"mount", "-o", "nonempty"}} {
		got := run(t, append(append([]string{program}, args...), s.path, m.dir)...)
		want := result{"", fmt.Sprintf("hashfs: %s: a hashfs mount is there already: hashfs umount %s takes it away\n", m.dir, m.dir), 1}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", args, diff)
		}
	}
	same(t, "the first mount's checksum", m.read("disk", "checksum"), newOracle(s.data).checksum())
}

// A mount point in a directory of images is refused, one beside an image is not.
func TestBadInput_mount_point_and_images(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	s := newSample(t, dir)
	point := filepath.Join(dir, "mnt")
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(scratch(t), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{dir, link, dir + "/."} {
		got := run(t, program, "mount", source, point)
		want := result{"", "hashfs: warning: " + source + ": skipped 1 without an image's suffix: \"mnt\"\n" +
			"hashfs: " + point + ": the mount point lies in the directory of images " + source + ": choose another directory\n", 1}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	m := mountWith(t, mountOptions{point: point}, s.path)
	m.checkDigests("disk", newOracle(s.data))
}

// A raw image that begins like another format is served, with a warning.
func TestBadInput_looks_like_another_format(t *testing.T) {
	t.Parallel()
	need(t, "qemu-img")
	dir := scratch(t)
	for _, format := range []string{"qcow2", "vmdk", "vhdx", "vdi"} {
		path := filepath.Join(dir, format+".img")
		call{argv: []string{"qemu-img", "create", "-q", "-f", format, path, "1M"}}.output(t)
		warning := "hashfs: warning: " + path + ": taken as raw by its name, but begins like " + format + ": the digests are those of the file's own bytes; format=raw says that it is meant so, format=" + format + " serves the image in it\n"
		m := mount(t, path)
		m.expect("^" + regexp.QuoteMeta(strings.TrimSuffix(warning, "\n")) + "$")
		if !strings.Contains(m.log(), warning) {
			t.Errorf("mount says %q, not %q", m.log(), warning)
		}
		data := readFile(t, path)
		same(t, "image", m.read(format, "image"), data)
		want := newOracle([]byte(data))
		same(t, "checksum", m.read(format, "checksum"), want.checksum())
		if got, want := run(t, program, "sum", path), (result{want.sum() + "  " + path + "\n", warning, 0}); got != want {
			t.Errorf("sum: %+v, want %+v", got, want)
		}
		// format=raw says that it is meant.
		quiet := mount(t, path+",format=raw")
		same(t, "checksum", quiet.read(format, "checksum"), want.checksum())
		if strings.Contains(quiet.log(), "warning") {
			t.Errorf("with format=raw: %q", quiet.log())
		}
	}
}

// Of a directory the images are taken, and what is not is said.
func TestBadInput_directory(t *testing.T) {
	t.Parallel()
	dir := badImages(t)
	writeImage(t, filepath.Join(dir, "images", "B.RAW"), []byte("b"))
	writeImage(t, filepath.Join(dir, "images", "b.img"), []byte("c"))
	writeImage(t, filepath.Join(dir, "images", "a.raw"), []byte("d"))
	writeImage(t, filepath.Join(dir, "images", "notes.txt"), []byte("e"))
	images := filepath.Join(dir, "images")
	m := mount(t, images)
	m.expect("^hashfs: warning: ")
	var names []string
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{".hashfs", "B", "CACHEDIR.TAG", "a", "b"}, names); diff != "" {
		t.Errorf("the mount (-want +got):\n%s", diff)
	}
	var warnings []string
	for line := range strings.Lines(m.log()) {
		if strings.HasPrefix(line, "hashfs: ") {
			warnings = append(warnings, strings.ReplaceAll(line, images, "DIR"))
		}
	}
	want := []string{
		"hashfs: warning: DIR/link.img: skipped: a symbolic link\n",
		"hashfs: warning: DIR: skipped 2 without an image's suffix: \"mnt\", \"notes.txt\"\n",
		"hashfs: warning: DIR/a.raw: skipped: the name \"a\" is that of DIR/a.img: name it by NAME=LOCATION\n",
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}
