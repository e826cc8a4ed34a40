//go:build cgo

package nbdsrc

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pskKeys makes a file with a key for alice.
func pskKeys(t *testing.T) string {
	t.Helper()
	need(t, "psktool")
	path := filepath.Join(shortDir(t), "keys.psk")
	run(t, "psktool", "-u", "alice", "-p", path)
	return path
}

func run(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// certificates makes a directory with an authority, and certificates of a
// server of that name and of a client, as nbdkit and libnbd want them.
func certificates(t *testing.T, name string) string {
	t.Helper()
	need(t, "certtool")
	dir := shortDir(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	for who, template := range map[string]string{
		"ca":     "cn = Test\nca\ncert_signing_key\n",
		"server": "organization = Test\ncn = " + name + "\ndns_name = " + name + "\ntls_www_server\nencryption_key\nsigning_key\n",
		"client": "organization = Test\ncn = client\ntls_www_client\nencryption_key\nsigning_key\n",
	} {
		check(t, os.WriteFile(file(who+".info"), []byte(template), 0o600))
		run(t, "certtool", "--generate-privkey", "--key-type=ecdsa", "--outfile", file(who+"-key.pem"))
	}
	run(t, "certtool", "--generate-self-signed", "--load-privkey", file("ca-key.pem"), "--template", file("ca.info"), "--outfile", file("ca-cert.pem"))
	for _, who := range []string{"server", "client"} {
		run(t, "certtool", "--generate-certificate", "--load-ca-certificate", file("ca-cert.pem"), "--load-ca-privkey", file("ca-key.pem"),
			"--load-privkey", file(who+"-key.pem"), "--template", file(who+".info"), "--outfile", file(who+"-cert.pem"))
	}
	return dir
}

// nbdkitTCP starts nbdkit on a free port of localhost, and returns it.
func nbdkitTCP(t *testing.T, args ...string) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	_, port, err = net.SplitHostPort(l.Addr().String())
	check(t, err)
	check(t, l.Close())
	s := &server{t: t}
	s.argv = append([]string{"nbdkit", "-f", "--exit-with-parent", "-i", "127.0.0.1", "-p", port}, args...)
	s.ready = func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			return false
		}
		return c.Close() == nil
	}
	s.start()
	return port
}

func TestTLS(t *testing.T) {
	keys, otherKeys := pskKeys(t), pskKeys(t)
	certs, otherCerts := certificates(t, "localhost"), certificates(t, "localhost")
	stranger := certificates(t, "stranger.example")
	disk := diskFile(t, content(1<<20))

	psk := nbdkit(t, "--tls=require", "--tls-psk="+keys, "file", disk)
	pskTCP := nbdkitTCP(t, "--tls=require", "--tls-psk="+keys, "file", disk)
	cert := nbdkit(t, "--tls=require", "--tls-certificates="+certs, "--tls-verify-peer", "file", disk)
	certTCP := nbdkitTCP(t, "--tls=require", "--tls-certificates="+certs, "--tls-verify-peer", "file", disk)
	strangerTCP := nbdkitTCP(t, "--tls=require", "--tls-certificates="+stranger, "file", disk)

	for _, tc := range []struct {
		name, uri string
		want      string // the error, "" for none
	}{
		{"key over a socket", "nbds+unix://alice@/?socket=" + psk.socket + "&tls-psk-file=" + keys, ""},
		{"key over TCP", "nbds://alice@localhost:" + pskTCP + "/?tls-psk-file=" + keys, ""},
		{"certificates over a socket", "nbds+unix:///?socket=" + cert.socket + "&tls-certificates=" + certs, ""},
		{"certificates over TCP", "nbds://localhost:" + certTCP + "/?tls-certificates=" + certs, ""},
		{"another key", "nbds+unix://alice@/?socket=" + psk.socket + "&tls-psk-file=" + otherKeys, "gnutls_handshake"},
		{"another authority", "nbds://localhost:" + certTCP + "/?tls-certificates=" + otherCerts, "gnutls_handshake"},
		{"a server of another name", "nbds://localhost:" + strangerTCP + "/?tls-certificates=" + stranger, "gnutls_handshake"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := Open(t.Context(), tc.uri, Options{Writable: true})
			if tc.want != "" {
				if err == nil {
					e.Close()
					t.Fatal("opened")
				}
				if !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %s", err, tc.want)
				}
				return
			}
			check(t, err)
			defer e.Close()
			model := make([]byte, e.Size())
			_, err = e.ReadAt(model, 0)
			check(t, err)
			if !bytes.Equal(model[:1000], content(1 << 20)[:1000]) && tc.name == "key over a socket" {
				t.Error("wrong bytes")
			}
			checkWrites(t, e, model)
			checkReads(t, e, model)
		})
	}
}
