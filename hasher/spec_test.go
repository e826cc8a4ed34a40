package hasher

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseSpec(t *testing.T) {
	for _, row := range []struct{ name, in, want string }{
		{"default size", "sha256", "sha256/65536"},
		{"smallest", "md5/4", "md5/4"},
		{"k", "sha512/512k", "sha512/524288"},
		{"K", "sha1/1K", "sha1/1024"},
		{"m", "blake3/2m", "blake3/2097152"},
		{"largest", "sha3-256/64M", "sha3-256/67108864"},
		{"largest in k", "sha3-256/65536k", "sha3-256/67108864"},
		{"bytes", "sha256/4096b", "sha256/4096"},
		{"B", "sha256/4096B", "sha256/4096"},
		{"sectors", "sha256/8s", "sha256/4096"},
		{"S", "sha256/128S", "sha256/65536"},
		{"leading zeros", "sha256/0064k", "sha256/65536"},
		{"upper case as nbdcopy takes it", "SHA256/64k", "sha256/65536"},
		{"name with a dash", "sha512-256/4k", "sha512-256/4096"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, err := ParseSpec(row.in)
			if err != nil {
				t.Fatal(err)
			}
			if s.String() != row.want {
				t.Errorf("%q is %s, want %s", row.in, s, row.want)
			}
			if again, err := ParseSpec(s.String()); err != nil || again != s {
				t.Errorf("%s parses back as %v, %v", s, again, err)
			}
		})
	}
}

func TestParseSpec_error(t *testing.T) {
	const (
		digest = "unknown digest %q: use one of md5, sha1, sha224, sha256, sha384, sha512, sha512-224, sha512-256, " +
			"sha3-224, sha3-256, sha3-384, sha3-512, blake2b512, blake2b256, blake2s256, blake3"
		number = "block size %q is not a number of bytes with an optional suffix such as k or M"
		power  = "block size %s is not a power of two"
		small  = "block size %s is below the minimum of 4 bytes"
		large  = "block size %s is above the maximum of 64M"
	)
	for _, row := range []struct{ name, in, format, object string }{
		{"empty", "", digest, ""},
		{"size alone", "64k", digest, "64k"},
		{"no digest", "/64k", digest, ""},
		{"unknown", "sha257/64k", digest, "sha257"},
		{"no size", "sha256/", number, ""},
		{"suffix alone", "sha256/k", number, "k"},
		{"two suffixes", "sha256/64kk", number, "64kk"},
		{"unit of another tool", "sha256/64KiB", number, "64KiB"},
		{"space", "sha256/64 k", number, "64 k"},
		{"sign", "sha256/+64k", number, "+64k"},
		{"negative", "sha256/-64k", number, "-64k"},
		{"fraction", "sha256/0.5M", number, "0.5M"},
		{"hexadecimal", "sha256/0x1000", number, "0x1000"},
		{"underscore", "sha256/65_536", number, "65_536"},
		{"two sizes", "sha256/64k/", number, "64k/"},
		{"openssl's name", "sha512/256/64k", number, "256/64k"},
		{"zero", "sha256/0", small, "0"},
		{"zero with a suffix", "sha256/0k", small, "0k"},
		{"1", "sha256/1", small, "1"},
		{"2", "sha256/2", small, "2"},
		{"3 is small before all", "sha256/3", small, "3"},
		{"5", "sha256/5", power, "5"},
		{"gnutls's name", "sha512/224", power, "224"},
		{"65535", "sha256/65535", power, "65535"},
		{"3k", "sha256/3k", power, "3k"},
		{"one byte more", "sha256/67108865", large, "67108865"},
		{"128M", "sha256/128M", large, "128M"},
		{"1G", "sha256/1G", large, "1G"},
		{"1e", "sha256/1e", large, "1e"},
		{"product of 64 bits overflows to 0", "sha256/16E", large, "16E"},
		{"number of 64 bits overflows", "sha256/18446744073709551616", large, "18446744073709551616"},
	} {
		t.Run(row.name, func(t *testing.T) {
			want := fmt.Sprintf("digest spec %q: "+row.format, row.in, row.object)
			s, err := ParseSpec(row.in)
			if err == nil {
				t.Fatalf("%q is %s", row.in, s)
			}
			if err.Error() != want {
				t.Errorf("got  %s\nwant %s", err, want)
			}
			if s != (Spec{}) {
				t.Error("an error, and a spec")
			}
		})
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, s := range []string{"sha256", "md5/4", "SHA1/64K", "sha512/224", "blake3/16E", "sha256/18446744073709551615s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := ParseSpec(in)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error of more than a line: %q", err)
			}
			return
		}
		if n := s.BlockSize; n < MinBlockSize || n > MaxBlockSize || n&(n-1) != 0 {
			t.Errorf("%q: block size %d", in, n)
		}
		if again, err := ParseSpec(s.String()); err != nil || again != s {
			t.Errorf("%q: %s parses back as %v, %v", in, s, again, err)
		}
	})
}
