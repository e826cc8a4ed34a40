package nbdsrc

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseURI(t *testing.T) {
	for _, tc := range []struct {
		name, uri string
		want      target
		libnbd    string // what libnbd is given, the same if empty
	}{
		{"default port, no export", "nbd://example.com", target{host: "example.com"}, "nbd://example.com/"},
		{"port and export", "nbd://example.com:1/disk", target{host: "example.com:1", export: "disk"}, ""},
		{"export with a slash at the front", "nbd://h//a/b", target{host: "h", export: "/a/b"}, "nbd://h/%2Fa%2Fb"},
		{"escaped export", "nbd://h/a%20%23%3f+%ff", target{host: "h", export: "a #?+\xff"}, "nbd://h/a%20%23%3F%2B%FF"},
		{"IPv6", "nbd://[::1]:10809/", target{host: "[::1]:10809"}, ""},
		{"scheme in capitals", "NBD://h/", target{host: "h"}, "nbd://h/"},
		{"unix", "nbd+unix:///x?socket=/run/s", target{unix: "/run/s", export: "x"}, "nbd+unix:///x?socket=%2Frun%2Fs"},
		{"unix without a slash", "nbd+unix://?socket=s", target{unix: "s"}, "nbd+unix:///?socket=s"},
		{"plus and semicolon in a path", "nbd+unix:///?socket=/a+b;c%26d", target{unix: "/a+b;c&d"}, "nbd+unix:///?socket=%2Fa%2Bb%3Bc%26d"},
		{"TLS with certificates", "nbds://h/?tls-certificates=/c", target{tls: true, host: "h", certificates: "/c"}, "nbds://h/?tls-certificates=%2Fc"},
		{"TLS with a key", "nbds+unix://al%20ice@/?socket=/s&tls-psk-file=/k",
			target{tls: true, unix: "/s", user: "al ice", pskFile: "/k"}, "nbds+unix://al%20ice@/?socket=%2Fs&tls-psk-file=%2Fk"},
		{"empty parameters", "nbd+unix:///?&socket=/s&&", target{unix: "/s"}, "nbd+unix:///?socket=%2Fs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseURI(tc.uri)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(target{})); d != "" {
				t.Error(d)
			}
			if tc.libnbd == "" {
				tc.libnbd = tc.uri
			}
			if d := cmp.Diff(tc.libnbd, got.String()); d != "" {
				t.Error(d)
			}
			if !IsURI(tc.uri) {
				t.Error("IsURI says no")
			}
		})
	}
}

func TestParseURI_refused(t *testing.T) {
	for _, tc := range []struct{ name, uri, want string }{
		{"another scheme", "http://h/", "it has to begin with nbd://"},
		{"no scheme", "disk.img", "it has to begin with nbd://"},
		{"vsock", "nbd+vsock://1/", "it has to begin with nbd://"},
		{"one slash", "nbd:/h", "nbd: has to be followed by //"},
		{"no slash", "nbd:h", "nbd: has to be followed by //"},
		{"no host", "nbd:///disk", "the host is missing"},
		{"port without host", "nbd://:10809/", "the host is missing"},
		{"port that is none", "nbd://h:x/", `invalid port ":x" after host`},
		{"port 0", "nbd://h:0/", "port 0 is not between 1 and 65535"},
		{"port too large", "nbd://h:65536/", "port 65536 is not between 1 and 65535"},
		{"bad escape", "nbd://h/%zz", `invalid URL escape "%zz"`},
		{"bad escape in a parameter", "nbd+unix:///?socket=%zz", `invalid URL escape "%zz"`},
		{"fragment", "nbd://h/a#b", "it has a fragment"},
		{"NUL", "nbd://h/a%00b", "it has a NUL byte"},
		{"password", "nbds://u:p@h/", "it has a password"},
		{"unix without socket", "nbd+unix:///x", "the path of the socket is missing: add ?socket=PATH"},
		{"unix with an empty socket", "nbd+unix:///?socket=", "parameter socket needs a path"},
		{"unix with a host", "nbd+unix://x?socket=/s", "a unix socket has no host: write nbd+unix:///x"},
		{"socket without unix", "nbd://h/?socket=/s", "socket= needs nbd+unix://"},
		{"unknown parameter", "nbds://h/?tls-psk=/k", `unknown parameter "tls-psk"`},
		{"parameter twice", "nbd+unix:///?socket=/a&socket=/b", "parameter socket is given twice"},
		{"key without TLS", "nbd://h/?tls-psk-file=/k", "tls-certificates and tls-psk-file need nbds://"},
		{"key and certificates", "nbds://h/?tls-psk-file=/k&tls-certificates=/c", "exclude each other"},
		{"export too long", "nbd://h/" + strings.Repeat("x", 4097), "longer than 4096 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseURI(tc.uri)
			if err == nil || !strings.Contains(err.Error(), "is no NBD URI: ") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("%q has several lines", err)
			}
		})
	}
}

func TestIsURI(t *testing.T) {
	for location, want := range map[string]bool{
		"nbd://h": true, "NBDS+unix://": true, "nbd:h": false, "disk.img": false, "/a/nbd://": false, "http://h": false, "": false,
	} {
		if IsURI(location) != want {
			t.Errorf("%q: want %v", location, want)
		}
	}
}

// FuzzParseURI: what is accepted is handed to libnbd in a form that means the
// same.
func FuzzParseURI(f *testing.F) {
	for _, s := range []string{
		"nbd://h:1/x", "nbd+unix:///x?socket=/s", "nbds://u@[::1]/?tls-psk-file=/k", "nbds+unix://?socket=%2f&tls-certificates=a;b",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseURI(s)
		if err != nil {
			return
		}
		if !IsURI(s) {
			t.Errorf("%q is accepted, and no URI", s)
		}
		b, err := parseURI(a.String())
		if err != nil {
			t.Fatalf("%q became %q: %v", s, a.String(), err)
		}
		if d := cmp.Diff(a, b, cmp.AllowUnexported(target{})); d != "" {
			t.Errorf("%q became %q: %s", s, a.String(), d)
		}
		if strings.ContainsAny(a.String(), "\x00\n #;") {
			t.Errorf("%q became %q", s, a.String())
		}
	})
}
