package mounts

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The test binary is also the program that Probe starts again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ProbeCommand {
		if err := RunProbe(os.Stdout, os.Args[2:]); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const mountTable = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:40 / /z rw,nosuid,nodev - fuse.hashfs /data/a.img rw,user_id=0,group_id=0,default_permissions
31 22 0:41 / /mnt/a\040b\134c rw,nosuid,nodev - fuse.hashfs hashfs rw,user_id=0
32 22 0:40 /a /bind rw - fuse.hashfs /data/a.img rw
33 22 0:42 / /over rw - fuse.hashfs one rw
34 33 0:43 / /over rw - tmpfs two rw
35 22 0:44 / /twice rw - fuse.hashfs one rw
36 35 0:45 / /twice rw - fuse.hashfs two rw
37 22 0:46 / /sshfs rw - fuse.sshfs host: rw
`

func TestList_from_a_table(t *testing.T) {
	all, err := read(strings.NewReader(mountTable))
	if err != nil {
		t.Fatal(err)
	}
	want := []Mount{
		{Point: `/mnt/a b\c`, Source: "hashfs", Hashfs: true, id: 31, device: [2]int{0, 41}},
		{Point: "/twice", Source: "two", Hashfs: true, id: 36, device: [2]int{0, 45}},
		{Point: "/z", Source: "/data/a.img", Hashfs: true, id: 30, device: [2]int{0, 40}},
	}
	if diff := cmp.Diff(want, only(all), cmp.AllowUnexported(Mount{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCopies(t *testing.T) {
	root, _, err := At("/")
	if err != nil {
		t.Fatal(err)
	}
	root.id = -1 // as if it were another
	copies := root.Copies()
	if len(copies) == 0 || !copies[0].Remains() || copies[0].Where != "/" {
		t.Fatalf("the root is also mounted in %+v", copies)
	}
	gone := copies[0]
	gone.mount.id = -1
	if gone.Remains() {
		t.Error("another mount is taken for it")
	}
	if copies := (Mount{device: [2]int{4095, 1}}).Copies(); copies != nil {
		t.Errorf("no file system is mounted in %+v", copies)
	}
}

func TestAt_the_root(t *testing.T) {
	m, ok, err := At("/")
	if err != nil || !ok || m.Hashfs {
		t.Errorf("At(/) = %+v, %v, %v", m, ok, err)
	}
	if _, ok, err := At(t.TempDir()); ok || err != nil {
		t.Errorf("a new directory: %v, %v", ok, err)
	}
}

func TestCanonical(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, err := range []error{
		os.MkdirAll("real/mnt", 0o700), os.Symlink("real", "dirlink"), os.Symlink("real/mnt", "link"),
		os.Symlink("link", "linklink"), os.Symlink("loop", "loop"), os.Symlink("/proc", "proc"), os.Symlink("none", "dangling"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		path, want string
		err        error
	}{
		{"real/mnt", dir + "/real/mnt", nil},
		{"./real//mnt/", dir + "/real/mnt", nil},
		{"dirlink/mnt", dir + "/real/mnt", nil},
		{"link", dir + "/real/mnt", nil},
		{"linklink", dir + "/real/mnt", nil},
		{"proc", "/proc", nil},
		{"/", "/", nil},
		{"none", "", fs.ErrNotExist},
		{"none/mnt", "", fs.ErrNotExist},
		{"dangling", "", fs.ErrNotExist},
	} {
		got, err := Canonical(row.path)
		if got != row.want || !errors.Is(err, row.err) {
			t.Errorf("Canonical(%q) = %q, %v; want %q, %v", row.path, got, err, row.want, row.err)
		}
	}
	if got, err := Canonical("loop"); err == nil {
		t.Errorf("Canonical of a loop of links = %q", got)
	}
}

func TestProbe_reads_info(t *testing.T) {
	dir := t.TempDir()
	for path, content := range map[string]string{
		"a/info.json": `{"name":"a"}   ` + "\n", "b/info.json": "{", "c/other": "", ".hashfs/info.json": "{}", "file": "",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Probe(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []Image{
		{Name: "a", Info: []byte(`{"name":"a"}`)},
		{Name: "b", Error: "info.json: not valid JSON"},
		{Name: "c", Error: "info.json: no such file or directory"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := Ping(t.Context(), dir); err != nil {
		t.Errorf("Ping: %v", err)
	}
}

func TestProbe_errors(t *testing.T) {
	if _, err := Probe(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a missing directory: %v", err)
	}
	// Opening a fifo that nobody writes blocks, as a server that is stuck.
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "a", "info.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Probe(t.Context(), dir); !errors.Is(err, ErrHung) {
		t.Errorf("a fifo: %v", err)
	}
}

// A mount of thousands of images takes longer as a whole than any answer may.
func TestCollect_waits_for_each_answer(t *testing.T) {
	for _, row := range []struct {
		name  string
		pause time.Duration
		err   error
	}{
		{"slow", Patience - time.Millisecond, nil},
		{"stuck", Patience + time.Millisecond, ErrHung},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, w := io.Pipe()
				var writer sync.WaitGroup
				writer.Go(func() {
					out := json.NewEncoder(w)
					for range 10 {
						time.Sleep(row.pause)
						out.Encode(message{Image: &Image{Name: "a"}})
					}
					out.Encode(message{End: true})
				})
				images, _, err := collect(t.Context(), r)
				r.Close()
				writer.Wait()
				if !errors.Is(err, row.err) || err == nil && len(images) != 10 {
					t.Errorf("%d images, %v, want %v", len(images), err, row.err)
				}
			})
		})
	}
}
