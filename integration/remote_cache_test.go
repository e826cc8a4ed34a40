package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// caching is what info.json says of how digests are kept.
type caching struct {
	Mode   string `json:"cache_mode"`
	Reason string `json:"cache_reason"`
}

func (m *mounted) caching(image string) caching {
	m.t.Helper()
	var c caching
	if err := json.Unmarshal([]byte(m.read(image, "info.json")), &c); err != nil {
		m.t.Fatalf("info.json: %v", err)
	}
	return c
}

// Digests are kept where no change from outside can go unnoticed, and where
// the user promises that there is none.
func TestCache_modes(t *testing.T) {
	t.Parallel()
	needNBD(t)
	needRoot(t)
	d := newDisk(t)
	server := nbdkit(t, "--readonly", "file", d.raw)
	remote := d.path("remote.qcow2")
	output(t, "qemu-img", "create", "-q", "-f", "qcow2", "-u", "-b", server.uri(), "-F", "raw", remote, fmt.Sprint(diskSize))
	files := caching{"keep", "qemu locks the files, and changes show in their times"}
	export := caching{"none", "changes from outside to an NBD export cannot be seen"}
	const byOption = "by the option cache="
	for _, row := range []struct {
		name, source string
		want         caching
	}{
		{"raw", d.raw, caching{"keep", "changes from outside show in the file's times"}},
		{"raw-writable", newDisk(t).raw + ",writable", caching{"keep", "changes from outside show in the file's times"}},
		{"raw-none", d.raw + ",cache=none", caching{"none", byOption + "none"}},
		{"qcow2", d.convert(t, "a.qcow2", "qcow2"), files},
		{"qcow2-writable", d.convert(t, "b.qcow2", "qcow2") + ",writable", files},
		{"qcow2-none", d.convert(t, "c.qcow2", "qcow2") + ",cache=none", caching{"none", byOption + "none"}},
		{"vdi", d.convert(t, "a.vdi", "vdi"), files},
		{"remote-chain", remote + ",chain=trust", caching{"none", "the chain leads to something else than files"}},
		{"remote-chain-keep", remote + ",chain=trust,cache=keep", caching{"keep", byOption + "keep"}},
		{"nbd", server.uri(), export},
		{"nbd-writable", nbdkit(t, "memory", "1M").uri() + ",writable", export},
		{"nbd-keep", server.uri() + ",cache=keep", caching{"keep", byOption + "keep"}},
		{"device", loopDevice(t, d.raw, "--read-only"), caching{"none", "changes from outside to a device cannot be seen"}},
		{"device-keep", loopDevice(t, d.raw, "--read-only") + ",cache=keep", caching{"keep", byOption + "keep"}},
		{"device-writable", loopDevice(t, newDisk(t).raw) + ",writable", caching{"keep", "the device is held exclusively"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			m := mount(t, "x="+row.source)
			if diff := cmp.Diff(row.want, m.caching("x")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			// What is kept is found again, and what is not is done again.
			m.read("x", "checksum")
			before := m.info("x").Cache.Misses
			m.read("x", "checksum")
			if kept := m.info("x").Cache.Misses == before; row.want.Mode == "keep" && !kept {
				t.Errorf("%d misses before a second look at the checksum, %d after it", before, m.info("x").Cache.Misses)
			}
		})
	}
}

// With cache=none, the default of NBD, every open sees what others wrote.
func TestCache_none_is_never_stale(t *testing.T) {
	t.Parallel()
	needNBD(t)
	data := random(20, 4*mib)
	for _, writable := range []bool{false, true} {
		t.Run(fmt.Sprintf("writable %v", writable), func(t *testing.T) {
			s := nbdkit(t, "memory", fmt.Sprint(len(data)))
			s.write(data, 0)
			m := mount(t, fmt.Sprintf("--writable=%v", writable), "x="+s.uri())
			model := append([]byte{}, data...)
			m.checkDigests("x", newOracle(model))
			for i, off := range []int64{5, mib, 4*mib - 100} {
				old := hold(t, m.path("x", "checksum"), os.O_RDONLY)
				was, err := io.ReadAll(old)
				if err != nil {
					t.Fatal(err)
				}
				part := random(uint64(21+i), 100)
				copy(model[off:], part)
				s.write(part, off)
				m.checkDigests("x", newOracle(model))
				same(t, "map", m.read("x", "map"), nbdMap(t, s.uri()))
				// The moment of an older handle does not become another one.
				again := make([]byte, len(was))
				if _, err := old.ReadAt(again, 0); err == nil {
					same(t, "checksum of before", string(again), string(was))
				} else if !errors.Is(err, syscall.ESTALE) {
					t.Errorf("checksum of before: %v", err)
				}
			}
		})
	}
}

// cache=keep is the user's promise that nobody else writes, and invalidate is
// where he tells of it when somebody did.
func TestInvalidate(t *testing.T) {
	t.Parallel()
	needNBD(t)
	model := random(30, 4*mib+100)
	s := nbdkit(t, "memory", fmt.Sprint(len(model)))
	s.write(model, 0)
	m := mount(t, "x="+s.uri()+",cache=keep")
	m.expect(`level=WARN msg="bad line" image=x`)
	kept := newOracle(model)
	m.checkDigests("x", kept)
	// Each change becomes seen by what is told of it, and only then.
	for i, row := range []struct {
		name string
		tell string
		at   int64
	}{
		{"a byte", "%d 1\n", 3 * blockSize},
		{"a range in the middle of blocks", "%d 10\n", 4*blockSize - 5},
		{"all", "all\n", 7},
		{"no newline at the end", "%d 10", 9 * blockSize},
		{"several lines", "0 1\n\n%d 10\n 65536\t5 \n", 2 * mib},
		{"beyond the end", "%d 9223372036854775807\n", 4 * mib},
		{"beyond all numbers there are", "0 9223372036854775807\n", 10},
	} {
		part := random(uint64(31+i), 10)
		copy(model[row.at:], part)
		s.write(part, row.at)
		same(t, row.name+": checksum of before", m.read("x", "checksum"), kept.checksum())
		tell := row.tell
		if strings.Contains(tell, "%d") {
			tell = fmt.Sprintf(tell, row.at)
		}
		if err := os.WriteFile(m.path("x", "invalidate"), []byte(tell), 0); err != nil {
			t.Fatalf("%s: %v", row.name, err)
		}
		kept = newOracle(model)
		m.checkDigests("x", kept)
	}

	// A bad line is refused, and with it all that came in the same write.
	copy(model, "changed!")
	s.write(model[:8], 0)
	for _, line := range []string{"x", "1", "-1 5", "1 -5", "1 2 3", "0x10 5", "1.5 2", "ALL", "all 1",
		"9223372036854775808 1", "0 18446744073709551616", "\x00", strings.Repeat("1", 300)} {
		f := hold(t, m.path("x", "invalidate"), os.O_WRONLY)
		for _, text := range []string{line + "\n", "all\n" + line + "\n"} {
			if n, err := f.Write([]byte(text)); n > 0 || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("write of %.40q: %d, %v", text, n, err)
			}
		}
	}
	same(t, "checksum after bad lines", m.read("x", "checksum"), kept.checksum())
	output(t, "sh", "-c", `echo 0 8 >"$0"`, m.path("x", "invalidate"))
	m.checkDigests("x", newOracle(model))
}

// The file can be written only, and whoever walks the mount does not find it.
func TestInvalidate_is_for_writing(t *testing.T) {
	t.Parallel()
	needNBD(t)
	need(t, "find", "tar")
	s := nbdkit(t, "pattern", "1M")
	m := mount(t, "x="+s.uri()+",cache=keep")
	m.read("x", "checksum")
	path := m.path("x", "invalidate")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o200 || info.Size() != 0 {
		t.Errorf("mode %v, size %d", info.Mode(), info.Size())
	}
	for _, flags := range []int{os.O_RDONLY, os.O_RDWR} {
		if _, err := os.OpenFile(path, flags, 0); !errors.Is(err, syscall.EACCES) {
			t.Errorf("open with %#x: %v", flags, err)
		}
	}
	for what, err := range map[string]error{
		"chmod": os.Chmod(path, 0o600), "truncate": os.Truncate(path, 5), "remove": os.Remove(path),
		"rename": os.Rename(path, m.path("x", "y")),
	} {
		if err == nil {
			t.Errorf("%s is allowed", what)
		}
	}

	entries, err := os.ReadDir(m.path("x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "invalidate" {
			t.Error("it is listed")
		}
	}
	before := m.info("x").Generation
	copied := filepath.Join(scratch(t), "copy")
	for _, argv := range [][]string{
		{"grep", "-r", "-c", "no such line", m.dir}, {"cp", "-r", m.dir, copied}, {"find", m.dir, "-ls"},
		{"tar", "--warning=no-file-changed", "-C", m.dir, "-cf", "/dev/null", "."}, {"du", "-a", m.dir}, {"ls", "-lR", m.dir},
	} {
		if r := run(t, argv...); r.Stderr != "" || strings.Contains(r.Stdout, "invalidate") {
			t.Errorf("%q: %+v", argv, r)
		}
	}
	if after := m.info("x").Generation; after != before {
		t.Errorf("generation %d, before the crawlers %d", after, before)
	}
}
