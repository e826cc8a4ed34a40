package filesrc

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLooksLike_qemu has qemu-img make each format.
func TestLooksLike_qemu(t *testing.T) {
	tool(t, "qemu-img")
	dir := t.TempDir()
	for _, tc := range []struct{ name, format, options, want string }{
		{"qcow", "qcow", "", "qcow"},
		{"qcow2 version 2", "qcow2", "compat=0.10", "qcow2"},
		{"qcow2 version 3", "qcow2", "compat=1.1", "qcow2"},
		{"vmdk sparse", "vmdk", "subformat=monolithicSparse", "vmdk"},
		{"vmdk descriptor", "vmdk", "subformat=monolithicFlat", "vmdk"},
		{"vmdk stream", "vmdk", "subformat=streamOptimized", "vmdk"},
		{"vhdx", "vhdx", "", "vhdx"},
		{"vdi", "vdi", "", "vdi"},
		{"vhd dynamic", "vpc", "subformat=dynamic", "vhd"},
		{"vhd fixed", "vpc", "subformat=fixed", "vhd"},
		{"raw", "raw", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(tc.name, " ", "-"))
			args := []string{"create", "-q", "-f", tc.format, path, "4M"}
			if tc.options != "" {
				args = append(args, "-o", tc.options)
			}
			if out, err := exec.Command("qemu-img", args...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if got := LooksLike(path); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLooksLike(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	check(t, unix.Mkfifo(fifo, 0o600))
	for _, tc := range []struct{ name, content, want string }{
		{"empty", "", ""},
		{"one byte", "Q", ""},
		{"magic without version", "QFI\xfb", ""},
		{"esx extent", "COWD\x01", "vmdk"},
		{"descriptor", "# Disk DescriptorFile\nversion=1\n", "vmdk"},
		{"other text", "# Disk\n", ""},
		{"magic elsewhere", "xKDMV", ""},
		{"luks", "LUKS\xba\xbe\x00\x01", ""},
		{"zeros", strings.Repeat("\x00", 4096), ""},
		{"footer", strings.Repeat("x", 512) + "conectix" + strings.Repeat("x", 504), "vhd"},
		{"footer not at the end", strings.Repeat("x", 512) + "conectix" + strings.Repeat("x", 505), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := LooksLike(writeFile(t, filepath.Join(dir, "file"), []byte(tc.content))); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	for _, path := range []string{fifo, dir, filepath.Join(dir, "none"), "/dev/null"} {
		if got := LooksLike(path); got != "" {
			t.Errorf("%s looks like %q", path, got)
		}
	}
}
