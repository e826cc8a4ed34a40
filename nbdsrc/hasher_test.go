//go:build cgo

package nbdsrc

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"hashfs/blockcache"
	"hashfs/hasher"
)

// image makes an Image of an export.
func newImage(t *testing.T, e *Export) *hasher.Image {
	t.Helper()
	spec, err := hasher.ParseSpec("sha256")
	check(t, err)
	pool := hasher.NewPool(2, false)
	im, err := hasher.New(e, hasher.Options{Spec: spec, Cache: blockcache.New(1 << 20), Pool: pool})
	check(t, err)
	t.Cleanup(func() {
		im.Close()
		pool.Close()
	})
	return im
}

func checksum(ctx context.Context, im *hasher.Image) ([]byte, error) {
	v, err := im.OpenView(ctx)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	return v.Checksum(ctx)
}

// checkSum compares an image's checksum with that of the bytes.
func checkSum(t *testing.T, im *hasher.Image, model []byte) {
	t.Helper()
	want, err := hasher.SumReader(t.Context(), bytes.NewReader(model), im.Spec(), nil)
	check(t, err)
	got, err := checksum(t.Context(), im)
	check(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("checksum %x, want %x", got, want)
	}
}

// TestImage_killed: a server killed in the middle of a hash gives errors, and
// the right checksum once it is back, with other content.
func TestImage_killed(t *testing.T) {
	path := diskFile(t, content(8<<20))
	s := nbdkit(t, "--filter=delay", "file", path, "rdelay=50ms")
	e := s.open(Options{Timeout: time.Second})
	im := newImage(t, e)
	var wg sync.WaitGroup
	wg.Go(func() {
		if sum, err := checksum(t.Context(), im); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %x, %v", sum, err)
		}
	})
	inFlight(t, e, 2)
	s.kill()
	wg.Wait()
	other := bytes.Repeat([]byte("other"), 8<<20/5)
	check(t, os.WriteFile(path, other, 0o600))
	s.start()
	until(t, "it is connected again", func() bool { return e.Connections() > 0 })
	checkSum(t, im, other)
}

// TestImage_writeOverReconnect: a write that waits for the server and is done
// in the next session must not hide that the content is another.
func TestImage_writeOverReconnect(t *testing.T) {
	path := diskFile(t, content(1<<20))
	s := nbdkit(t, "file", path)
	e := s.open(Options{Writable: true})
	im := newImage(t, e)
	checkSum(t, im, content(1<<20))
	s.kill()
	until(t, "the loss is known", func() bool { return e.Connections() == 0 })
	var wg sync.WaitGroup
	wg.Go(func() { check2(t)(im.WriteAt(t.Context(), []byte("written"), 1<<19)) })
	other := bytes.Repeat([]byte{7}, 1<<20)
	check(t, os.WriteFile(path, other, 0o600))
	s.start()
	wg.Wait()
	copy(other[1<<19:], "written")
	checkSum(t, im, other)
}

// TestImage_unknownOutcome: a stalled server does the write after it was given
// up, and after the image was read.
func TestImage_unknownOutcome(t *testing.T) {
	path := diskFile(t, make([]byte, 1<<20))
	s := qemuNBD(t, path, "-e", "8")
	e := s.open(Options{Writable: true, Timeout: 500 * time.Millisecond})
	im := newImage(t, e)
	checkSum(t, im, make([]byte, 1<<20))
	s.stop()
	if _, err := im.WriteAt(t.Context(), bytes.Repeat([]byte{9}, 4096), 0); !errors.Is(err, hasher.ErrUnknownOutcome) {
		t.Errorf("write: %v", err)
	}
	if _, err := im.ReadAt(t.Context(), make([]byte, 1), 0); err == nil || errors.As(err, new(syscall.Errno)) {
		t.Errorf("read: %v", err)
	}
	s.carryOn()
	until(t, "it is connected again", func() bool { return e.Connections() > 0 })
	if _, err := checksum(t.Context(), im); err != nil {
		t.Error(err)
	}
	// Whatever it found, the write may be done now, or as here another.
	now := bytes.Repeat([]byte{1}, 1<<20)
	check(t, os.WriteFile(path, now, 0o600))
	v, err := im.OpenView(t.Context())
	check(t, err)
	defer v.Close()
	got := make([]byte, 32)
	check(t, v.ReadDigests(t.Context(), got, 0))
	h := im.Spec().Algorithm.New()
	h.Write(now[:im.Spec().BlockSize])
	if !bytes.Equal(got, h.Sum(nil)) {
		t.Errorf("the digest of a block in doubt was kept")
	}
}

// TestImage_errorForAWhile: a block that cannot be read is an error, its
// neighbours are not, and nothing of it is left when it can be.
func TestImage_errorForAWhile(t *testing.T) {
	trigger := shortDir(t) + "/trigger"
	check(t, os.WriteFile(trigger, nil, 0o600))
	model := content(1 << 20)
	s := nbdkit(t, "--filter=error", "file", diskFile(t, model), "error-pread=EIO", "error-pread-rate=1", "error-file="+trigger)
	im := newImage(t, s.open(Options{}))
	var read *hasher.ReadError
	if _, err := checksum(t.Context(), im); !errors.As(err, &read) || !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v", err)
	}
	check(t, os.Remove(trigger))
	checkSum(t, im, model)
}

// TestImage_map compares with what nbdinfo says.
func TestImage_map(t *testing.T) {
	need(t, "nbdinfo")
	model := content(3 << 20)
	for name, run := range map[string]func() *server{
		"nbdkit":   func() *server { return nbdkit(t, "file", sparseFile(t, model)) },
		"qemu-nbd": func() *server { return qemuNBD(t, sparseFile(t, model), "-e", "8") },
		"random":   func() *server { return nbdkit(t, "sparse-random", "1G", "seed=1") },
		"pattern":  func() *server { return nbdkit(t, "pattern", "1M") },
	} {
		t.Run(name, func(t *testing.T) {
			s := run()
			out, err := exec.Command("nbdinfo", "--map", s.uri()).Output()
			check(t, err)
			var want []hasher.Extent
			for line := range strings.Lines(string(out)) {
				f := strings.Fields(line)
				n := make([]int64, 3)
				for i := range n {
					n[i], err = strconv.ParseInt(f[i], 10, 64)
					check(t, err)
				}
				want = append(want, hasher.Extent{Offset: n[0], Length: n[1], Type: uint32(n[2])})
			}
			got, err := newImage(t, s.open(Options{})).Map(t.Context())
			check(t, err)
			if d := cmp.Diff(want, got.Extents); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestImage_data compares a disk of nbdkit's data language, over all kinds of
// servers, with what nbdcopy reads.
func TestImage_data(t *testing.T) {
	need(t, "nbdcopy")
	const language = `data=@0x10000 "begin" @0x200000 ( 0x55 0xaa )*1000 @0x3ffff0 "end"`
	for name, args := range map[string][]string{
		"data":             {"data", language, "size=4194405"},
		"sparse-random":    {"sparse-random", "16M", "seed=3"},
		"behind blocksize": {"--filter=blocksize", "--filter=noparallel", "data", language, "size=4194816", "minblock=512", "maxdata=64k"},
		"noextents":        {"--filter=noextents", "data", language, "size=4194405"},
	} {
		t.Run(name, func(t *testing.T) {
			s := nbdkit(t, args...)
			model, err := exec.Command("nbdcopy", s.uri(), "-").Output()
			check(t, err)
			e := s.open(Options{})
			checkReads(t, e, model)
			checkSum(t, newImage(t, e), model)
		})
	}
}
