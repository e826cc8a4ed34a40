package integration

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRemote_servers mounts what many kinds of servers export, and compares it
// with what other clients of the same server read.
func TestRemote_servers(t *testing.T) {
	t.Parallel()
	needNBD(t)
	need(t, "nbdcopy", "nbdinfo")
	d := newDisk(t)
	file := func(name string) string { return d.convert(t, name+".raw", "raw", "-S", "4k") }
	bitmap := d.convert(t, "bitmap.qcow2", "qcow2")
	output(t, "qemu-img", "bitmap", "--add", bitmap, "dirty")
	for _, row := range []struct {
		name   string
		server *server

		readOnly  bool
		own       bool // another content than the disk's
		noExtents bool // nothing is known of holes
		exits     bool // after its first client
		oneClient bool // at a time
	}{
		{name: "file", server: nbdkit(t, "file", file("file"))},
		{name: "file-distrusted", server: nbdkit(t, "file", file("distrusted")), noExtents: true},
		{name: "data", server: nbdkit(t, "data", `data= 1 2 3 @0x100000 "text" @0x2fffff 255`), own: true},
		{name: "pattern", server: nbdkit(t, "pattern", "3M"), readOnly: true, own: true},
		{name: "memory", server: nbdkit(t, "memory", "5000000"), own: true},
		{name: "sparse-random", server: nbdkit(t, "sparse-random", "size=8M", "seed=7"), readOnly: true, own: true},
		{name: "blocksize", server: nbdkit(t, "--filter=blocksize", "file", file("blocksize"), "minblock=4k", "maxdata=64k", "maxlen=128k")},
		{name: "large-blocks", server: nbdkit(t, "--filter=blocksize-policy", "file", file("large-blocks"),
			"blocksize-minimum=64k", "blocksize-preferred=64k", "blocksize-maximum=256k", "blocksize-error-policy=error")},
		{name: "delay", server: nbdkit(t, "--filter=delay", "file", file("delay"), "rdelay=2ms", "wdelay=2ms")},
		{name: "noextents", server: nbdkit(t, "--filter=noextents", "file", file("noextents"))},
		{name: "nozero", server: nbdkit(t, "--filter=nozero", "file", file("nozero"))},
		{name: "no-zero-at-all", server: nbdkit(t, "--filter=nozero", "file", file("no-zero-at-all"), "zeromode=notrim")},
		{name: "noparallel", server: nbdkit(t, "--filter=noparallel", "file", file("noparallel"), "serialize=requests")},
		{name: "no-structured-replies", server: nbdkit(t, "--no-sr", "file", file("no-sr")), noExtents: true},
		{name: "exitlast", server: nbdkit(t, "--filter=exitlast", "file", d.raw), readOnly: true, exits: true},
		{name: "qemu-e1", server: qemuNBD(t, "-e", "1", "-f", "raw", file("e1")), oneClient: true},
		{name: "qemu-e8", server: qemuNBD(t, "-e", "8", "-f", "raw", file("e8"))},
		{name: "qemu-bitmap", server: qemuNBD(t, "-e", "8", "-f", "qcow2", "-B", "dirty", bitmap)},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := row.server
			content := bytes.Clone(d.data)
			extents := ""
			// exitlast would be over after the first client.
			if !row.exits {
				content = s.content()
			}
			if !row.exits && !row.noExtents {
				extents = nbdMap(t, s.uri())
			}
			if !row.own {
				same(t, "the export", string(content), string(d.data))
			}
			args := []string{fmt.Sprintf("--writable=%v", !row.readOnly), "x=" + s.uri()}
			if row.noExtents {
				args = append(args, "--no-extents")
				extents = fmt.Sprintf("%10d  %10d  %3d  data\n", 0, len(content), 0)
			}
			m := mount(t, args...)
			m.checkDigests("x", newOracle(content))
			same(t, "image", m.read("x", "image"), string(content))
			if extents != "" {
				same(t, "map", m.read("x", "map"), extents)
			}
			if !row.readOnly {
				changeSome(t, m, content)
			}
			if !row.readOnly && !row.oneClient {
				same(t, "what another client reads", string(s.content()), string(content))
				if !row.noExtents {
					same(t, "map", m.read("x", "map"), nbdMap(t, s.uri()))
				}
			}
			if s.run.ended() {
				t.Error("the server has ended")
			}
			m.unmount()
			if row.exits {
				eventually(t, "the server ends with its last client", s.run.ended)
				return
			}
			s.signal(syscall.SIGTERM)
			eventually(t, "the server has ended", s.run.ended)
		})
	}
	// The bitmap is none of ours, and outlives a mount.
	m := mount(t, "--writable", bitmap)
	m.checkDigests("bitmap", newOracle([]byte(readFile(t, d.path("e8.raw")))))
	writeAt(t, m.path("bitmap", "image"), []byte("x"), mib)
	m.unmount()
	output(t, "qemu-img", "check", "-f", "qcow2", bitmap)
	if info := output(t, "qemu-img", "info", "-f", "qcow2", bitmap); !strings.Contains(info, "name: dirty") || strings.Contains(info, "in-use") {
		t.Errorf("the bitmap: %s", info)
	}
}

// changeSome writes and punches the image x, whose content is model.
func changeSome(t *testing.T, m *mounted, model []byte) {
	t.Helper()
	f, err := os.OpenFile(m.path("x", "image"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, off := range []int64{0, blockSize - 3, mib + 511, int64(len(model)) - 100} {
		part := random(uint64(95+i), 100)
		if _, err := f.WriteAt(part, off); err != nil {
			t.Errorf("write at %d: %v", off, err)
		}
		copy(model[off:], part)
	}
	length := min(mib, int64(len(model)))
	const punch = 3 // FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
	if err := syscall.Fallocate(int(f.Fd()), punch, 1000, length-2000); err == nil {
		clear(model[1000 : length-1000])
	} else if !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("punch: %v", err)
	}
	if err := f.Sync(); err != nil {
		t.Errorf("fsync: %v", err)
	}
	m.checkDigests("x", newOracle(model))
}

// pskKeys writes keys.psk into a directory, with a key for alice.
func pskKeys(t *testing.T, dir string) {
	t.Helper()
	need(t, "psktool")
	if r := run(t, "psktool", "-u", "alice", "-p", filepath.Join(dir, "keys.psk")); r.Status != 0 {
		t.Fatalf("psktool: %+v", r)
	}
}

// certificates writes into a directory what nbdkit and libnbd want there: an
// authority, and certificates of a server at localhost and of a client.
func certificates(t *testing.T, dir string) {
	t.Helper()
	need(t, "certtool")
	certtool := func(args ...string) {
		if r := (call{argv: append([]string{"certtool"}, args...), dir: dir}).run(t); r.Status != 0 {
			t.Fatalf("certtool %q: %+v", args, r)
		}
	}
	for who, template := range map[string]string{
		"ca":     "cn = Test\nca\ncert_signing_key\n",
		"server": "organization = Test\ncn = localhost\ndns_name = localhost\ntls_www_server\nencryption_key\nsigning_key\n",
		"client": "organization = Test\ncn = client\ntls_www_client\nencryption_key\nsigning_key\n",
	} {
		writeImage(t, filepath.Join(dir, who+".info"), []byte(template))
		certtool("--generate-privkey", "--key-type=ecdsa", "--outfile", who+"-key.pem")
	}
	certtool("--generate-self-signed", "--load-privkey", "ca-key.pem", "--template", "ca.info", "--outfile", "ca-cert.pem")
	for _, who := range []string{"server", "client"} {
		certtool("--generate-certificate", "--load-ca-certificate", "ca-cert.pem", "--load-ca-privkey", "ca-key.pem",
			"--load-privkey", who+"-key.pem", "--template", who+".info", "--outfile", who+"-cert.pem")
	}
}

// freePort returns a TCP port of localhost that was free a moment ago.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// awaitTCP waits until somebody listens at a port of localhost.
func awaitTCP(t *testing.T, port string) {
	t.Helper()
	eventually(t, "the server listens", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func TestRemote_TLS(t *testing.T) {
	t.Parallel()
	needNBD(t)
	need(t, "nbdkit")
	d := newDisk(t)
	other := scratch(t)
	for _, dir := range []string{d.dir, other} {
		pskKeys(t, dir)
		certificates(t, dir)
	}
	psk := nbdkit(t, "--tls=require", "--tls-psk="+d.path("keys.psk"), "file", d.convert(t, "psk.raw", "raw"))
	port := freePort(t)
	tcp := startCommand(t, "nbdkit", "-f", "-i", "127.0.0.1", "-p", port, "--tls=require", "--tls-certificates="+d.dir,
		"--tls-verify-peer", "file", d.convert(t, "cert.raw", "raw"))
	t.Cleanup(tcp.stop)
	awaitTCP(t, port)
	byKey := "nbds+unix://alice@/?socket=" + psk.socket + "&tls-psk-file="
	byCertificate := "nbds://localhost:" + port + "/?tls-certificates="
	m := mount(t, "--writable", "key="+byKey+d.path("keys.psk"), "certificate="+byCertificate+d.dir)
	for _, image := range []string{"key", "certificate"} {
		model := bytes.Clone(d.data)
		m.checkDigests(image, newOracle(model))
		copy(model[mib:], "changed")
		writeAt(t, m.path(image, "image"), []byte("changed"), mib)
		m.checkDigests(image, newOracle(model))
	}
	for _, uri := range []string{byKey + filepath.Join(other, "keys.psk"), byCertificate + other} {
		r := run(t, program, "sum", uri)
		if r.Status != 1 || r.Stdout != "" || !strings.HasPrefix(r.Stderr, "hashfs: open "+uri+": ") || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%s: %+v", uri, r)
		}
	}
}

// A server that calls data zero, and is found out, has the same digest.
func TestRemote_lying_server(t *testing.T) {
	t.Parallel()
	needNBD(t)
	data := make([]byte, 3*mib)
	copy(data, random(45, mib))
	dir := scratch(t)
	path, list := filepath.Join(dir, "x.raw"), filepath.Join(dir, "list")
	writeImage(t, path, data)
	writeImage(t, list, []byte("0 3M hole,zero\n"))
	s := nbdkit(t, "--filter=extentlist", "file", path, "extentlist="+list)
	want := newOracle(data)
	r := call{argv: []string{program, "sum", s.uri()}}.run(t)
	if diff := cmp.Diff(result{
		want.sum() + "  " + s.uri() + "\n",
		"hashfs: warning: " + s.uri() + ": the server calls data zero: its block status is ignored\n", 0,
	}, r); diff != "" {
		t.Errorf("sum (-want +got):\n%s", diff)
	}
	m := mount(t, "x="+s.uri())
	m.expect(`level=WARN msg="the NBD server calls data zero: its block status is ignored from now on, and everything is read" image=x .*`)
	same(t, "checksum", m.read("x", "checksum"), want.checksum())
}
