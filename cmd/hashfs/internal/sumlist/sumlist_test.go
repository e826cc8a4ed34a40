package sumlist

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"hashfs/hasher"
)

func kind(t testing.TB, spec string, plain bool) Kind {
	t.Helper()
	s, err := hasher.ParseSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	return Kind{s, plain}
}

const hexMD5 = "00112233445566778899aabbccddeeff"

func TestFormat(t *testing.T) {
	digest := []byte("\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff")
	blocks, plain := kind(t, "md5/4k", false), kind(t, "md5", true)
	for _, row := range []struct {
		name   string
		entry  Entry
		tagged bool
		want   string
	}{
		{"untagged", Entry{blocks, digest, "a b"}, false, hexMD5 + "  a b\n"},
		{"tagged", Entry{blocks, digest, "a"}, true, "blk-md5/4096 (a) = " + hexMD5 + "\n"},
		{"tagged plain", Entry{plain, digest, "a"}, true, "md5 (a) = " + hexMD5 + "\n"},
		{"escaped", Entry{plain, digest, "a\nb\rc\\"}, false, `\` + hexMD5 + `  a\nb\rc\\` + "\n"},
		{"escaped and tagged", Entry{plain, digest, "a\nb"}, true, `\md5 (a\nb) = ` + hexMD5 + "\n"},
	} {
		if got := row.entry.Format(row.tagged); got != row.want {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

func TestParse(t *testing.T) {
	blocks := kind(t, "md5/4k", false)
	for _, row := range []struct {
		name, line string
		untagged   *Kind
		file, tag  string // "" for an error
		err        error
	}{
		{"untagged", hexMD5 + "  a b ", &blocks, "a b ", "blk-md5/4096", nil},
		{"untagged of unknown kind", hexMD5 + "  a", nil, "", "", ErrUntagged},
		{"binary", hexMD5 + " *a", &blocks, "a", "blk-md5/4096", nil},
		{"upper case digits", strings.ToUpper(hexMD5) + "  a", &blocks, "a", "blk-md5/4096", nil},
		{"white space before", " \t" + hexMD5 + "  a", &blocks, "a", "blk-md5/4096", nil},
		{"one space", hexMD5 + " a", &blocks, "", "", ErrFormat},
		{"no name", hexMD5 + "  ", &blocks, "", "", ErrFormat},
		{"too short", hexMD5[2:] + "  a", &blocks, "", "", ErrFormat},
		{"too long", hexMD5 + "00  a", &blocks, "", "", ErrFormat},
		{"no digits", strings.Repeat("x", 32) + "  a", &blocks, "", "", ErrFormat},
		{"empty digest", "  a", &blocks, "", "", ErrFormat},
		{"tagged", "blk-md5/4096 (a) = " + hexMD5, nil, "a", "blk-md5/4096", nil},
		{"tagged with a suffix", "blk-md5/4k (a) = " + hexMD5, nil, "a", "blk-md5/4096", nil},
		{"tagged without a size", "blk-md5 (a) = " + hexMD5, nil, "", "", ErrFormat},
		{"tagged plain", "md5 (a) = " + hexMD5, nil, "a", "md5", nil},
		{"tagged by md5sum", "MD5 (a) = " + hexMD5, nil, "a", "md5", nil},
		{"tag in the name", "md5 (md5 (a) = b) = " + hexMD5, nil, "md5 (a) = b", "md5", nil},
		{"tag of another length", "sha256 (a) = " + hexMD5, nil, "", "", ErrFormat},
		{"unknown tag", "crc32 (a) = " + hexMD5, &blocks, "", "", ErrFormat},
		{"plain tag with a size", "md5/4096 (a) = " + hexMD5, nil, "", "", ErrFormat},
		{"escaped", `\` + hexMD5 + `  a\nb\r\\`, &blocks, "a\nb\r\\", "blk-md5/4096", nil},
		{"escaped and tagged", `\md5 (a\nb) = ` + hexMD5, nil, "a\nb", "md5", nil},
		{"not escaped", hexMD5 + `  a\nb`, &blocks, `a\nb`, "blk-md5/4096", nil},
		{"unknown escape", `\` + hexMD5 + `  a\tb`, &blocks, "", "", ErrFormat},
		{"half an escape", `\` + hexMD5 + `  a\`, &blocks, "", "", ErrFormat},
		{"zero byte", hexMD5 + "  a\x00b", &blocks, "", "", ErrFormat},
		{"empty", "", &blocks, "", "", ErrFormat},
	} {
		e, err := Parse(row.line, row.untagged)
		if !errors.Is(err, row.err) {
			t.Errorf("%s: error %v, want %v", row.name, err, row.err)
			continue
		}
		if err == nil && (e.Name != row.file || e.Kind.Tag() != row.tag || len(e.Digest) != 16 || e.Digest[1] != 0x11) {
			t.Errorf("%s: got %+v", row.name, e)
		}
	}
}

func TestLabel(t *testing.T) {
	for name, want := range map[string]string{"a b": "a b", "a\nb": `\a\nb`, `a\`: `\a\\`} {
		if got := Label(name); got != want {
			t.Errorf("Label(%q) = %q, want %q", name, got, want)
		}
	}
}

func FuzzFormat_is_read_again(f *testing.F) {
	for _, name := range []string{"a", " a", "*a", "a\nb\\", "x) = 00", "\r"} {
		f.Add(name, true, true)
	}
	f.Fuzz(func(t *testing.T, name string, tagged, plain bool) {
		if name == "" || strings.Contains(name, "\x00") {
			return
		}
		k := kind(t, "md5/64k", plain)
		digest := bytes.Repeat([]byte{0xa5}, 16)
		line := Entry{k, digest, name}.Format(tagged)
		if strings.Count(line, "\n") != 1 {
			t.Fatalf("%q is not one line", line)
		}
		e, err := Parse(strings.TrimSuffix(line, "\n"), &k)
		if err != nil || e.Name != name || !bytes.Equal(e.Digest, digest) || e.Kind.Tag() != k.Tag() {
			t.Errorf("%q was read as %+v, %v", line, e, err)
		}
	})
}
