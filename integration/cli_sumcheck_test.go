package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// checks are lists, made of lines that sha256sum wrote, with what can be wrong
// with them.
func checks(t *testing.T, dir string) map[string]string {
	t.Helper()
	for i, name := range []string{"a.img", "b.img", "c.img"} {
		writeImage(t, filepath.Join(dir, name), random(uint64(90+i), 70000))
	}
	if err := os.Mkdir(filepath.Join(dir, "d.img"), 0o700); err != nil {
		t.Fatal(err)
	}
	good := call{argv: []string{"sha256sum", "a.img", "b.img", "c.img"}, dir: dir}.output(t)
	a, b, c := good[:73-1], good[72:144], good[144:]
	if len(good) != 3*72 {
		t.Fatalf("%q", good)
	}
	wrong := strings.Replace(b, b[:1], map[bool]string{true: "1", false: "0"}[b[0] == '0'], 1)
	return map[string]string{
		"good":                        good,
		"binary":                      strings.ReplaceAll(good, "  ", " *"),
		"upper case digits":           strings.ToUpper(a[:64]) + a[64:],
		"a mismatch":                  a + wrong + c,
		"two mismatches":              wrong + wrong,
		"a missing file":              a + strings.Replace(b, "b.img", "none.img", 1),
		"only missing files":          strings.Replace(b, "b.img", "none.img", 1),
		"missing and mismatched":      wrong + strings.Replace(b, "b.img", "none.img", 1) + strings.Replace(b, "b.img", "nine.img", 1),
		"a directory":                 a + strings.Replace(b, "b.img", "d.img", 1),
		"an improper line":            a + "what is this\n" + c,
		"improper lines":              a + "what is this\nor this\n" + c,
		"short digest":                a + b[2:],
		"long digest":                 a + "00" + b,
		"odd digest":                  a + b[1:],
		"no digits":                   a + "x" + b[1:],
		"one space":                   a + b[:64] + " b.img\n",
		"no name":                     a + b[:66] + "\n",
		"only improper lines":         "what is this\n",
		"empty":                       "",
		"empty lines":                 "\n\n" + a + "\n",
		"comment":                     "# by hand\n" + a,
		"carriage returns":            strings.ReplaceAll(good, "\n", "\r\n"),
		"no newline at the end":       strings.TrimSuffix(good, "\n"),
		"leading white space":         " \t" + a,
		"improper escape":             `\` + strings.Replace(a, "a.img", `a\x.img`, 1) + c,
		"escape without need":         `\` + a,
		"improper, missing, mismatch": "?\n" + wrong + strings.Replace(b, "b.img", "none.img", 1) + a,
		"standard input in the list":  strings.Replace(a, "a.img", "-", 1) + c,
	}
}

// hashfs sum -c says and returns what sha256sum -c does on the same list.
func TestSum_check_as_sha256sum(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	lists := checks(t, dir)
	if out := output(t, "sha256sum", "--version"); !strings.HasPrefix(out, "sha256sum (GNU coreutils) 9.") {
		t.Skipf("messages are those of GNU coreutils 9, this is %q", out)
	}
	allFlags := [][]string{nil, {"--quiet"}, {"--status"}, {"--warn"}, {"--strict"}, {"--ignore-missing"}, {"--ignore-missing", "--quiet", "--strict"}, {"-w", "--status"}}
	for name, content := range lists {
		if err := os.WriteFile(filepath.Join(dir, "list"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, flags := range allFlags {
			for _, stdin := range []bool{false, true} {
				if stdin && flags != nil {
					continue
				}
				args, in := append(append([]string{"-c"}, flags...), "list"), ""
				if stdin {
					args, in = args[:len(args)-1], content
				}
				theirs := call{argv: append([]string{"sha256sum"}, args...), dir: dir, stdin: in}.run(t)
				ours := call{argv: append([]string{program, "sum", "--plain"}, args...), dir: dir, stdin: in}.run(t)
				want := theirs
				want.Stderr = strings.NewReplacer(
					"sha256sum: ", "hashfs: ", "SHA256 checksum line", "sha256 checksum line",
					"No such file", "no such file", "Is a directory", "is a directory",
				).Replace(theirs.Stderr)
				// Ours says what it does open, sha256sum what it cannot read.
				ours.Stderr = strings.Replace(ours.Stderr, "hashfs: open d.img: is a directory; a raw image is a regular file or a block device", "hashfs: d.img: is a directory", 1)
				if diff := cmp.Diff(want, ours); diff != "" {
					t.Errorf("%s, %q (-sha256sum +hashfs):\n%s", name, args, diff)
				}
			}
		}
	}
}

// Several lists, one of them missing.
func TestSum_check_lists(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	lists := checks(t, dir)
	writeImage(t, filepath.Join(dir, "good"), []byte(lists["good"]))
	writeImage(t, filepath.Join(dir, "bad"), []byte(lists["a mismatch"]))
	got := call{argv: []string{program, "sum", "--plain", "-c", "none", "good", "bad"}, dir: dir}.run(t)
	want := result{
		"a.img: OK\nb.img: OK\nc.img: OK\na.img: OK\nb.img: FAILED\nc.img: OK\n",
		"hashfs: none: no such file or directory\nhashfs: WARNING: 1 computed checksum did NOT match\n", 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Without --plain or --digest an untagged line says not what it holds.
	got = call{argv: []string{program, "sum", "-c", "good"}, dir: dir}.run(t)
	want = result{"", "hashfs: good: lines without a tag do not say what they hold: make the list with --tag, or say it by --digest or --plain\n", 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A digest of blocks is not one of the bytes.
	blocks := call{argv: []string{program, "sum", "a.img", "b.img"}, dir: dir}.output(t)
	writeImage(t, filepath.Join(dir, "blocks"), []byte(blocks))
	for _, row := range []struct {
		flag, want string
		status     int
	}{
		{"--digest=sha256", "a.img: OK\nb.img: OK\n", 0},
		{"--digest=sha256/4k", "a.img: FAILED\nb.img: FAILED\n", 1},
		{"--plain", "a.img: FAILED\nb.img: FAILED\n", 1},
	} {
		got := call{argv: []string{program, "sum", row.flag, "-c", "blocks"}, dir: dir}.run(t)
		if got.Stdout != row.want || got.Status != row.status {
			t.Errorf("%s: %+v", row.flag, got)
		}
	}
}
