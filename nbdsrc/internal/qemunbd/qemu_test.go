package qemunbd

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// need skips the test without a program, and fails it in CI.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can take on the rights of others")
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// openDir returns a directory that all may enter. That of t.TempDir lies in one
// that only we may.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const imageSize = 6 << 20

// content is data, zeros and holes. Its tail is no multiple of a cluster.
func content(seed uint64) []byte {
	p := make([]byte, imageSize)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(p[:1<<20])
	_, _ = r.Read(p[3<<20 : 3<<20+70000])
	_, _ = r.Read(p[imageSize-512:])
	return p
}

func writeFile(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// raw writes content to a file in dir.
func raw(t *testing.T, dir string, data []byte) string {
	return writeFile(t, filepath.Join(dir, "content.raw"), data)
}

// convert makes an image with data at path.
func convert(t *testing.T, data []byte, path, format string, args ...string) string {
	t.Helper()
	need(t, "qemu-img", "qemu-nbd")
	from := raw(t, t.TempDir(), data)
	args = append([]string{"convert", "-f", "raw", "-O", format}, args...)
	// A colon in a name is a protocol to qemu-img.
	run(t, "qemu-img", append(args, from, "file:"+path)...)
	return path
}

// A lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// runtimeDir gives the test a runtime directory of its own, and checks at the
// end that nothing is left in it.
func runtimeDir(t *testing.T) string {
	t.Helper()
	// Shorter than t.TempDir: sockets have to fit.
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Cleanup(func() {
		if left, _ := filepath.Glob(dir + "/*/*"); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		os.RemoveAll(dir)
	})
	return dir
}

// serve starts a server that ends with the test.
func serve(t *testing.T, o Options) *Server {
	t.Helper()
	need(t, "qemu-nbd", "nbdcopy", "nbdinfo")
	if os.Getenv("XDG_RUNTIME_DIR") == "" || !strings.HasPrefix(os.Getenv("XDG_RUNTIME_DIR"), os.TempDir()) {
		runtimeDir(t)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s, err := Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// read returns all that a server serves.
func read(t *testing.T, s *Server) []byte {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	run(t, "nbdcopy", s.URI(), to)
	data, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func wantContent(t *testing.T, s *Server, want []byte) {
	t.Helper()
	if got := read(t, s); !bytes.Equal(got, want) {
		t.Errorf("%d bytes differ from the %d expected", len(got), len(want))
	}
}

// refused checks that Start fails, with all of want in one line.
func refused(t *testing.T, o Options, want ...string) error {
	t.Helper()
	if os.Getenv("XDG_RUNTIME_DIR") == "" || !strings.HasPrefix(os.Getenv("XDG_RUNTIME_DIR"), os.TempDir()) {
		runtimeDir(t)
	}
	s, err := Start(context.Background(), o)
	if err == nil {
		s.Close()
		t.Fatalf("%s was served; want an error with %q", o.Path, want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got %q\nwant it to have %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "/proc/self/fd") != strings.Contains(strings.Join(want, ""), "/proc/self/fd") {
		t.Errorf("not one clear line: %q", err)
	}
	t.Log(err)
	return err
}

// eventually waits for what another process does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}
