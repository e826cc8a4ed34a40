package qemunbd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFileName(t *testing.T) {
	for _, row := range []struct{ name, path, protocol string }{
		{"a.raw", "a.raw", ""},
		{"/x/a:b", "/x/a:b", ""},
		{"./a:b", "./a:b", ""},
		{"a:b", "", "a:"},
		{"file:a", "a", ""},
		{"file:/x:y", "/x:y", ""},
		{"file:nbd:x", "nbd:x", ""}, // a file of that name
		{"json:{}", "", "json:"},
		{"nbd://h/x", "", "nbd:"},
		{":x", "", ":"},
	} {
		path, protocol := fileName(row.name)
		if path != row.path || protocol != row.protocol {
			t.Errorf("%q is %q, %q; want %q, %q", row.name, path, protocol, row.path, row.protocol)
		}
	}
}

func TestDescriptor(t *testing.T) {
	const head = "# Disk DescriptorFile\nversion=1\nCID=123\nparentCID=ffffffff\ncreateType=\"vmfs\"\n"
	for _, row := range []struct {
		name, text string
		ok         bool
	}{
		{"one extent", head + "RW 8 VMFS \"a b,c.vmdk\"\n", true},
		{"windows lines", strings.ReplaceAll(head+"RW 8 FLAT \"a\" 0\n", "\n", "\r\n"), true},
		{"no extents", head, false},
		{"no CID", strings.Replace(head, "CID=123", "", 1) + "RW 8 VMFS \"a\"\n", false},
		{"flat without offset", head + "RW 8 FLAT \"a\"\n", false},
		{"sparse with offset", head + "RW 8 SPARSE \"a\" 0\n", false},
		{"zero extent", head + "RW 8 ZERO\n", false},
		{"read-only extent", head + "RDONLY 8 FLAT \"a\" 0\n", false},
		{"no sectors", head + "RW 0 VMFS \"a\"\n", false},
		{"too many sectors", head + "RW 99999999999999999 VMFS \"a\"\n", false},
		{"device", head + "RW 8 VMFSRDM \"a\"\n", false},
	} {
		d, err := parseDescriptor([]byte(row.text))
		if (err == nil) != row.ok {
			t.Errorf("%s: %v", row.name, err)
		}
		if err == nil && len(d.extents) != 1 {
			t.Errorf("%s: %+v", row.name, d)
		}
	}
}

func TestCIDPatch(t *testing.T) {
	for _, row := range []struct{ name, old, ours, want string }{
		{"changed", "x\nCID=0badc0de\n", "CID=12345678\n", "x\nCID=12345678\n"},
		{"shorter", "CID=0badc0de\nparentCID=ffffffff\n", "CID=45678\n", "CID=00045678\nparentCID=ffffffff\n"},
		{"narrow", "CID=123\n", "CID=12345678\n", "CID=678\n"},
		{"same", "CID=0BADC0DE\n", "CID=badc0de\n", ""},
		{"none", "parentCID=1\n", "CID=1\n", ""},
	} {
		p, ok := cidPatch([]byte(row.old), []byte(row.ours))
		got := ""
		if ok {
			b := []byte(row.old)
			copy(b[p.offset:], p.text)
			got = string(b)
		}
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

func TestOwner_mode_bits(t *testing.T) {
	o := &owner{uid: 10, groups: []uint32{20, 21}}
	for _, row := range []struct {
		name     string
		uid, gid uint32
		mode     uint32
		acl, ok  bool
	}{
		{"own", 10, 1, 0o400, false, true},
		{"own, kept from himself", 10, 20, 0o077, false, false},
		{"group", 1, 21, 0o040, false, true},
		{"kept from the group", 1, 21, 0o004, false, false},
		{"all", 1, 1, 0o004, false, true},
		{"nobody", 1, 1, 0o770, false, false},
		{"all, with a list", 1, 1, 0o004, true, false},
		{"own, with a list", 10, 1, 0o400, true, true},
	} {
		st := unix.Stat_t{Uid: row.uid, Gid: row.gid, Mode: row.mode}
		if ok := o.has(&st, 4, row.acl); ok != row.ok {
			t.Errorf("%s: %v", row.name, ok)
		}
	}
}

// FuzzLinks feeds the readers of headers: they may not fail in other ways than
// by an error, nor believe a length.
func FuzzLinks(f *testing.F) {
	dir := f.TempDir()
	for _, format := range formats {
		path := filepath.Join(dir, "a."+format)
		if exec.Command("qemu-img", "create", "-q", "-f", format, path, "1M").Run() != nil {
			continue
		}
		if data, err := os.ReadFile(path); err == nil {
			f.Add(format, data[:min(len(data), 1<<20)])
		}
	}
	f.Add("vmdk", []byte("# Disk DescriptorFile\nCID=1\nparentCID=1\ncreateType=\"x\"\nparentFileNameHint=\"y\"\nRW 8 FLAT \"a\" 0\n"))
	f.Fuzz(func(t *testing.T, format string, data []byte) {
		r := bytes.NewReader(data)
		l, err := readLinks(r, int64(len(data)), format)
		if err == nil {
			if len(l.backing) > maxBackingName || strings.ContainsRune(l.backing+l.data, 0) {
				t.Errorf("%q, %q", l.backing, l.data)
			}
			if l.desc != nil {
				again, err := parseDescriptor(l.desc.text(make([]string, len(l.desc.extents))))
				if err == nil {
					t.Errorf("extents without names: %+v", again)
				}
				names := make([]string, len(l.desc.extents))
				for i := range names {
					names[i] = "/proc/self/fd/9"
				}
				if again, err = parseDescriptor(l.desc.text(names)); err != nil || len(again.extents) != len(names) {
					t.Errorf("our own descriptor: %v", err)
				}
			}
		}
		if s, err := findSnapshot(r, "x"); err == nil && s.name != "x" && s.id != "x" {
			t.Errorf("%+v", s)
		}
	})
}
