package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1750000000")
	read := func() map[string]string {
		dir := t.TempDir()
		if err := generate(filepath.Join(dir, "man"), filepath.Join(dir, "completions"), "1.2.3"); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		paths, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			files[filepath.Base(path)] = string(content)
		}
		return files
	}
	files := read()
	for _, name := range []string{"hashfs.1", "hashfs-mount.1", "hashfs-umount.1", "hashfs-status.1", "hashfs-sum.1", "hashfs-version.1"} {
		page := files[name]
		for _, section := range []string{".SH NAME", ".SH SYNOPSIS", ".SH USAGE", ".SH EXIT STATUS", ".SH EXAMPLE"} {
			if !strings.Contains(page, section) {
				t.Errorf("%s has no %s", name, section)
			}
		}
		if !strings.Contains(page, "hashfs 1.2.3") {
			t.Errorf("%s does not name the version", name)
		}
	}
	if !strings.Contains(files["hashfs-sum.1"], `written with \\n, \\r and \\\\, and`) {
		t.Error("hashfs-sum.1 has lost backslashes")
	}
	for _, name := range []string{"hashfs.bash", "_hashfs", "hashfs.fish"} {
		if !strings.Contains(files[name], "hashfs") {
			t.Errorf("no completion %s", name)
		}
	}
	for name := range files {
		if strings.Contains(name, "probe") || strings.Contains(name, "mount.") && name != "hashfs-mount.1" && name != "hashfs-umount.1" {
			t.Errorf("a page for a hidden command: %s", name)
		}
	}
	for name, content := range read() {
		if content != files[name] {
			t.Errorf("%s cannot be reproduced", name)
		}
	}
}
