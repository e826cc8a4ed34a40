package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree makes files in a new directory; a name that ends in a slash makes a
// directory, and "a>b" a link from a to b.
func tree(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		var err error
		if from, to, ok := strings.Cut(name, ">"); ok {
			err = os.Symlink(to, filepath.Join(dir, from))
		} else if strings.HasSuffix(name, "/") {
			err = os.Mkdir(filepath.Join(dir, name), 0o700)
		} else {
			err = os.WriteFile(filepath.Join(dir, name), nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func parseAll(t *testing.T, args ...string) []Source {
	t.Helper()
	var sources []Source
	for _, arg := range args {
		s, err := Parse(arg)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, s)
	}
	return sources
}

func TestExpand_scan(t *testing.T) {
	dir := tree(t, "b.img", "a.raw", "b.raw", "c.qcow2", "l.img>b.img", "sub.img/", "sub/", "notes.txt", "x\ny.img", ".img")
	images, notes, err := Expand(parseAll(t, dir+",digest=md5", "a="+filepath.Join(dir, "b.img")))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range images {
		got = append(got, s.Name+" "+filepath.Base(s.Location)+" "+s.Digest)
	}
	want := []string{"a b.img ", "b b.img md5", "c c.qcow2 md5"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	for i := range notes {
		notes[i] = strings.ReplaceAll(notes[i], dir, "DIR")
	}
	want = []string{
		`DIR/l.img: skipped: a symbolic link`,
		`DIR/sub.img: skipped: not a regular file`,
		`DIR: skipped 2 without an image's suffix: "notes.txt", "sub"`,
		`DIR/.img: skipped: the image's name is empty: give another one by NAME=LOCATION`,
		`DIR/a.raw: skipped: the name "a" is that of DIR/b.img: name it by NAME=LOCATION`,
		`DIR/b.raw: skipped: the name "b" is that of DIR/b.img: name it by NAME=LOCATION`,
		"DIR/x\ny.img: skipped: the name \"x\\ny\" has control characters: give another one by NAME=LOCATION",
	}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestExpand_scan_as_raw(t *testing.T) {
	dir := tree(t, "c.qcow2", "d.vdi")
	images, notes, err := Expand(parseAll(t, dir+",format=raw"))
	if err != nil || len(notes) != 0 {
		t.Fatal(notes, err)
	}
	if len(images) != 2 || images[0].Name != "c" || images[1].Name != "d" {
		t.Errorf("got %+v", images)
	}
}

func TestExpand_refuses(t *testing.T) {
	dir := tree(t, "a.img", "many/", "none/", "a.txt")
	for _, name := range "123456" {
		if err := os.WriteFile(filepath.Join(dir, "many", string(name)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		name string
		args []string
		want string
	}{
		{"two with one name", []string{"/x/a.img", "/y/a.raw"}, `/x/a.img and /y/a.raw: both are called "a": name one by NAME=LOCATION`},
		{"one twice", []string{"a.img", "a.img"}, `a.img and a.img: both are called "a": name one by NAME=LOCATION`},
		{"bad default name", []string{"/x/.hashfs"}, `/x/.hashfs: the name ".hashfs" is reserved: give another one by NAME=LOCATION`},
		{"directory without images", []string{filepath.Join(dir, "none")}, `DIR/none: no image in this directory: it has no regular file called *.raw, *.img, *.qcow2, *.vmdk, *.vhdx or *.vdi`},
		{"directory of other things", []string{filepath.Join(dir, "many")}, `DIR/many: no image in this directory: it has no regular file called *.raw, *.img, *.qcow2, *.vmdk, *.vhdx or *.vdi`},
		{"directory with a name", []string{"x=" + dir}, `DIR: a directory takes no NAME=: each of its images has a name of its own`},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, _, err := Expand(parseAll(t, row.args...))
			if err == nil {
				t.Fatal("accepted")
			}
			if diff := cmp.Diff(row.want, strings.ReplaceAll(err.Error(), dir, "DIR")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAbridged(t *testing.T) {
	if got, want := abridged([]string{"a", "b", "c", "d", "e", "f"}), `"a", "b", "c", "d", ...`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
