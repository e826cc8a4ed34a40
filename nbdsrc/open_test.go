//go:build cgo

package nbdsrc

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hashfs/hasher"
)

// TestOpen_refused has every reason for which there is nothing to serve, and
// the line that the user reads.
func TestOpen_refused(t *testing.T) {
	plain := nbdkit(t, "memory", "1M")
	readOnly := nbdkit(t, "-r", "memory", "1M")
	named := qemuNBD(t, diskFile(t, make([]byte, 4096)), "-x", "disk")
	keys := pskKeys(t)
	tls := nbdkit(t, "--tls=require", "--tls-psk="+keys, "memory", "1M")
	dir := shortDir(t)
	check(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	for _, tc := range []struct {
		name, uri string
		o         Options
		want      string
		is        error
	}{
		{"malformed URI", "nbd:h", Options{}, `"nbd:h" is no NBD URI: nbd: has to be followed by //`, nil},
		{"refused", "nbd://127.0.0.1:1/", Options{}, "no server listens at 127.0.0.1:1: connection refused", syscall.ECONNREFUSED},
		{"no socket", "nbd+unix:///?socket=" + dir + "/none", Options{}, "there is no socket " + dir + "/none", syscall.ENOENT},
		{"no such host", "nbd://host.invalid/", Options{}, `hostname "host.invalid"`, nil},
		{"unknown export", "nbd+unix:///other?socket=" + named.socket, Options{}, `the server has no export named "other": nbdinfo --list shows`, syscall.ENOENT},
		{"TLS required", tls.uri(), Options{}, "the server requires TLS: use nbds+unix://", nil},
		{"TLS unavailable", "nbds+unix://alice@/?socket=" + plain.socket + "&tls-psk-file=" + keys, Options{},
			"the server does not offer TLS: nbd+unix:// would go without", nil},
		{"user without a key", "nbds+unix://bob@/?socket=" + tls.socket + "&tls-psk-file=" + keys, Options{}, "username bob was not found", nil},
		{"no key file", "nbds+unix://alice@/?socket=" + tls.socket + "&tls-psk-file=" + dir + "/none", Options{}, dir + "/none: no such file", os.ErrNotExist},
		{"no certificates", "nbds://127.0.0.1/?tls-certificates=" + dir + "/empty", Options{}, "empty/ca-cert.pem: no such file", os.ErrNotExist},
		{"read-only", readOnly.uri(), Options{Writable: true}, "the server allows no writing: image is read-only", hasher.ErrReadOnly},
		{"not an NBD server", "nbd://" + talker(t), Options{}, "server did not send expected NBD magic", nil},
		{"silent server", "nbd://" + deaf(t), Options{Timeout: 200 * time.Millisecond}, "negotiation: no answer from the server within 200ms", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			start := time.Now()
			e, err := Open(t.Context(), tc.uri, tc.o)
			if err == nil {
				e.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.uri) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%v is no %v", err, tc.is)
			}
			if errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 10*time.Second {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
	}
}

// talker returns the address of a server of another protocol.
func talker(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(strings.Repeat("SSH-2.0-OpenSSH\r\n", 20)))
			c.Close()
		}
	}()
	return l.Addr().String()
}

// TestOpen_noCertificates: without certificates of its own libnbd would not
// check the server at all.
func TestOpen_noCertificates(t *testing.T) {
	if readable("/etc/pki/libnbd/ca-cert.pem") == nil {
		t.Skip("there are certificates in /etc/pki/libnbd")
	}
	t.Setenv("HOME", shortDir(t))
	_, err := Open(t.Context(), "nbds://127.0.0.1/", Options{})
	if err == nil || !strings.Contains(err.Error(), "to check the server with: add tls-certificates=DIRECTORY or tls-psk-file=FILE") {
		t.Errorf("got %v", err)
	}
}

func TestOpen_cancelled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, "nbd://"+deaf(t), Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	cancel()
	if _, err := Open(ctx, "nbd://"+deaf(t), Options{}); err == nil {
		t.Error("opened")
	}
}

func TestOpen_export(t *testing.T) {
	s := qemuNBD(t, diskFile(t, make([]byte, 4096)), "-x", "a b/c")
	e, err := Open(t.Context(), "nbd+unix:///a%20b%2Fc?socket="+s.socket, Options{Name: "x"})
	check(t, err)
	defer e.Close()
	if e.Size() != 4096 || !strings.HasPrefix(e.URI(), "nbd+unix:///a%20b%2Fc?") || !e.Remote() || e.AwaitWriters() != nil {
		t.Errorf("size %d, URI %s", e.Size(), e.URI())
	}
}

// TestOpen_relative: paths in the URI do not depend on where the process goes.
func TestOpen_relative(t *testing.T) {
	s := nbdkit(t, "memory", "1M")
	t.Chdir(filepath.Dir(s.socket))
	e, err := Open(t.Context(), "nbd+unix:///?socket=s", Options{})
	check(t, err)
	defer e.Close()
	t.Chdir("/")
	s.kill()
	s.start()
	until(t, "it is connected again", func() bool { return e.Connections() > 0 })
}
