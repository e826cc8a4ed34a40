package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block returns what docs show in the only fenced block of that language.
func block(t *testing.T, path, language string) string {
	t.Helper()
	fenced := regexp.MustCompile("(?s)\n```" + language + "\n(.*?)```\n")
	found := fenced.FindAllStringSubmatch(readFile(t, filepath.Join("..", path)), -1)
	if len(found) != 1 {
		t.Fatalf("%s has %d blocks of %s, not one", path, len(found), language)
	}
	return found[0][1]
}

// TestDocs_session types what README shows, and wants to see what it shows.
func TestDocs_session(t *testing.T) {
	needFUSE(t)
	dir := scratch(t)
	t.Cleanup(func() {
		if len(mountsBelow(dir)) > 0 {
			run(t, program, "umount", "--lazy", filepath.Join(dir, "mnt"))
		}
	})
	path := "PATH=" + filepath.Dir(program) + ":" + os.Getenv("PATH")
	for _, step := range strings.Split("\n"+block(t, "README.md", "console"), "\n$ ")[1:] {
		line, want, _ := strings.Cut(step, "\n")
		r := call{argv: []string{"bash", "-c", line}, dir: dir, env: []string{path}}.run(t)
		if r.Status != 0 {
			t.Fatalf("$ %s\nstatus %d: %s", line, r.Status, r.Stderr)
		}
		// ls fills lines on a terminal, and not here.
		same(t, line, strings.Join(strings.Fields(r.Stdout), " "), strings.Join(strings.Fields(want), " "))
	}
}

// TestDocs_backup runs the program of docs/backup.md through a backup's life.
func TestDocs_backup(t *testing.T) {
	need(t, "python3", "cmp")
	dir := scratch(t)
	script := filepath.Join(dir, "backup.py")
	writeImage(t, script, []byte(block(t, "docs/backup.md", "python")))
	image, copied := filepath.Join(dir, "disk.img"), filepath.Join(dir, "copy")
	writeImage(t, image, random(71, 40*blockSize+100))
	m := mount(t, "--writable", image)

	backup := func(name, want string) {
		t.Helper()
		r := run(t, "python3", script, m.path("disk"), copied)
		if r.Status != 0 {
			t.Fatalf("%s: status %d: %s", name, r.Status, r.Stderr)
		}
		bytes, sum, _ := strings.Cut(r.Stdout, " bytes copied, checksum ")
		if bytes != want && want != "" {
			t.Errorf("%s: %s bytes copied, want %s", name, bytes, want)
		}
		same(t, name+": checksum", sum, m.read("disk", "checksum"))
		output(t, "cmp", image, copied)
	}
	backup("the first", "2621540")
	backup("nothing changed", "0")
	writeAt(t, m.path("disk", "image"), []byte("other"), 7*blockSize-2)
	backup("two blocks changed", "131072")
	m.unmount()
	m = mount(t, "--writable", image)
	backup("after a restart", "0")
	writeAt(t, m.path("disk", "image"), []byte("other"), 40*blockSize)
	writeAt(t, copied, []byte("broken off"), 3*blockSize)
	if err := os.Remove(copied + ".digests"); err != nil {
		t.Fatal(err)
	}
	backup("after one that was broken off", "65636")

	// Somebody writes meanwhile: what comes out is one moment's all the same.
	writer := startCommand(t, "bash", "-c", `for i in $(seq 100); do
		echo $i | dd of="$0" bs=64k seek=$((RANDOM % 40)) conv=notrunc status=none
	done`, m.path("disk", "image"))
	for !writer.ended() {
		r := run(t, "python3", script, m.path("disk"), copied)
		if r.Status == 0 {
			sum := output(t, program, "sum", copied)
			same(t, "checksum of the copy", strings.Fields(r.Stdout)[4], strings.Fields(sum)[0])
		} else if !strings.Contains(r.Stderr, "changes faster") {
			t.Fatalf("status %d: %s", r.Status, r.Stderr)
		}
	}
	backup("at rest again", "")

	m.unmount()
	m = mount(t, "--digest", "sha512/1m", image)
	r := run(t, "python3", script, m.path("disk"), copied)
	same(t, "another digest", r.Stdout, "0 bytes copied, checksum "+m.read("disk", "checksum"))
}
