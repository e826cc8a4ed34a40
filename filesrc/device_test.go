package filesrc

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hashfs/hasher"
)

// loopDevice attaches a loop device to a new file of size bytes.
func loopDevice(t *testing.T, size int64, args ...string) (device, backing string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	backing = filepath.Join(t.TempDir(), "disk.raw")
	if err := os.WriteFile(backing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(backing, size); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", append(args, "--show", "-f", backing)...).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v: %s", err, out)
		}
	})
	return device, backing
}

func TestDevice_readWriteZero(t *testing.T) {
	for _, sector := range []string{"512", "4096"} {
		t.Run(sector, func(t *testing.T) {
			const size = 1 << 20
			device, _ := loopDevice(t, size, "-b", sector)
			f, err := Open(device, Options{Writable: true})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if !f.Device() || f.Size() != size {
				t.Fatalf("device %v, size %d", f.Device(), f.Size())
			}
			want := make([]byte, size)
			rand.NewChaCha8([32]byte{}).Read(want)
			if _, err := f.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
			for _, r := range [][2]int64{{0, 4096}, {5000, 100}, {8191, 20000}, {100000, 8192}, {size - 700, 700}} {
				for _, punch := range []bool{false, true} {
					if err := f.Zero(r[0], r[1], punch); err != nil {
						t.Fatalf("zero %v, punch %v: %v", r, punch, err)
					}
				}
				clear(want[r[0] : r[0]+r[1]])
			}
			if err := f.Allocate(0, size); err != nil {
				t.Error(err)
			}
			if err := f.Flush(); err != nil {
				t.Error(err)
			}
			got := make([]byte, size)
			for _, read := range []func([]byte, int64) (int, error){
				f.ReadAt,
				func(p []byte, off int64) (int, error) { return f.ScanAt(p, off, true) },
			} {
				clear(got)
				if _, err := read(got, 0); err != nil || !bytes.Equal(got, want) {
					t.Errorf("read back: %v, equal %v", err, bytes.Equal(got, want))
				}
			}
			err = f.Extents(context.Background(), 0, size, func(e hasher.Extent) bool {
				if e != (hasher.Extent{Offset: 0, Length: size}) {
					t.Errorf("extent %+v of a device", e)
				}
				return true
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDevice_writableIsExclusive(t *testing.T) {
	device, _ := loopDevice(t, 1<<20)
	f, err := Open(device, Options{Writable: true})
	if err != nil {
		t.Fatal(err)
	}
	if fd, err := unix.Open(device, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0); err == nil {
		unix.Close(fd)
		t.Error("another exclusive open succeeds")
	}
	if _, err := Open(device, Options{Writable: true}); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a second writable image: %v", err)
	}
	r, err := Open(device, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	f.Close()
}

func TestDevice_resizeShowsInStamp(t *testing.T) {
	device, backing := loopDevice(t, 1<<20)
	f, err := Open(device, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before, err := f.Stamp()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := f.Stamp(); err != nil || again != before {
		t.Errorf("stamp %+v, then %+v, %v", before, again, err)
	}
	if err := os.Truncate(backing, 3<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("losetup", "-c", device).CombinedOutput(); err != nil {
		t.Fatalf("losetup -c: %v: %s", err, out)
	}
	if after, err := f.Stamp(); err != nil || after == before || f.Size() != 3<<20 {
		t.Errorf("after a resize: stamp %+v, size %d, %v", after, f.Size(), err)
	}
}

func TestDevice_largerThan2TiB(t *testing.T) {
	const size = 5 << 40
	device, _ := loopDevice(t, size)
	f, err := Open(device, Options{Writable: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Size() != size {
		t.Fatalf("size %d", f.Size())
	}
	p := []byte("at the far end")
	if _, err := f.WriteAt(p, size-int64(len(p))); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(p))
	if _, err := f.ReadAt(got, size-int64(len(p))); err != nil || !bytes.Equal(got, p) {
		t.Errorf("%q, %v", got, err)
	}
}
