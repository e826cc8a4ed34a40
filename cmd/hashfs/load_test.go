//go:build cgo

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestSum_noLibnbd: without libnbd there is no NBD, and all else goes on. It is
// a file here that no loader takes for a library.
func TestSum_noLibnbd(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "libnbd.so.0"), "")
	write(t, filepath.Join(dir, "x.img"), "x")
	with := run(t, dir, "sum", "x.img")
	t.Setenv("LD_LIBRARY_PATH", dir)
	if without := run(t, dir, "sum", "x.img"); without != with || without.Status != 0 {
		t.Errorf("a raw file: got %+v, want %+v", without, with)
	}
	got := run(t, dir, "sum", "nbd://localhost")
	want := "cannot load libnbd: install version 1.14 or later (Debian's package libnbd0): " + dir + "/libnbd.so.0: file too short\n"
	if got.Status != 1 || got.Stdout != "" || !strings.HasSuffix(got.Stderr, want) || strings.Count(got.Stderr, "\n") != 1 {
		t.Errorf("NBD: got %+v, want %s", got, want)
	}
}
