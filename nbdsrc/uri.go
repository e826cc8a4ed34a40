package nbdsrc

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A target is a parsed NBD URI, as the NBD project's doc/uri.md defines it and
// nbd_connect_uri(3) takes it.
type target struct {
	tls    bool
	unix   string // path of the socket, "" for TCP
	host   string // with the port where one is given
	user   string // for TLS with pre-shared keys
	export string // "" is the server's default

	certificates string // directory, "" for libnbd's default
	pskFile      string
}

// A parseError says why a URI is none that can be served.
type parseError struct {
	uri string
	why string
}

func (e *parseError) Error() string { return fmt.Sprintf("%q is no NBD URI: %s", e.uri, e.why) }

// IsURI reports whether a location means an NBD export rather than a file: it
// begins with the scheme of an NBD URI.
func IsURI(location string) bool {
	scheme, _, ok := strings.Cut(location, "://")
	return ok && slices.Contains(schemes, strings.ToLower(scheme))
}

var schemes = []string{"nbd", "nbds", "nbd+unix", "nbds+unix"}

// parseURI checks a URI more strictly than libnbd does: what has no meaning is
// an error rather than ignored, since a misspelt parameter may be the one that
// was meant to protect the connection.
func parseURI(s string) (target, error) {
	fail := func(format string, args ...any) (target, error) {
		return target{}, &parseError{s, fmt.Sprintf(format, args...)}
	}
	u, err := url.Parse(s)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return fail("%v", err)
	}
	if !slices.Contains(schemes, u.Scheme) {
		return fail("it has to begin with nbd://, nbds://, nbd+unix:// or nbds+unix://")
	}
	if u.Opaque != "" || !strings.HasPrefix(s[len(u.Scheme):], "://") {
		return fail("%s: has to be followed by //", u.Scheme)
	}
	if u.Fragment != "" || strings.Contains(s, "#") {
		return fail("it has a fragment; write a # in an export name as %%23")
	}
	if strings.ContainsRune(s, 0) || strings.Contains(u.Path, "\x00") {
		return fail("it has a NUL byte")
	}
	t := target{
		tls:    strings.HasPrefix(u.Scheme, "nbds"),
		host:   u.Host,
		export: strings.TrimPrefix(u.Path, "/"),
	}
	if u.User != nil {
		if _, ok := u.User.Password(); ok {
			return fail("it has a password; keys are read from the file of tls-psk-file=")
		}
		t.user = u.User.Username()
	}
	if len(t.export) > 4096 {
		return fail("its export name is longer than 4096 bytes")
	}
	if err := t.query(u.RawQuery); err != nil {
		return fail("%v", err)
	}
	if err := t.check(strings.HasSuffix(u.Scheme, "+unix"), u.Port()); err != nil {
		return fail("%v", err)
	}
	return t, nil
}

// query takes the parameters. They are split as libnbd does it: a plus sign is
// no space.
func (t *target) query(raw string) error {
	seen := map[string]bool{}
	for _, part := range strings.Split(raw, "&") {
		if part == "" {
			continue
		}
		k, v, _ := strings.Cut(part, "=")
		key, err := url.PathUnescape(k)
		if err != nil {
			return err
		}
		value, err := url.PathUnescape(v)
		if err != nil {
			return err
		}
		var to *string
		switch key {
		case "socket":
			to = &t.unix
		case "tls-certificates":
			to = &t.certificates
		case "tls-psk-file":
			to = &t.pskFile
		default:
			return fmt.Errorf("unknown parameter %q: there are socket, tls-certificates and tls-psk-file", key)
		}
		if seen[key] {
			return fmt.Errorf("parameter %s is given twice", key)
		}
		seen[key] = true
		if value == "" || strings.Contains(value, "\x00") {
			return fmt.Errorf("parameter %s needs a path", key)
		}
		*to = value
	}
	return nil
}

func (t *target) check(unix bool, port string) error {
	switch {
	case unix && t.unix == "":
		return errors.New("the path of the socket is missing: add ?socket=PATH")
	case unix && t.host != "":
		return fmt.Errorf("a unix socket has no host: write nbd+unix:///%s", t.host)
	case !unix && t.unix != "":
		return errors.New("socket= needs nbd+unix:// or nbds+unix://")
	case !t.tls && (t.certificates != "" || t.pskFile != ""):
		return errors.New("tls-certificates and tls-psk-file need nbds:// or nbds+unix://")
	case t.certificates != "" && t.pskFile != "":
		return errors.New("tls-certificates and tls-psk-file exclude each other")
	case !unix && (t.host == "" || strings.HasPrefix(t.host, ":")):
		return errors.New("the host is missing")
	}
	if port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("port %s is not between 1 and 65535", port)
		}
	}
	return nil
}

// absolute makes the paths in t independent of the working directory, which a
// daemon leaves.
func (t *target) absolute() error {
	for _, p := range []*string{&t.unix, &t.certificates, &t.pskFile} {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	return nil
}

// scheme returns the scheme of t with the slashes after it.
func (t *target) scheme() string {
	s := "nbd"
	if t.tls {
		s = "nbds"
	}
	if t.unix != "" {
		s += "+unix"
	}
	return s + "://"
}

// String returns the URI for libnbd, which reads it as parseURI does.
func (t *target) String() string {
	s := t.scheme()
	if t.user != "" {
		s += escape(t.user) + "@"
	}
	s += t.host + "/" + escape(t.export)
	sep := "?"
	for _, p := range []struct{ key, value string }{
		{"socket", t.unix}, {"tls-certificates", t.certificates}, {"tls-psk-file", t.pskFile},
	} {
		if p.value != "" {
			s += sep + p.key + "=" + escape(p.value)
			sep = "&"
		}
	}
	return s
}

// escape escapes all that could mean something. libnbd splits parameters at
// semicolons, too, and takes a plus for what it is.
func escape(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// checkTLS refuses what libnbd would let pass. When it finds no ca-cert.pem it
// falls back to the system's certificate authorities, and then (1.14 to 1.20,
// CVE-2024-7383 among others) does not check the server's certificate at all.
func (t *target) checkTLS() error {
	if !t.tls {
		return nil
	}
	if t.pskFile != "" {
		return readable(t.pskFile)
	}
	if t.certificates != "" {
		return readable(filepath.Join(t.certificates, "ca-cert.pem"))
	}
	var tried []string
	for _, dir := range defaultCertificates() {
		if readable(filepath.Join(dir, "ca-cert.pem")) == nil {
			return nil
		}
		tried = append(tried, dir)
	}
	return fmt.Errorf("there is no ca-cert.pem in %s to check the server with: add tls-certificates=DIRECTORY or tls-psk-file=FILE to the URI",
		strings.Join(tried, " or "))
}

// defaultCertificates returns where libnbd looks for certificates,
// nbd_set_tls_certificates(3).
func defaultCertificates() []string {
	if home := os.Getenv("HOME"); home != "" && os.Geteuid() != 0 {
		return []string{filepath.Join(home, ".pki/libnbd"), filepath.Join(home, ".config/pki/libnbd")}
	}
	return []string{"/etc/pki/libnbd"}
}

func readable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}
