package nbdsrc

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestOpen_notBuilt runs itself without cgo, where Open says so.
func TestOpen_notBuilt(t *testing.T) {
	if errors.Is(loadLibnbd(), ErrNotBuilt) {
		_, err := Open(t.Context(), "nbd://localhost", Options{})
		if !errors.Is(err, ErrNotBuilt) || !strings.HasPrefix(err.Error(), "open nbd://localhost: built without NBD support") {
			t.Errorf("got %v", err)
		}
		return
	}
	cmd := exec.Command("go", "test", "-count=1", "-v", "-run", "^"+t.Name()+"$", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}
