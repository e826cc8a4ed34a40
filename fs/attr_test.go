package fs

import (
	"testing"

	"golang.org/x/sys/unix"
)

func ptr[T any](v T) *T { return &v }

func TestModes(t *testing.T) {
	for _, c := range []struct {
		name                       string
		mode                       *uint32
		file, dir, image, writable uint32
	}{
		{"default", nil, 0o400, 0o500, 0o400, 0o600},
		{"owner", ptr(uint32(0o400)), 0o400, 0o500, 0o400, 0o600},
		{"group reads", ptr(uint32(0o440)), 0o440, 0o550, 0o440, 0o640},
		{"group writes", ptr(uint32(0o660)), 0o440, 0o550, 0o440, 0o660},
		{"nobody, whatever that is for", ptr(uint32(0)), 0, 0, 0, 0o200},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &mount{o: Options{Mode: c.mode}}
			got := [...]uint32{m.fileMode(), m.dirMode(), m.imageMode(false), m.imageMode(true)}
			if want := [...]uint32{c.file, c.dir, c.image, c.writable}; got != want {
				t.Errorf("file, dir, image, writable image: %o, want %o", got, want)
			}
		})
	}
}

func TestOwnerOf_options(t *testing.T) {
	m := &mount{o: Options{UID: ptr(uint32(7)), GID: ptr(uint32(8))}}
	if got := m.ownerOf(&unix.Stat_t{Uid: 1, Gid: 2}); got != (owner{7, 8}) {
		t.Errorf("owner is %v, want that of the options", got)
	}
	m = &mount{o: Options{GID: ptr(uint32(8))}}
	want := owner{uint32(unix.Geteuid()), 8}
	if want.uid == 0 {
		want.uid = 1
	}
	if got := m.ownerOf(&unix.Stat_t{Uid: 1, Gid: 2}); got != want {
		t.Errorf("owner is %v, want %v", got, want)
	}
}

func TestIno_distinct(t *testing.T) {
	seen := map[uint64]bool{rootIno: true, tagIno: true, controlIno: true, versionIno: true, metricsIno: true, pidIno: true}
	for _, image := range []uint64{1, 2, maxImages - 1} {
		for k := kindDir; k <= kindSum; k++ {
			for _, low := range []uint64{0, 1, 1<<32 - 1, 1 << 32, 1<<lowBits - 1} {
				n := ino(image, k, low)
				if seen[n] {
					t.Errorf("ino(%d, %d, %d) is taken", image, k, low)
				}
				seen[n] = true
			}
		}
	}
	if kindSum >= 1<<kindBits {
		t.Error("too many kinds of files for their bits")
	}
}
