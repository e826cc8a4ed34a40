package qemunbd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestServe_formats(t *testing.T) {
	want := content(1)
	for _, row := range []struct {
		name, file, format string
		args               []string // of qemu-img convert
	}{
		{name: "qcow2", file: "a.qcow2", format: "qcow2"},
		{name: "qcow2 of version 2", file: "a.qcow2", format: "qcow2", args: []string{"-o", "compat=0.10"}},
		{name: "compressed qcow2", file: "a.qcow2", format: "qcow2", args: []string{"-c"}},
		{name: "qcow2 with small clusters", file: "a.qcow2", format: "qcow2", args: []string{"-o", "cluster_size=512"}},
		{name: "qcow2 with a data file", file: "a.qcow2", format: "qcow2", args: []string{"-o", "data_file=a.data"}},
		{name: "qcow2 with a raw data file", file: "a.qcow2", format: "qcow2", args: []string{"-o", "data_file=a.data,data_file_raw=on"}},
		{name: "vmdk", file: "a.vmdk", format: "vmdk"},
		{name: "vmdk, monolithicFlat", file: "a.vmdk", format: "vmdk", args: []string{"-o", "subformat=monolithicFlat"}},
		{name: "vmdk, twoGbMaxExtentFlat", file: "a.vmdk", format: "vmdk", args: []string{"-o", "subformat=twoGbMaxExtentFlat"}},
		{name: "vmdk, twoGbMaxExtentSparse", file: "a.vmdk", format: "vmdk", args: []string{"-o", "subformat=twoGbMaxExtentSparse"}},
		{name: "vmdk, streamOptimized", file: "a.vmdk", format: "vmdk", args: []string{"-o", "subformat=streamOptimized"}},
		{name: "vhdx", file: "a.vhdx", format: "vhdx"},
		{name: "vdi", file: "a.vdi", format: "vdi"},
		{name: "vpc", file: "a.vhd", format: "vpc", args: []string{"-o", "force_size=on"}},
		{name: "fixed vpc", file: "a.vhd", format: "vpc", args: []string{"-o", "subformat=fixed,force_size=on"}},
		{name: "qed", file: "a.qed", format: "qed"},
		{name: "qcow", file: "a.qcow", format: "qcow"},
		{name: "parallels", file: "a.hds", format: "parallels"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			path := convert(t, want, row.file, row.format, row.args...)
			o := Options{Path: path}
			if FormatOf(path) == "" {
				o.Format = row.format
			}
			s := serve(t, o)
			got := read(t, s)
			// vhdx and vpc images end at a whole MiB or cylinder.
			if len(got) < len(want) || string(got[:len(want)]) != string(want) ||
				strings.Trim(string(got[len(want):]), "\x00") != "" {
				t.Errorf("%d bytes differ from the %d expected", len(got), len(want))
			}
		})
	}
}

func TestServe_offers_multi_conn(t *testing.T) {
	for _, writable := range []bool{false, true} {
		path := convert(t, content(1), filepath.Join(t.TempDir(), "a.qcow2"), "qcow2")
		s := serve(t, Options{Path: path, Writable: writable})
		if info := run(t, "nbdinfo", s.URI()); !strings.Contains(info, "can_multi_conn: true") {
			t.Errorf("writable %v: %s", writable, info)
		} else if strings.Contains(info, "is_read_only: true") == writable {
			t.Errorf("writable %v, but %s", writable, info)
		}
	}
}

// overlay makes an image over another one, with the name as it is given.
func overlay(t *testing.T, path, format, backing, backingFormat string) string {
	t.Helper()
	args := []string{"create", "-q", "-f", format, "-b", backing}
	if backingFormat != "" {
		args = append(args, "-F", backingFormat)
	}
	run(t, "qemu-img", append(args, "file:"+path)...)
	return path
}

func TestServe_chains(t *testing.T) {
	want := content(2)
	for _, row := range []struct {
		name string
		make func(t *testing.T) string
		want int // files
	}{
		{"over raw", func(t *testing.T) string {
			raw(t, ".", want)
			return overlay(t, "top.qcow2", "qcow2", "content.raw", "raw")
		}, 2},
		{"over qcow2 over qcow2 over raw", func(t *testing.T) string {
			raw(t, ".", want)
			overlay(t, "a.qcow2", "qcow2", "content.raw", "raw")
			overlay(t, "b.qcow2", "qcow2", "a.qcow2", "qcow2")
			return overlay(t, "top.qcow2", "qcow2", "b.qcow2", "qcow2")
		}, 4},
		{"over a vmdk with extents", func(t *testing.T) string {
			convert(t, want, "base.vmdk", "vmdk", "-o", "subformat=twoGbMaxExtentSparse")
			return overlay(t, "top.qcow2", "qcow2", "base.vmdk", "vmdk")
		}, 3},
		{"vmdk over vmdk", func(t *testing.T) string {
			convert(t, want, "base.vmdk", "vmdk")
			return overlay(t, "top.vmdk", "vmdk", "base.vmdk", "vmdk")
		}, 2},
		{"qed over raw", func(t *testing.T) string {
			raw(t, ".", want)
			return overlay(t, "top.qed", "qed", "content.raw", "raw")
		}, 2},
		{"over raw that looks like qcow2", func(t *testing.T) string {
			convert(t, want, "inner.qcow2", "qcow2")
			data, err := os.ReadFile("inner.qcow2")
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, "content.raw", data)
			overlay(t, "top.qcow2", "qcow2", "content.raw", "raw")
			return "top.qcow2"
		}, 2},
		{"relative to a link's own directory", func(t *testing.T) string {
			raw(t, ".", want)
			if err := os.Mkdir("elsewhere", 0o755); err != nil {
				t.Fatal(err)
			}
			overlay(t, "top.qcow2", "qcow2", "content.raw", "raw")
			if err := os.Rename("top.qcow2", "elsewhere/top.qcow2"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("elsewhere/top.qcow2", "link.qcow2"); err != nil {
				t.Fatal(err)
			}
			return "link.qcow2"
		}, 2},
		{"64 levels", func(t *testing.T) string {
			raw(t, ".", want)
			name, format := "content.raw", "raw"
			for i := range maxDepth {
				name, format = backed(t, fmt.Sprintf("%d.qcow2", i), name, format), "qcow2"
			}
			return name
		}, maxDepth + 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			need(t, "qemu-img", "qemu-nbd")
			t.Chdir(t.TempDir())
			path := row.make(t)
			o := Options{Path: path}
			if FormatOf(path) == "" {
				o.Format = "qed"
			}
			s := serve(t, o)
			if data, err := os.ReadFile("content.raw"); err == nil {
				wantContent(t, s, data)
			} else {
				wantContent(t, s, want)
			}
			if files := s.Files(); len(files) != row.want || filepath.Base(files[0]) != path {
				t.Errorf("%d files, want %d: %q", len(files), row.want, files)
			}
		})
	}
}

// What a name has in it must mean nothing to QEMU.
func TestServe_names(t *testing.T) {
	want := content(3)
	for _, name := range []string{
		"a,b.qcow2", "a,,file.filename=b.qcow2", "with space.qcow2", `quo"te's.qcow2`, "100%s%n.qcow2",
		"-leading.qcow2", "--image-opts.qcow2", "foo:bar.qcow2", "json:x.qcow2", `json:{"driver":"null-co"}.qcow2`,
		"nbd:localhost.qcow2", "new\nline.qcow2", "not\xffutf8.qcow2", "back\\slash.qcow2", "=.qcow2", "$(id).qcow2",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			convert(t, want, "plain.qcow2", "qcow2")
			if err := os.Rename("plain.qcow2", name); err != nil {
				t.Fatal(err)
			}
			s := serve(t, Options{Path: name})
			wantContent(t, s, want)
			if files := s.Files(); len(files) != 1 || files[0] != filepath.Join(dir, name) {
				t.Errorf("files are %q", files)
			}
		})
	}
}

func TestServe_writes(t *testing.T) {
	need(t, "qemu-img", "qemu-nbd", "qemu-io")
	for _, row := range []struct {
		name, file, format string
		args               []string
	}{
		{name: "qcow2", file: "a.qcow2", format: "qcow2"},
		{name: "qcow2 with a data file", file: "a.qcow2", format: "qcow2", args: []string{"-o", "data_file=a.data"}},
		{name: "vmdk", file: "a.vmdk", format: "vmdk"},
		{name: "vmdk with extents", file: "a.vmdk", format: "vmdk", args: []string{"-o", "subformat=twoGbMaxExtentSparse"}},
		{name: "vhdx", file: "a.vhdx", format: "vhdx"},
		{name: "vdi", file: "a.vdi", format: "vdi"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			want := content(4)
			path := convert(t, want, row.file, row.format, row.args...)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s := serve(t, Options{Path: path, Writable: true})
			run(t, "qemu-io", "-f", "raw", "-c", "write -P 0x55 64k 128k", "-c", "write -z -u 3M 64k", "-c", "flush", s.URI())
			for i := range 128 << 10 {
				want[64<<10+i] = 0x55
			}
			clear(want[3<<20 : 3<<20+64<<10])
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			to := filepath.Join(t.TempDir(), "copy")
			run(t, "qemu-img", "convert", "-f", row.format, "-O", "raw", path, to)
			got, err := os.ReadFile(to)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Error("what was written is not there")
			}
			run(t, "qemu-img", "info", path)
			if row.name == "vmdk with extents" {
				after, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				was, is := cidLine().FindSubmatch(before), cidLine().FindSubmatch(after)
				if string(was[1]) == string(is[1]) {
					t.Error("images over this one cannot tell that it was written: its CID is as before")
				}
				if strings.Contains(string(after), "/proc/") || len(after) != len(before) {
					t.Errorf("the descriptor is %q", after)
				}
			}
		})
	}
}

func TestServe_snapshot(t *testing.T) {
	need(t, "qemu-img", "qemu-nbd", "qemu-io")
	t.Chdir(t.TempDir())
	old := content(5)
	path := convert(t, old, "a.qcow2", "qcow2")
	for _, name := range []string{"snapshot.a,b=c", "two", "2"} {
		run(t, "qemu-img", "snapshot", "-c", name, path)
		run(t, "qemu-io", "-c", "write -P 0x66 0 1M", path)
	}
	now := append([]byte(strings.Repeat("\x66", 1<<20)), old[1<<20:]...)
	for _, row := range []struct {
		name string
		want []byte
	}{
		{"snapshot.a,b=c", old},
		{"1", old}, // an ID
		{"2", now}, // a name rather than the ID of another
		{"two", now},
		{"", now},
	} {
		t.Run("snapshot "+row.name, func(t *testing.T) {
			s := serve(t, Options{Path: path, Snapshot: row.name})
			wantContent(t, s, row.want)
		})
	}
	refused(t, Options{Path: path, Snapshot: "three"}, `no snapshot "three"`, "two")
	refused(t, Options{Path: path, Snapshot: "two", Writable: true}, "cannot be written")

	run(t, "qemu-img", "resize", "-q", path, "12M")
	refused(t, Options{Path: path, Snapshot: "two"}, "6291456 bytes", "12582912")
}
