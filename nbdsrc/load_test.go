//go:build cgo

package nbdsrc

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOpen_notLoaded runs itself with something else in libnbd's place.
func TestOpen_notLoaded(t *testing.T) {
	const wantKey = "NBDSRC_TEST_NOT_LOADED"
	if want := os.Getenv(wantKey); want != "" {
		_, err := Open(t.Context(), "nbd://localhost", Options{})
		if !errors.Is(err, ErrNotLoaded) || !strings.HasPrefix(err.Error(), "open nbd://localhost: cannot load libnbd: install ") ||
			!strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
		_, err = OpenImage(t.Context(), ImageOptions{Path: "disk.qcow2", Format: "qcow2"})
		if !errors.Is(err, ErrNotLoaded) || !strings.HasPrefix(err.Error(), "open disk.qcow2: cannot load libnbd: install ") {
			t.Errorf("got %v", err)
		}
		return
	}
	need(t, "gcc")
	for _, tc := range []struct {
		name, want string
		make       func(path string) error
	}{
		{"no library", "/libnbd.so.0: file too short", func(path string) error {
			return os.WriteFile(path, nil, 0o600)
		}},
		{"too old", "/libnbd.so.0: undefined symbol: nbd_create", func(path string) error {
			return exec.Command("gcc", "-shared", "-o", path, "-x", "c", os.DevNull).Run()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			check(t, tc.make(filepath.Join(dir, "libnbd.so.0")))
			cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^TestOpen_notLoaded$")
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, wantKey+"="+dir+tc.want)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestOpen_notLoaded") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
