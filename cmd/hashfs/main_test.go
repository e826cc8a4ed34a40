package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// runMain makes the test binary the program itself.
const runMain = "HASHFS_TEST_RUN_MAIN"

var update = flag.Bool("update", false, "rewrite the files in testdata")

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

// program returns the command of the program with these arguments, in dir.
func program(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "hashfs"
	cmd.Dir = dir
	// Programs built with -race would otherwise sleep a second as they end.
	cmd.Env = append(os.Environ(), runMain+"=1", "NOTIFY_SOCKET=", "GORACE=atexit_sleep_ms=0")
	cmd.WaitDelay = time.Minute
	return cmd
}

type outcome struct {
	Stdout, Stderr string
	Status         int
}

func finish(t *testing.T, cmd *exec.Cmd, stdin string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdin = strings.NewReader(stdin)
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func run(t *testing.T, dir string, args ...string) outcome {
	t.Helper()
	return finish(t, program(t, dir, args...), "")
}

// tool returns the path of a program of the system, or skips the test; in CI
// it fails it.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return path
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHelp(t *testing.T) {
	for _, command := range []string{"", "mount", "umount", "status", "sum", "version"} {
		name := strings.TrimSpace("hashfs " + command)
		t.Run(name, func(t *testing.T) {
			args := []string{"--help"}
			if command != "" {
				args = []string{command, "--help"}
			}
			got := run(t, "", args...)
			if got.Status != 0 || got.Stderr != "" {
				t.Errorf("status %d, stderr %q", got.Status, got.Stderr)
			}
			file := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".txt")
			if *update {
				write(t, file, got.Stdout)
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.Stdout); diff != "" {
				t.Errorf("help changed; go test ./cmd/hashfs -update (-want +got):\n%s", diff)
			}
			for line := range strings.Lines(got.Stdout) {
				if len(line) > 81 {
					t.Errorf("line too wide: %s", line)
				}
			}
		})
	}
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		got := run(t, "", args...)
		if got.Status != 0 || got.Stderr != "" || !strings.HasPrefix(got.Stdout, "hashfs ") || strings.Count(got.Stdout, "\n") != 1 {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// Each failure is one line on standard error, nothing on standard output,
// and the exit status that the help promises.
func TestFailures(t *testing.T) {
	dir := t.TempDir()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"mnt", "full/mnt", "none"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"disk.img", "full/a.img", "a=b.img"} {
		write(t, filepath.Join(dir, f), "x")
	}
	for _, row := range []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"no command", nil, 2, "no command given; see hashfs --help"},
		{"unknown command", []string{"frob"}, 2, `unknown command "frob"; see hashfs --help`},
		{"misspelt command", []string{"mont", "-o", "ro"}, 2, "unknown shorthand flag: 'o' in -o; see hashfs --help"},
		{"nearly a command", []string{"stauts"}, 2, `unknown command "stauts"; did you mean status? see hashfs --help`},
		{"misspelt command with arguments", []string{"mout", "mnt"}, 1, "open mout: no such file or directory: and it is no command; see hashfs --help"},
		{"unknown flag", []string{"mount", "--frob", "disk.img", "mnt"}, 2, "unknown flag: --frob; see hashfs mount --help"},
		{"mount without arguments", []string{"mount"}, 2, "mount: a SOURCE and a MOUNTPOINT are needed; see hashfs mount --help"},
		{"mount without a mount point", []string{"mount", "disk.img"}, 2, "mount: a SOURCE and a MOUNTPOINT are needed; see hashfs mount --help"},
		{"negative jobs", []string{"mount", "--jobs=-1", "disk.img", "mnt"}, 2, "--jobs -1: a number of threads cannot be negative"},
		{"ro and writable", []string{"mount", "-o", "ro,writable", "disk.img", "mnt"}, 2, "the mount options ro and writable contradict each other"},
		{"ro and a writable source", []string{"mount", "-o", "ro", "disk.img,writable", "mnt"}, 2, "the mount options ro and writable contradict each other"},
		{"unknown mount option", []string{"disk.img", "mnt", "-o", "rw,frob"}, 2, `mount option "frob": unknown; see hashfs mount --help`},
		{"world readable", []string{"mount", "-o", "mode=0444", "disk.img", "mnt"}, 2, "mount option mode=0444: others may not be let in: digests tell what is in an image"},
		{"two digests", []string{"mount", "--digest", "md5", "-o", "digest=sha1", "disk.img", "mnt"}, 2, "mount option digest: both md5/65536 and sha1/65536 given"},
		{"option without its value", []string{"mount", "-o", "digest", "disk.img", "mnt"}, 2, "mount option digest: no value given"},
		{"short timeout", []string{"mount", "--nbd-timeout=1ms", "disk.img", "mnt"}, 2, "--nbd-timeout 1ms: it is a second at least"},
		{"format of a URI", []string{"mount", "nbd://host/x,format=raw", "mnt"}, 2, "nbd://host/x: option format: an NBD server tells nothing of formats: leave out format=raw"},
		{"no such image", []string{"mount", "none.img", "mnt"}, 1, "open none.img: no such file or directory"},
		{"equals sign in a file name", []string{"mount", "a=b.img", "mnt"}, 1, "open b.img: no such file or directory: for the file called a=b.img write ./a=b.img"},
		{"device", []string{"mount", "/dev/null", "mnt"}, 1, "open /dev/null: is a character device; a raw image is a regular file or a block device"},
		{"directory without images", []string{"mount", "none", "mnt"}, 1, "none: no image in this directory: it has no regular file called *.raw, *.img, *.qcow2, *.vmdk, *.vhdx or *.vdi"},
		{"one name twice", []string{"mount", "disk.img", "./disk.img", "mnt"}, 1, `disk.img and ./disk.img: both are called "disk": name one by NAME=LOCATION`},
		{"no mount point", []string{"mount", "disk.img", "nosuch"}, 1, "nosuch: no such directory: make the mount point by mkdir"},
		{"mount point is a file", []string{"mount", "disk.img", "disk.img"}, 1, "disk.img: not a directory: the mount point is the last argument"},
		{"mount point is not empty", []string{"mount", "disk.img", "full"}, 1, "full: the mount point is not empty: choose an empty directory, or hide its files by -o nonempty"},
		{"image below the mount point", []string{"mount", "-o", "nonempty", "full/a.img", "full"}, 1, "full/a.img: the image lies below the mount point " + dir + "/full, which would hide it: choose another directory"},
		{"log file", []string{"mount", "--log-file", "nosuch/log", "disk.img", "mnt"}, 1, "open the log file nosuch/log: no such file or directory"},
		{"log file in the foreground", []string{"mount", "--foreground", "--log-file", "nosuch/log", "disk.img", "mnt"}, 1, "open the log file nosuch/log: no such file or directory"},
		{"umount without arguments", []string{"umount"}, 2, "umount: a MOUNTPOINT is needed; see hashfs umount --help"},
		{"umount of nothing", []string{"umount", "mnt"}, 1, "mnt: nothing is mounted here"},
		{"umount of no directory", []string{"umount", "nosuch"}, 1, "nosuch: no such file or directory"},
		{"umount of another file system", []string{"umount", "/proc"}, 1, "/proc: not a hashfs mount: umount(8) takes it away"},
		{"status of nothing", []string{"status", "mnt"}, 1, "mnt: not a hashfs mount"},
		{"version with arguments", []string{"version", "x"}, 2, "version: no arguments are taken; see hashfs version --help"},
		{"sum: tag when checking", []string{"sum", "-c", "--tag"}, 2, "the --tag option is meaningless when verifying checksums"},
		{"sum: quiet without check", []string{"sum", "--quiet"}, 2, "the --quiet option is meaningful only when verifying checksums"},
		{"sum: plain with a block size", []string{"sum", "--plain", "--digest", "md5/4k"}, 2, "--digest md5/4k: a digest by --plain has no block size"},
		{"sum: option of mount", []string{"sum", "disk.img,writable"}, 1, "disk.img: the options writable and cache= are for hashfs mount"},
		{"sum: name with a newline", []string{"sum", "a\nb"}, 1, `a\nb: no such file or directory`},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := run(t, dir, row.args...)
			want := outcome{"", "hashfs: " + row.want + "\n", row.status}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("hashfs %q (-want +got):\n%s", row.args, diff)
			}
		})
	}
}

// The wording belongs to package hasher.
func TestFailures_digest(t *testing.T) {
	for _, digest := range []string{"crc32", "sha256/3", "sha256/6", "md5/128m"} {
		got := run(t, "", "mount", "--digest", digest, "a", "b")
		if got.Status != 2 || strings.Count(got.Stderr, "\n") != 1 || !strings.Contains(got.Stderr, digest) {
			t.Errorf("%s: %+v", digest, got)
		}
	}
}

func TestMountPointInDirectoryOfImages(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.img"), "x")
	if err := os.Mkdir(filepath.Join(dir, "mnt"), 0o700); err != nil {
		t.Fatal(err)
	}
	got := run(t, dir, "mount", ".", "mnt")
	want := outcome{"", "hashfs: warning: .: skipped 1 without an image's suffix: \"mnt\"\n" +
		"hashfs: " + dir + "/mnt: the mount point lies in the directory of images .: choose another directory\n", 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStatus_json(t *testing.T) {
	got := run(t, "", "status", "--json", "/proc")
	want := outcome{`[
  {
    "mountpoint": "/proc",
    "state": "none",
    "error": "not a hashfs mount",
    "images": []
  }
]
`, "", 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if got := run(t, "", "completion", shell); got.Status != 0 || !strings.Contains(got.Stdout, "hashfs") {
			t.Errorf("%s: status %d, %d bytes, %s", shell, got.Status, len(got.Stdout), got.Stderr)
		}
	}
	got := run(t, "", "__complete", "sum", "--digest", "blake")
	if !strings.Contains(got.Stdout, "blake3\n") {
		t.Errorf("digests: %+v", got)
	}
}
