package qemunbd

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patchFile replaces old by a new string of the same length in a file.
func patchFile(t *testing.T, path, old, with string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(old) != len(with) || bytes.Count(data, []byte(old)) != 1 {
		t.Fatalf("%q is not once in %s", old, path)
	}
	writeFile(t, path, bytes.Replace(data, []byte(old), []byte(with), 1))
}

// backed makes a qcow2 whose header names a backing file that need not be.
func backed(t *testing.T, path, backing, format string) string {
	t.Helper()
	args := []string{"create", "-q", "-f", "qcow2", "-u", "-b", backing}
	if format != "" {
		args = append(args, "-F", format)
	} else {
		args = append(args, "-F", "raw")
	}
	run(t, "qemu-img", append(args, path, "6M")...)
	if format == "" {
		// Nobody knows this extension, so the format is not recorded.
		patchFile(t, path, "\xe2\x79\x2a\xca", "\xe2\x79\x2a\xcb")
	}
	return path
}

func TestStart_refuses(t *testing.T) {
	need(t, "qemu-img", "qemu-nbd")
	data := content(1)
	for _, row := range []struct {
		name string
		make func(t *testing.T) Options
		want []string
	}{
		{"no such file", func(t *testing.T) Options {
			return Options{Path: "no.qcow2"}
		}, []string{"no.qcow2 is missing"}},
		{"no format", func(t *testing.T) Options {
			return Options{Path: "a.img"}
		}, []string{"give format="}},
		{"unknown format", func(t *testing.T) Options {
			return Options{Path: "a.img", Format: "nbd"}
		}, []string{`"nbd" is unknown`, "qcow2"}},
		{"raw", func(t *testing.T) Options {
			return Options{Path: "a.img", Format: "raw"}
		}, []string{`"raw" is unknown`}},
		{"another format's magic", func(t *testing.T) Options {
			convert(t, data, "a.vmdk", "vmdk")
			return Options{Path: "a.vmdk", Format: "qcow2"}
		}, []string{"taken for qcow2", "magic says vmdk", "give format=vmdk"}},
		{"no magic", func(t *testing.T) Options {
			return Options{Path: writeFile(t, "a.qcow2", data)}
		}, []string{"has not the magic of qcow2"}},
		{"empty", func(t *testing.T) Options {
			return Options{Path: writeFile(t, "a.vdi", nil)}
		}, []string{"has not the magic of vdi"}},
		{"cut off", func(t *testing.T) Options {
			return Options{Path: writeFile(t, "a.qcow2", []byte("QFI\xfb\x00\x00\x00\x03"))}
		}, []string{"cut off"}},
		{"corrupt tables", func(t *testing.T) Options {
			convert(t, data, "a.qcow2", "qcow2")
			head, err := os.ReadFile("a.qcow2")
			if err != nil {
				t.Fatal(err)
			}
			copy(head[40:], "\x00\x00\x00\x00\x00\x00\x00\x01") // the L1 table's offset
			return Options{Path: writeFile(t, "a.qcow2", head)}
		}, []string{"a.qcow2", "qemu-nbd: ", "L1"}},
		{"cut off before its L1 table", func(t *testing.T) Options {
			convert(t, data, "a.qcow2", "qcow2")
			if err := os.Truncate("a.qcow2", 512); err != nil {
				t.Fatal(err)
			}
			return Options{Path: "a.qcow2"}
		}, []string{"a.qcow2", "cut off: it has 512 bytes, and a table of 8 should be at "}},
		{"table beyond everything", func(t *testing.T) Options {
			convert(t, data, "a.qcow2", "qcow2")
			head, err := os.ReadFile("a.qcow2")
			if err != nil {
				t.Fatal(err)
			}
			copy(head[48:], "\xff\xff\xff\xff\xff\xff\xff\xff") // the refcount table's offset
			return Options{Path: writeFile(t, "a.qcow2", head)}
		}, []string{"a.qcow2", "its header is corrupt"}},
		{"vdi cut off before its map", func(t *testing.T) Options {
			convert(t, data, "a.vdi", "vdi")
			if err := os.Truncate("a.vdi", 520); err != nil {
				t.Fatal(err)
			}
			return Options{Path: "a.vdi"}
		}, []string{"a.vdi", "cut off: it has 520 bytes"}},
		{"directory", func(t *testing.T) Options {
			if err := os.Mkdir("a.qcow2", 0o755); err != nil {
				t.Fatal(err)
			}
			return Options{Path: "a.qcow2"}
		}, []string{"not a regular file"}},
		{"device", func(t *testing.T) Options {
			return Options{Path: "/dev/null", Format: "qcow2"}
		}, []string{"not a regular file"}},
		{"missing backing file", func(t *testing.T) Options {
			return Options{Path: backed(t, "a.qcow2", "gone.raw", "raw")}
		}, []string{"backing file of ", "a.qcow2", "gone.raw is missing"}},
		{"backing file without format", func(t *testing.T) Options {
			raw(t, ".", data)
			return Options{Path: backed(t, "a.qcow2", "content.raw", "")}
		}, []string{"qemu-img rebase -u -F FORMAT -b content.raw "}},
		{"backing file of another format", func(t *testing.T) Options {
			raw(t, ".", data)
			return Options{Path: backed(t, "a.qcow2", "content.raw", "vmdk")}
		}, []string{"content.raw", "has not the magic of vmdk"}},
		{"backing file of unknown format", func(t *testing.T) Options {
			raw(t, ".", data)
			return Options{Path: backed(t, "a.qcow2", "content.raw", "luks")}
		}, []string{`"luks"`}},
		{"json: backing", func(t *testing.T) Options {
			return Options{Path: backed(t, "a.qcow2", `json:{"driver":"null-co"}`, "raw")}
		}, []string{"refused", `"json:`, "chain=trust"}},
		{"remote backing", func(t *testing.T) Options {
			return Options{Path: backed(t, "a.qcow2", "nbd://127.0.0.1/x", "raw")}
		}, []string{"refused", `nbd://127.0.0.1/x`, "chain=trust"}},
		{"remote data file", func(t *testing.T) Options {
			run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "data_file=nbd-localhost.x", "a.qcow2", "6M")
			patchFile(t, "a.qcow2", "nbd-localhost.x", "nbd:localhost:1")
			return Options{Path: "a.qcow2"}
		}, []string{"refused", `data file "nbd:localhost:1"`}},
		{"device as backing file", func(t *testing.T) Options {
			return Options{Path: backed(t, "a.qcow2", "/dev/zero", "raw")}
		}, []string{"/dev/zero", "not a regular file"}},
		{"backing file in /proc", func(t *testing.T) Options {
			return Options{Path: backed(t, "a.qcow2", "/proc/self/environ", "raw")}
		}, []string{"/proc/self/environ", "not a regular file"}},
		{"loop", func(t *testing.T) Options {
			backed(t, "a.qcow2", "b.qcow2", "qcow2")
			backed(t, "b.qcow2", "a.qcow2", "qcow2")
			return Options{Path: "a.qcow2"}
		}, []string{"in the chain already"}},
		{"65 levels", func(t *testing.T) Options {
			for i := range maxDepth + 2 {
				backed(t, fmt.Sprintf("%d.qcow2", i), fmt.Sprintf("%d.qcow2", i+1), "qcow2")
			}
			return Options{Path: "0.qcow2"}
		}, []string{"more than 64 levels"}},
		{"qcow over raw", func(t *testing.T) Options {
			raw(t, ".", data)
			overlay(t, "a.qcow", "qcow", "content.raw", "raw")
			return Options{Path: "a.qcow", Format: "qcow"}
		}, []string{"cannot record"}},
		{"missing extent", func(t *testing.T) Options {
			convert(t, data, "a.vmdk", "vmdk", "-o", "subformat=monolithicFlat")
			if err := os.Remove("a-flat.vmdk"); err != nil {
				t.Fatal(err)
			}
			return Options{Path: "a.vmdk"}
		}, []string{"a-flat.vmdk is missing"}},
		{"extent that qemu leaves out", func(t *testing.T) Options {
			convert(t, data, "a.vmdk", "vmdk", "-o", "subformat=monolithicFlat")
			patchFile(t, "a.vmdk", "RW 12288 FLAT", "RW 12288 ZERO")
			return Options{Path: "a.vmdk"}
		}, []string{"leaves out"}},
		{"remote extent", func(t *testing.T) Options {
			convert(t, data, "a.vmdk", "vmdk", "-o", "subformat=monolithicFlat")
			patchFile(t, "a.vmdk", "a-flat.vmdk", "nbd:a:1.vmd")
			return Options{Path: "a.vmdk"}
		}, []string{"refused", `"nbd:a:1.vmd"`}},
		{"sparse vmdk that hides a descriptor", func(t *testing.T) Options {
			convert(t, data, "a.vmdk", "vmdk")
			head, err := os.ReadFile("a.vmdk")
			if err != nil {
				t.Fatal(err)
			}
			clear(head[12:20])
			return Options{Path: writeFile(t, "a.vmdk", head)}
		}, []string{"capacity of 0"}},
		{"differencing vpc", func(t *testing.T) Options {
			convert(t, data, "a.vhd", "vpc")
			head, err := os.ReadFile("a.vhd")
			if err != nil {
				t.Fatal(err)
			}
			head[63] = 4
			return Options{Path: writeFile(t, "a.vhd", head), Format: "vhd"}
		}, []string{"differencing"}},
		{"differencing vdi", func(t *testing.T) Options {
			convert(t, data, "a.vdi", "vdi")
			head, err := os.ReadFile("a.vdi")
			if err != nil {
				t.Fatal(err)
			}
			head[vdiTypeAt] = 4
			return Options{Path: writeFile(t, "a.vdi", head)}
		}, []string{"differencing"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			refused(t, row.make(t), row.want...)
		})
	}
}

func TestStart_without_the_program(t *testing.T) {
	path := convert(t, content(1), filepath.Join(t.TempDir(), "a.qcow2"), "qcow2")
	t.Setenv("PATH", t.TempDir())
	err := refused(t, Options{Path: path}, "apt install qemu-utils")
	if !errors.Is(err, ErrNotInstalled) {
		t.Error("it is not ErrNotInstalled")
	}
}

func TestStart_another_qemu_holds_it(t *testing.T) {
	need(t, "qemu-io", "qemu-img", "qemu-nbd")
	dir := t.TempDir()
	data := content(1)
	base := convert(t, data, filepath.Join(dir, "base.qcow2"), "qcow2")
	path := overlay(t, filepath.Join(dir, "a.qcow2"), "qcow2", base, "qcow2")
	for _, held := range []struct{ name, path, format string }{
		{"the image", path, "qcow2"},
		{"its backing file", base, "qcow2"},
	} {
		t.Run(held.name, func(t *testing.T) {
			holder := exec.Command("qemu-io", "-f", held.format, held.path)
			in, err := holder.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := holder.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := holder.Start(); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(in, "length")
			if _, err := out.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			for _, writable := range []bool{false, true} {
				err := refused(t, Options{Path: path, Writable: writable}, held.path+" is in use by \"qemu-io\"")
				if !errors.Is(err, ErrInUse) {
					t.Error("it is not ErrInUse")
				}
			}
			in.Close()
			if err := holder.Wait(); err != nil {
				t.Fatal(err)
			}
			wantContent(t, serve(t, Options{Path: path}), data)
		})
	}
	t.Run("a server of ours", func(t *testing.T) {
		serve(t, Options{Path: path, Writable: true})
		refused(t, Options{Path: path}, "is in use by \"qemu-nbd\"")
	})
}

// With chain=trust an image may lead elsewhere, and says so.
func TestStart_trusted_remote_chain(t *testing.T) {
	data := content(1)
	other := serve(t, Options{Path: convert(t, data, filepath.Join(t.TempDir(), "other.qcow2"), "qcow2")})
	socket := strings.TrimPrefix(other.URI(), "nbd+unix:///?socket=")
	if conn, err := net.DialTimeout("unix", strings.ReplaceAll(socket, "%2F", "/"), time.Second); err != nil {
		t.Fatal(err)
	} else {
		conn.Close()
	}
	for _, name := range []string{other.URI(), `json:{"driver":"raw","file":{"driver":"nbd","path":"` + strings.ReplaceAll(socket, "%2F", "/") + `"}}`} {
		path := backed(t, filepath.Join(t.TempDir(), "a.qcow2"), name, "raw")
		refused(t, Options{Path: path}, "refused")
		s := serve(t, Options{Path: path, TrustChain: true})
		wantContent(t, s, data)
		if !s.Remote() || other.Remote() {
			t.Error("Remote does not tell")
		}
	}
}
