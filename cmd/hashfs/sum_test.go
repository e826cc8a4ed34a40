package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// blkhash is the formula itself, with sha256.
func blkhash(data string, blockSize int) string {
	outer := sha256.New()
	for rest := data; rest != ""; {
		n := min(blockSize, len(rest))
		digest := sha256.Sum256([]byte(rest[:n]))
		outer.Write(digest[:])
		rest = rest[n:]
	}
	outer.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(data))))
	return hex.EncodeToString(outer.Sum(nil))
}

func plain(data string) string {
	digest := sha256.Sum256([]byte(data))
	return hex.EncodeToString(digest[:])
}

func random(n int) string {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(data)
	return string(data)
}

func TestSum(t *testing.T) {
	dir := t.TempDir()
	big, small := random(300_001), "small"
	for name, content := range map[string]string{
		"big.img": big, "a,b": small, "a\nb\\": small, "empty.raw": "", "dir/x.img": small, "dir/y.raw": "", "dir/n.txt": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, content)
	}
	const bs = 64 << 10
	for _, row := range []struct {
		name  string
		args  []string
		stdin string
		want  outcome
	}{
		{"file", []string{"big.img"}, "", outcome{blkhash(big, bs) + "  big.img\n", "", 0}},
		{"standard input", nil, big, outcome{blkhash(big, bs) + "  -\n", "", 0}},
		{"standard input by name", []string{"-", "empty.raw"}, small, outcome{blkhash(small, bs) + "  -\n" + blkhash("", bs) + "  empty.raw\n", "", 0}},
		{"block size", []string{"--digest", "sha256/4k", "big.img"}, "", outcome{blkhash(big, 4096) + "  big.img\n", "", 0}},
		{"digest of one source", []string{"--tag", "big.img,digest=sha256/4k", "big.img"}, "",
			outcome{"blk-sha256/4096 (big.img) = " + blkhash(big, 4096) + "\nblk-sha256/65536 (big.img) = " + blkhash(big, bs) + "\n", "", 0}},
		{"plain", []string{"--plain", "big.img", "-"}, small, outcome{plain(big) + "  big.img\n" + plain(small) + "  -\n", "", 0}},
		{"plain and tagged", []string{"--plain", "--tag", "big.img"}, "", outcome{"sha256 (big.img) = " + plain(big) + "\n", "", 0}},
		{"name for a mount", []string{"x=big.img"}, "", outcome{blkhash(big, bs) + "  big.img\n", "", 0}},
		{"comma", []string{"a,,b"}, "", outcome{blkhash(small, bs) + "  a,b\n", "", 0}},
		{"newline", []string{"a\nb\\"}, "", outcome{`\` + blkhash(small, bs) + `  a\nb\\` + "\n", "", 0}},
		{"directory", []string{"dir"}, "", outcome{blkhash(small, bs) + "  dir/x.img\n" + blkhash("", bs) + "  dir/y.raw\n",
			"hashfs: warning: dir: skipped 1 without an image's suffix: \"n.txt\"\n", 0}},
		{"one bad among good ones", []string{"big.img", "nosuch", "x.bin,format=iso", "empty.raw"}, "",
			outcome{blkhash(big, bs) + "  big.img\n" + blkhash("", bs) + "  empty.raw\n",
				"hashfs: nosuch: no such file or directory\n" +
					"hashfs: x.bin: option format: unknown format \"iso\": there are raw, qcow2, vmdk, vhdx, vdi, vpc, qed, qcow, parallels, bochs, cloop\n", 1}},
		{"progress by request", []string{"--progress", "empty.raw"}, "", outcome{blkhash("", bs) + "  empty.raw\n", "", 0}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := finish(t, program(t, dir, append([]string{"sum"}, row.args...)...), row.stdin)
			if row.args != nil && row.args[0] == "--progress" {
				got.Stderr = "" // what is on it depends on the time it took
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A name that sha256sum escapes, we escape in the same way.
func TestSum_names_as_sha256sum(t *testing.T) {
	sha256sum := tool(t, "sha256sum")
	dir := t.TempDir()
	for _, name := range []string{"a b", " a", "*a", "a\nb", "a\\b", "a\rb", "a\tb", "ä", "a\xffb", "\\a", "a) b"} {
		write(t, filepath.Join(dir, name), name)
		for _, tag := range []string{"", "--tag"} {
			args := []string{"--", name}
			if tag != "" {
				args = append([]string{tag}, args...)
			}
			cmd := exec.Command(sha256sum, args...)
			cmd.Dir = dir
			want := finish(t, cmd, "")
			want.Stdout = strings.Replace(want.Stdout, "SHA256 (", "sha256 (", 1)
			got := run(t, dir, append([]string{"sum", "--plain"}, args...)...)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q %s (-sha256sum +hashfs):\n%s", name, tag, diff)
			}
		}
	}
}

// sum --plain --check and sha256sum --check are given the same lists.
func TestCheck_as_sha256sum(t *testing.T) {
	sha256sum := tool(t, "sha256sum")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "a")
	write(t, filepath.Join(dir, "b"), "b")
	write(t, filepath.Join(dir, "c\nd"), "c")
	if err := os.Mkdir(filepath.Join(dir, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	a, b, c := plain("a")+"  a\n", plain("b")+"  b\n", `\`+plain("c")+`  c\nd`+"\n"
	wrong, missing := plain("x")+"  b\n", plain("x")+"  missing\n"
	lists := map[string]string{
		"good":            a + b + c,
		"binary":          plain("a") + " *a\n",
		"upper case":      strings.ToUpper(plain("a")) + "  a\n",
		"white space":     "  \t" + a,
		"comments":        "# x\n\n" + a + "\n",
		"no last newline": strings.TrimSuffix(a, "\n"),
		"carriage return": plain("a") + "  a\r\n\r\n",
		"tagged":          "SHA256 (a) = " + plain("a") + "\n" + `\SHA256 (c\nd) = ` + plain("c") + "\n",
		"one wrong":       a + wrong,
		"two wrong":       wrong + wrong,
		"missing":         a + missing,
		"two missing":     missing + missing,
		"all kinds":       a + wrong + missing + "junk\n" + b,
		"junk":            "junk\n",
		"two junk":        a + "junk\n" + plain("a")[1:] + "  a\n",
		"empty":           "",
		"bad escape":      `\` + plain("a") + `  a\x` + "\n",
		"standard input":  plain("") + "  -\n",
		"too long":        plain("a") + "00  a\n",
	}
	for name, list := range lists {
		write(t, filepath.Join(dir, "list"), list)
		for _, flags := range [][]string{
			nil, {"--quiet"}, {"--status"}, {"--warn"}, {"--strict"}, {"--ignore-missing"},
			{"--warn", "--strict"}, {"--warn", "--quiet"}, {"--quiet", "--warn"}, {"--status", "--quiet"}, {"--warn", "--status"}, {"--ignore-missing", "--status"},
		} {
			ways := [][]string{{"list"}}
			if flags == nil {
				ways = append(ways, []string{"nosuch", "list"}, nil)
			}
			for _, args := range ways {
				stdin := ""
				if len(args) == 0 {
					stdin = list
				}
				args = append(append([]string{"--check"}, flags...), args...)
				cmd := exec.Command(sha256sum, args...)
				cmd.Args[0] = "sha256sum"
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C")
				want := finish(t, cmd, stdin)
				want.Stderr = strings.ReplaceAll(want.Stderr, "sha256sum: ", "hashfs: ")
				got := finish(t, program(t, dir, append([]string{"sum", "--plain"}, args...)...), stdin)
				// Our messages, errno's too, begin in lower case.
				want.Stderr, got.Stderr = strings.ToLower(want.Stderr), strings.ToLower(got.Stderr)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("list %q, %q (-sha256sum +hashfs):\n%s", name, args, diff)
				}
			}
		}
	}
}

func TestCheck_own_lists(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.img"), random(200_000))
	write(t, filepath.Join(dir, "b,c\n.img"), "b")
	const ok = "a.img: OK\n" + `\b,c\n.img: OK` + "\n"
	for _, flags := range [][]string{
		{"--tag"}, {"--tag", "--plain"}, {"--tag", "--digest", "blake3/4k"}, {"--digest", "sha512/8k"}, {"--plain"}, {"--plain", "--digest", "md5"},
	} {
		made := run(t, dir, append(append([]string{"sum"}, flags...), "a.img", "b,,c\n.img")...)
		if made.Status != 0 || made.Stderr != "" {
			t.Fatalf("%q: %+v", flags, made)
		}
		check := []string{"sum", "--check"}
		if flags[0] != "--tag" {
			check = append(check, flags...)
		}
		got := finish(t, program(t, dir, check...), made.Stdout)
		if diff := cmp.Diff(outcome{ok, "", 0}, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", flags, diff)
		}
	}
}

func TestCheck_untagged_needs_to_be_told(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "a")
	write(t, filepath.Join(dir, "list"), blkhash("a", 65536)+"  a\n")
	got := run(t, dir, "sum", "--check", "list")
	want := outcome{"",
		"hashfs: list: lines without a tag do not say what they hold: make the list with --tag, or say it by --digest or --plain\n", 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := run(t, dir, "sum", "--check", "--digest", "sha256", "list"); got != (outcome{"a: OK\n", "", 0}) {
		t.Errorf("with --digest: %+v", got)
	}
}

func TestSum_full_disk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "a")
	write(t, filepath.Join(dir, "list"), plain("a")+"  a\n")
	for _, args := range [][]string{{"sum", "a"}, {"sum", "--plain", "--check", "list"}} {
		cmd := program(t, dir, args...)
		cmd.Stdout = full
		if got := finish(t, cmd, ""); got.Status != 1 || got.Stderr != "hashfs: write error: no space left on device\n" {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// A source that never ends is left at once, with the status of shells.
func TestSum_interrupted(t *testing.T) {
	for signal, status := range map[os.Signal]int{unix.SIGINT: 130, unix.SIGTERM: 143} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		cmd := program(t, "", "sum")
		cmd.Stdin = r
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r.Close()
		// Once more than the pipe holds is written, the program reads.
		if _, err := io.WriteString(w, strings.Repeat("x", 1<<20)); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		cmd.Process.Signal(signal)
		cmd.Wait()
		if took := time.Since(begin); cmd.ProcessState.ExitCode() != status || took > 5*time.Second {
			t.Errorf("%v: status %d after %v, want %d", signal, cmd.ProcessState.ExitCode(), took, status)
		}
	}
}
