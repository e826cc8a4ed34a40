package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"hashfs/cmd/hashfs/internal/daemon"
	"hashfs/cmd/hashfs/internal/mounts"
	"hashfs/hasher"
)

func TestDispatch(t *testing.T) {
	for _, row := range []struct {
		name string
		argv string
		want string
	}{
		{"command", "hashfs mount a /mnt", "mount a /mnt"},
		{"alias", "hashfs unmount /mnt /mnt2", "unmount /mnt /mnt2"},
		{"probe", "hashfs probe /mnt", "probe /mnt"},
		{"nothing", "hashfs", ""},
		{"flag first", "hashfs --version", "--version"},
		{"help", "hashfs help mount", "help mount"},
		{"completion", "hashfs completion bash", "completion bash"},
		{"completing", "hashfs __complete sum", "__complete sum"},
		{"as mount.fuse3 calls it", "hashfs a.img /mnt -o rw,dev,suid", "mount.hashfs a.img /mnt -o rw,dev,suid"},
		{"by hand, without options", "hashfs a.img /mnt", "mount.hashfs a.img /mnt"},
		{"one argument", "hashfs a.img", "a.img"},
		{"three are no call of mount(8)", "hashfs moutn a.img /mnt", "moutn a.img /mnt"},
		{"as mount(8) calls /sbin/mount.hashfs", "/sbin/mount.hashfs a.img /mnt -n -o rw", "mount.hashfs a.img /mnt -n -o rw"},
		{"as mount(8) calls /sbin/mount.fuse.hashfs", "/sbin/mount.fuse.hashfs mount /mnt -o rw", "mount.hashfs mount /mnt -o rw"},
	} {
		root := NewRoot("")
		addCompletion(root)
		if got := strings.Join(dispatch(root, strings.Fields(row.argv)), " "); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

// plan runs the parsing of a command line only.
func plan(t *testing.T, byType bool, args ...string) (*mountPlan, error) {
	t.Helper()
	o := &mountOptions{digest: newSpecValue(), byType: byType}
	f := o.flags()
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o.plan(f, f.Args())
}

func TestPlan(t *testing.T) {
	p, err := plan(t, true, "hashfs#a.img", "/mnt", "-o", "rw,allow_other,dev,suid,cache_size=1m,mode=0440,owner=1:2,noexec", "-o", "digest=sha512/4k,jobs=3,log_file=/log,nonempty")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(p.sources[0].Location, p.point, p.allowOther, p.writable, p.cacheSize.bytes, *p.mode.mode, *p.owner.uid, *p.owner.gid,
		p.kernel, p.digest.String(), p.jobs, p.logFile, p.nonEmpty, p.foreground)
	want := fmt.Sprint("a.img", "/mnt", true, false, 1<<20, 0o440, 1, 2, []string{"noexec"}, "sha512/4096", 3, "/log", true, false)
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPlan_writable(t *testing.T) {
	for _, row := range []struct {
		name string
		args []string
		want string // of a and b
	}{
		{"default", []string{"a", "b", "m"}, "false false"},
		{"rw alone changes nothing", []string{"a", "b", "m", "-o", "rw"}, "false false"},
		{"flag", []string{"--writable", "a", "b", "m"}, "true true"},
		{"option", []string{"a", "b", "m", "-o", "rw,writable"}, "true true"},
		{"one source", []string{"a", "b,writable", "m"}, "false true"},
		{"ro before rw", []string{"a,writable", "b", "m", "-o", "ro,rw"}, "true false"},
		{"switched off", []string{"a", "b", "m", "-o", "writable=false"}, "false false"},
	} {
		p, err := plan(t, false, row.args...)
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		if got := fmt.Sprint(p.sources[0].Writable, p.sources[1].Writable); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// The same value twice is no contradiction; sources may differ.
func TestPlan_digest(t *testing.T) {
	p, err := plan(t, false, "--digest", "md5", "a", "b,digest=sha1/1m", "m", "-o", "digest=md5/64k")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"md5/65536", "sha1/1048576"} {
		if spec, err := p.spec(p.sources[i]); err != nil || spec.String() != want {
			t.Errorf("source %d: %v, %v; want %s", i, spec, err, want)
		}
	}
}

func TestEveryFlagIsAnOption(t *testing.T) {
	o := &mountOptions{digest: newSpecValue()}
	values := map[string]string{
		"writable": "", "allow-other": "", "foreground": "", "digest": "md5", "cache-size": "1g",
		"jobs": "2", "owner": "0", "mode": "0400", "log-file": "x", "nbd-timeout": "5s", "no-extents": "",
	}
	for name, value := range values {
		option := name
		if value != "" {
			option += "=" + value
		}
		if _, err := plan(t, false, "a", "m", "-o", option); err != nil {
			t.Errorf("%s: %v", option, err)
		}
	}
	names := 0
	o.flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "options" {
			names++
		}
	})
	if names != len(values) {
		t.Errorf("there are %d flags, and %d were tried", names, len(values))
	}
}

func TestFinish(t *testing.T) {
	for _, row := range []struct {
		name   string
		err    error
		want   string
		status int
	}{
		{"success", nil, "", exitOK},
		{"failure", errors.New("a: b"), "hashfs: a: b\n", exitFailure},
		{"usage", usagef("a"), "hashfs: a\n", exitUsage},
		{"wrapped usage", fmt.Errorf("x: %w", usagef("a")), "hashfs: x: a\n", exitUsage},
		{"said before", statusError(7), "", 7},
		{"of the daemon", &daemon.Error{Message: "c", Status: 3}, "hashfs: c\n", 3},
		{"interrupted start", daemon.ErrInterrupted, "", exitInterrupted},
		{"hostile text", errors.New("a\nb\x1b[2J\xff"), "hashfs: a\\nb\\x1b[2J\\xff\n", exitFailure},
	} {
		var w bytes.Buffer
		if got := finish(&w, row.err); got != row.status || w.String() != row.want {
			t.Errorf("%s: %d, %q; want %d, %q", row.name, got, w.String(), row.status, row.want)
		}
	}
}

func TestOneLine_keeps_text(t *testing.T) {
	for _, s := range []string{"", "plain", "ä 漢 \U0001f600", `back\slash "quoted"`} {
		if got := oneLine(s); got != s {
			t.Errorf("oneLine(%q) = %q", s, got)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, row := range []struct {
		dir, path string
		want      bool
	}{
		{"/a", "/a", true}, {"/a", "/a/b", true}, {"/a", "/ab", false}, {"/a/b", "/a", false}, {"/", "/a", true}, {"/", "/", true},
	} {
		if got := within(row.dir, row.path); got != row.want {
			t.Errorf("within(%q, %q) = %v", row.dir, row.path, got)
		}
	}
}

func TestAllowedByConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fuse.conf")
	if allowedByConf(path) {
		t.Error("allowed without a file")
	}
	for content, want := range map[string]bool{
		"": false, "#user_allow_other\n": false, "mount_max = 3\nuser_allow_other\n": true, " user_allow_other # yes": true, "user_allow_others\n": false,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := allowedByConf(path); got != want {
			t.Errorf("%q: %v", content, got)
		}
	}
}

func TestDeviceError(t *testing.T) {
	for errno, want := range map[error]string{
		unix.ENOENT: "/dev/fuse: no such file or directory: load the kernel's module by modprobe fuse",
		unix.EPERM:  "/dev/fuse: operation not permitted: this container is not given the device",
		unix.EACCES: "/dev/fuse: permission denied: run as root, or have root open the device to users by chmod 666 /dev/fuse",
	} {
		if got := deviceError("/dev/fuse", &os.PathError{Op: "open", Path: "/dev/fuse", Err: errno}).Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestCacheLimit(t *testing.T) {
	spec, err := hasher.ParseSpec("sha256")
	if err != nil {
		t.Fatal(err)
	}
	need := cacheNeed(1<<40, spec)
	if want := float64(1<<24) * 32 * 1.15; need != want {
		t.Errorf("a terabyte needs %f, want %f", need, want)
	}
	given := func(n int64) sizeValue { return sizeValue{n, true} }
	for _, row := range []struct {
		name    string
		given   sizeValue
		needed  float64
		memory  int64
		want    int64
		warning string
	}{
		{"what is needed", sizeValue{}, 100 << 20, 1 << 30, 100 << 20, ""},
		{"what is needed, in fractions of a byte", sizeValue{}, 100<<20 + 0.2, 1 << 30, 100<<20 + 1, ""},
		{"floor", sizeValue{}, 1 << 20, 1 << 30, cacheFloor, ""},
		{"a quarter of the memory", sizeValue{}, 1 << 30, 1 << 30, 256 << 20,
			"a quarter of the memory is 256.0 MiB, and the digests of all images need 1.0 GiB: some blocks will be hashed again and again"},
		{"enough given", given(2 << 30), 1 << 30, 1 << 30, 2 << 30, ""},
		{"too little given", given(1 << 20), 4 << 20, 1 << 30, 1 << 20,
			"--cache-size is 1.0 MiB, and the digests of all images need 4.0 MiB: some blocks will be hashed again and again"},
		{"nothing given", given(0), 0, 1 << 30, 0, ""},
	} {
		got, warning := cacheLimit(row.given, row.needed, row.memory)
		if got != row.want || warning != row.warning {
			t.Errorf("%s: %d, %q; want %d, %q", row.name, got, warning, row.want, row.warning)
		}
	}
	if memory() < 1<<20 {
		t.Errorf("this machine has %d bytes of memory", memory())
	}
}

func TestWrap(t *testing.T) {
	long := strings.Repeat("word ", 30)
	got := wrap(long + "\n\n  " + long + "\nshort")
	lines := strings.Split(got, "\n")
	want := []string{strings.TrimSpace(strings.Repeat("word ", 16)), strings.TrimSpace(strings.Repeat("word ", 14)), "", "  " + long, "short"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

type fakeSyslog struct{ lines []string }

func (f *fakeSyslog) add(priority, s string) error {
	f.lines = append(f.lines, priority+" "+s)
	return nil
}
func (f *fakeSyslog) Debug(s string) error   { return f.add("debug", s) }
func (f *fakeSyslog) Info(s string) error    { return f.add("info", s) }
func (f *fakeSyslog) Warning(s string) error { return f.add("warning", s) }
func (f *fakeSyslog) Err(s string) error     { return f.add("err", s) }

func TestSyslogHandler(t *testing.T) {
	var out fakeSyslog
	log := slog.New(newSyslogHandler(&out))
	log.Info("mounted", "images", 2)
	log.With("image", "a b").WithGroup("g").Error("read\nfailed", "time", 3)
	log.Warn("w")
	log.Log(context.Background(), slog.LevelError+4, "worse")
	log.Debug("not enabled")
	want := []string{
		"info msg=mounted images=2\n",
		"err msg=\"read\\nfailed\" image=\"a b\" g.time=3\n",
		"warning msg=w\n",
		"err msg=worse\n",
	}
	if diff := cmp.Diff(want, out.lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// localTime matches what the test cannot know: the zone of the machine.
var localTime = regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d:\d\d`)

func TestPrintStatus(t *testing.T) {
	all := []mountStatus{
		{Point: "/mnt/a\nb", State: "ok", Images: []mounts.Image{
			{Name: "vm1", Info: json.RawMessage(`{"source": "/data/vm1.img", "format": "raw", "size": 1073741824, "block_size": 65536,
				"digest": "sha256", "writable": true, "blocks": {"total": 16384, "unknown": 384, "zero": 6000, "data": 9999, "failed": 1},
				"work": [{"file": "checksum", "done": 268435456, "total": 1073741824, "started": "2026-01-02T03:04:05Z"}],
				"last_error": {"offset": 65536, "length": 4096, "message": "input/output error", "time": "2026-01-02T03:04:05Z"}}`)},
			{Name: "empty", Info: json.RawMessage(`{"source": "e", "format": "raw", "digest": "md5", "block_size": 4, "last_error": null,
				"work": [{"file": "checksum", "done": 0, "total": 0, "started": "2026-01-02T03:04:05Z"}]}`)},
			{Name: "broken", Error: "info.json: input/output error"},
			{Name: "strange", Info: json.RawMessage(`[]`)},
		}},
		{Point: "/mnt/b", State: "dead", Error: "its daemon is gone"},
		{Point: "/proc", State: "none", Error: "not a hashfs mount"},
	}
	var out, messages bytes.Buffer
	if err := printStatus(&out, &messages, all); err != nil {
		t.Fatal(err)
	}
	want := `/mnt/a\nb:
  vm1: /data/vm1.img, raw, writable
    size    1073741824 bytes (1.0 GiB)
    digest  sha256, blocks of 65536 bytes
    blocks  16384: 9999 hashed, 6000 zero, 384 unknown, 1 failed
    now     checksum: 25 % of 1.0 GiB, since TIME
    error   TIME, 4096 bytes at 65536: input/output error
  empty: e, raw, read-only
    size    0 bytes
    digest  md5, blocks of 4 bytes
    blocks  0: 0 hashed, 0 zero, 0 unknown, 0 failed
    now     checksum: 100 % of 0 bytes, since TIME
  broken: info.json: input/output error
  strange: info.json: json: cannot unmarshal array into Go value of type cli.info
/mnt/b: its daemon is gone
`
	if diff := cmp.Diff(want, localTime.ReplaceAllString(out.String(), "TIME")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := messages.String(), "hashfs: /proc: not a hashfs mount\n"; got != want {
		t.Errorf("messages %q, want %q", got, want)
	}
}

func TestPrintJSON_nothing(t *testing.T) {
	var out bytes.Buffer
	if err := printJSON(&out, nil); err != nil || out.String() != "[]\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
