package source

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParse_accepts(t *testing.T) {
	long := strings.Repeat("n", nameMax)
	for _, row := range []struct {
		name, arg string
		want      Source
	}{
		{"plain file", "disk.img", Source{Name: "disk", Location: "disk.img"}},
		{"path", "/data/vm1.raw", Source{Name: "vm1", Location: "/data/vm1.raw"}},
		{"device", "/dev/vg/lv0", Source{Name: "lv0", Location: "/dev/vg/lv0"}},
		{"unknown suffix stays", "/data/vm1.bin", Source{Name: "vm1.bin", Location: "/data/vm1.bin"}},
		{"only the last suffix goes", "a.img.raw", Source{Name: "a.img", Location: "a.img.raw"}},
		{"upper case suffix", "A.IMG", Source{Name: "A", Location: "A.IMG"}},
		{"name", "root=/data/vm1.img", Source{Name: "root", Named: true, Location: "/data/vm1.img"}},
		{"name keeps its suffix", "a.img=b.img", Source{Name: "a.img", Named: true, Location: "b.img"}},
		{"equals after a slash is location", "./a=b.img", Source{Name: "a=b", Location: "./a=b.img"}},
		{"second equals is location", "a=b=c", Source{Name: "a", Named: true, Location: "b=c"}},
		{"doubled comma in location", "a,,b.img", Source{Name: "a,b", Location: "a,b.img"}},
		{"doubled comma in name", "a,,b=c.img", Source{Name: "a,b", Named: true, Location: "c.img"}},
		{"three commas", "a,,,writable", Source{Name: "a,", Location: "a,", Writable: true}},
		{"all options", "x=a,format=raw,digest=md5/4k,writable,cache=none",
			Source{Name: "x", Named: true, Location: "a", Digest: "md5/4k", Writable: true, Cache: "none", RawGiven: true}},
		{"equals of an option is no name", "a.img,cache=keep", Source{Name: "a", Location: "a.img", Cache: "keep"}},
		{"other format as raw", "a.qcow2,format=raw", Source{Name: "a", Location: "a.qcow2", RawGiven: true}},
		{"same option twice", "a,cache=keep,cache=keep", Source{Name: "a", Location: "a", Cache: "keep"}},
		{"standard input", "-", Source{Name: "-", Location: "-"}},
		{"file called like a scheme", "nbd:x", Source{Name: "nbd:x", Location: "nbd:x"}},
		{"qcow2", "a.qcow2", Source{Name: "a", Location: "a.qcow2", Format: "qcow2"}},
		{"vhdx in upper case", "A.VHDX", Source{Name: "A", Location: "A.VHDX", Format: "vhdx"}},
		{"format by option", "a,format=vmdk", Source{Name: "a", Location: "a", Format: "vmdk"}},
		{"format beats suffix", "a.img,format=qcow2", Source{Name: "a", Location: "a.img", Format: "qcow2"}},
		{"snapshot and chain", "a.qcow2,snapshot=s 1,chain=trust",
			Source{Name: "a", Location: "a.qcow2", Format: "qcow2", Snapshot: "s 1", TrustChain: true}},
		{"nbd export", "nbd://host:10809/vm/disk1.img", Source{Name: "disk1", Location: "nbd://host:10809/vm/disk1.img", Format: "nbd"}},
		{"nbd host", "nbds://host.example/", Source{Name: "host.example", Location: "nbds://host.example/", Format: "nbd"}},
		{"nbd socket", "nbd+unix:///?socket=/run/vm2.sock", Source{Name: "vm2", Location: "nbd+unix:///?socket=/run/vm2.sock", Format: "nbd"}},
		{"nbd with a name", "x=nbd+unix:///e?socket=/s", Source{Name: "x", Named: true, Location: "nbd+unix:///e?socket=/s", Format: "nbd"}},
		{"longest name", long + "=a", Source{Name: long, Named: true, Location: "a"}},
		{"bad default name is left to CheckName", "/", Source{Name: "/", Location: "/"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Parse(row.arg)
			if err != nil {
				t.Fatal(err)
			}
			row.want.Arg = row.arg
			if row.want.Format == "" {
				row.want.Format = "raw"
			}
			if diff := cmp.Diff(row.want, got, cmpopts.IgnoreUnexported(Source{})); diff != "" {
				t.Errorf("Parse(%q) (-want +got):\n%s", row.arg, diff)
			}
		})
	}
}

func TestParse_refuses(t *testing.T) {
	const other = ": give another one by NAME=LOCATION"
	for _, row := range []struct{ name, arg, want string }{
		{"empty", "", `source "": no location given: it is [NAME=]LOCATION[,option=value...]`},
		{"name only", "a=", `source "a=": no location given: it is [NAME=]LOCATION[,option=value...]`},
		{"options only", ",writable", `source ",writable": no location given: it is [NAME=]LOCATION[,option=value...]`},
		{"trailing comma", "a,", `a: empty option: a comma in a location is doubled (,,)`},
		{"unknown option", "a,b.img", `a: unknown option "b.img": the options are format=, digest=, writable, cache=, snapshot=, chain=; a comma in a location is doubled (,,)`},
		{"no value", "a,cache", `a: option cache: no value given`},
		{"empty value", "a,format=", `a: option format: no value given`},
		{"value for a switch", "a,writable=yes", `a: option writable: it takes no value`},
		{"bad cache", "a,cache=some", `a: option cache: "some" is neither keep nor none`},
		{"contradiction", "a,cache=keep,cache=none", `a: option cache: both "keep" and "none" given`},
		{"unknown format", "a,format=iso", `a: option format: unknown format "iso": there are raw, qcow2, vmdk, vhdx, vdi, vpc, qed, qcow, parallels, bochs, cloop`},
		{"format of a URI", "nbd+unix:///?socket=/s,format=raw", `nbd+unix:///?socket=/s: option format: an NBD server tells nothing of formats: leave out format=raw`},
		{"snapshot of raw", "a.img,snapshot=s", `a.img: option snapshot: only a qcow2 has snapshots, and this is raw`},
		{"writable snapshot", "a.qcow2,snapshot=s,writable", `a.qcow2: options snapshot and writable: a snapshot cannot be written`},
		{"chain of raw", "a.img,chain=trust", `a.img: option chain: raw has no chain of files`},
		{"bad chain", "a.qcow2,chain=yes", `a.qcow2: option chain: "yes" is not trust`},
		{"empty name", "=a", `source "=a": the image's name is empty` + other},
		{"dot", ".=a", `source ".=a": an image cannot be called "."` + other},
		{"dot dot", "..=a", `source "..=a": an image cannot be called ".."` + other},
		{"reserved", ".hashfs=a", `source ".hashfs=a": the name ".hashfs" is reserved` + other},
		{"cache tag", "CACHEDIR.TAG=a", `source "CACHEDIR.TAG=a": the name "CACHEDIR.TAG" is reserved` + other},
		{"control byte", "a\nb=c", `source "a\nb=c": the name "a\nb" has control characters` + other},
		{"delete", "a\x7f=c", `source "a\x7f=c": the name "a\x7f" has control characters` + other},
		{"not UTF-8", "a\xff=c", `source "a\xff=c": the name "a\xff" is not valid UTF-8` + other},
		{"too long", strings.Repeat("n", nameMax+1) + "=a", "source \"" + strings.Repeat("n", nameMax+1) + `=a": the name "nnnnnnnnnnnnnnnnnnnn"... is longer than 255 bytes` + other},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := Parse(row.arg)
			if err == nil {
				t.Fatalf("Parse(%q) accepted", row.arg)
			}
			if diff := cmp.Diff(row.want, err.Error()); diff != "" {
				t.Errorf("Parse(%q) (-want +got):\n%s", row.arg, diff)
			}
		})
	}
}

// The wording belongs to package hasher; here only the place is checked.
func TestParse_bad_digest_names_the_source(t *testing.T) {
	for _, digest := range []string{"crc32", "sha256/3", "sha256/128m", "/64k"} {
		_, err := Parse("disk.img,digest=" + digest)
		if err == nil || !strings.HasPrefix(err.Error(), "disk.img: ") {
			t.Errorf("digest=%s: %v", digest, err)
		}
	}
}

func TestCheckName_slash(t *testing.T) {
	if err := CheckName("a/b"); err == nil {
		t.Error("a name with a slash was accepted")
	}
}

func FuzzParse(f *testing.F) {
	for _, arg := range []string{"a", "n=a.img,format=raw", "a,,b,digest=md5/4k,writable", "=", ",,,", "nbd://h/e", "./x=y,cache=none"} {
		f.Add(arg)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		s, err := Parse(arg)
		if err != nil {
			if s != (Source{}) {
				t.Errorf("Parse(%q): a source beside an error", arg)
			}
			return
		}
		if s.Location == "" || s.Format == "" || s.Arg != arg {
			t.Errorf("Parse(%q) = %+v", arg, s)
		}
		// What was understood, written down again, means the same.
		double := func(s string) string { return strings.ReplaceAll(s, ",", ",,") }
		again := double(s.Location)
		if s.Named {
			again = double(s.Name) + "=" + again
		}
		if s.Format != "nbd" {
			again += ",format=" + s.Format
		}
		if s.TrustChain {
			again += ",chain=trust"
		}
		for key, value := range map[string]string{"digest": s.Digest, "cache": s.Cache, "snapshot": s.Snapshot} {
			if value != "" {
				again += "," + key + "=" + double(value)
			}
		}
		if s.Writable {
			again += ",writable"
		}
		twin, err := Parse(again)
		if err != nil {
			t.Fatalf("Parse(%q) worked, Parse(%q): %v", arg, again, err)
		}
		twin.Arg, twin.RawGiven, twin.formatGiven = s.Arg, s.RawGiven, s.formatGiven
		if twin != s {
			t.Errorf("Parse(%q) = %+v, Parse(%q) = %+v", arg, s, again, twin)
		}
	})
}
