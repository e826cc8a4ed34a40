package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A refusal is a source that is refused, with all that is said of it.
type refusal struct {
	name   string
	args   []string
	status int
	want   string // DIR in it, and in args, is the directory of it all
}

// check expects each from mount, by a daemon in the background or not, with
// nothing mounted and nobody left behind.
func (row refusal) check(t *testing.T, dir, prog string, env ...string) {
	t.Helper()
	argv := []string{}
	for _, a := range row.args {
		argv = append(argv, strings.ReplaceAll(a, "DIR", dir))
	}
	want := result{"", "hashfs: " + strings.ReplaceAll(row.want, "DIR", dir) + "\n", row.status}
	for _, how := range [][]string{{prog, "mount"}, {prog, "mount", "--foreground"}} {
		point := newPoint(t, 0)
		got := call{argv: append(append(how, argv...), point), dir: dir, env: env}.run(t)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", how[1:], diff)
		}
		if left := mountsBelow(point); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	}
	if left := processes(dir); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

func TestRefuse_exports(t *testing.T) {
	t.Parallel()
	needNBD(t)
	need(t, "psktool")
	dir := newDisk(t).dir
	pskKeys(t, dir)
	qemu := qemuNBD(t, "--read-only", "-x", "named", "-f", "raw", filepath.Join(dir, "disk.raw"))
	for name, args := range map[string][]string{
		"ro":  {"--readonly", "file", filepath.Join(dir, "disk.raw")},
		"tls": {"--tls=require", "--tls-psk=" + filepath.Join(dir, "keys.psk"), "memory", "1M"},
	} {
		if err := os.Symlink(nbdkit(t, args...).socket, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	const ro = "nbd+unix:///?socket=DIR/ro"
	for _, row := range []refusal{
		{"malformed", []string{"nbd://[::1"}, 1, `"nbd://[::1" is no NBD URI: missing ']' in host`},
		{"no host", []string{"nbd:///"}, 1, `"nbd:///" is no NBD URI: the host is missing`},
		{"no such port", []string{"nbd://h:99999/"}, 1, `"nbd://h:99999/" is no NBD URI: port 99999 is not between 1 and 65535`},
		{"no socket", []string{"nbd+unix:///x"}, 1, `"nbd+unix:///x" is no NBD URI: the path of the socket is missing: add ?socket=PATH`},
		{"unknown parameter", []string{"nbd://h/?sockt=/x"}, 1, `"nbd://h/?sockt=/x" is no NBD URI: unknown parameter "sockt": there are socket, tls-certificates and tls-psk-file`},
		{"unknown transport", []string{"nbd+tcp://h/"}, 1, `"nbd+tcp://h/" is no NBD URI: it has to begin with nbd://, nbds://, nbd+unix:// or nbds+unix://`},
		{"fragment", []string{ro + "#x"}, 1, `"` + ro + `#x" is no NBD URI: it has a fragment; write a # in an export name as %23`},
		{"password", []string{"nbd://u:p@h/"}, 1, `"nbd://u:p@h/" is no NBD URI: it has a password; keys are read from the file of tls-psk-file=`},
		{"refused connection", []string{"nbd://localhost:1/"}, 1, "open nbd://localhost:1/: no server listens at localhost:1: connection refused"},
		{"missing socket", []string{"nbd+unix:///?socket=DIR/none"}, 1, "open nbd+unix:///?socket=DIR/none: there is no socket DIR/none: is the server running: no such file or directory"},
		{"unknown export", []string{qemu.export("other")}, 1, "open " + qemu.export("other") + `: the server has no export named "other": nbdinfo --list shows those that it has: no such file or directory`},
		{"TLS required", []string{"nbd+unix:///?socket=DIR/tls"}, 1, "open nbd+unix:///?socket=DIR/tls: the server requires TLS: use nbds+unix://"},
		{"TLS unavailable", []string{"nbds+unix://alice@/?socket=DIR/ro&tls-psk-file=DIR/keys.psk"}, 1,
			"open nbds+unix://alice@/?socket=DIR/ro&tls-psk-file=DIR/keys.psk: the server does not offer TLS: nbd+unix:// would go without"},
		{"no keys", []string{"nbds+unix://alice@/?socket=DIR/tls&tls-psk-file=DIR/none"}, 1,
			"open nbds+unix://alice@/?socket=DIR/tls&tls-psk-file=DIR/none: open DIR/none: no such file or directory"},
		{"read-only, to be written", []string{"--writable", ro}, 1, "open " + ro + ": the server allows no writing: image is read-only"},
		{"format", []string{ro + ",format=qcow2"}, 2, ro + ": option format: an NBD server tells nothing of formats: leave out format=qcow2"},
		{"chain", []string{ro + ",chain=trust"}, 2, ro + ": option chain: nbd has no chain of files"},
		{"timeout", []string{"--nbd-timeout=1ms", ro}, 2, "--nbd-timeout 1ms: it is a second at least"},
		{"two of a name", []string{"x=" + ro, "x=DIR/disk.raw"}, 1, ro + ` and DIR/disk.raw: both are called "x": name one by NAME=LOCATION`},
	} {
		t.Run(row.name, func(t *testing.T) { row.check(t, dir, program) })
	}
	// A mount of a read-only export refuses to be written.
	m := mount(t, "x="+strings.ReplaceAll(ro, "DIR", dir))
	if _, err := os.OpenFile(m.path("x", "image"), os.O_RDWR, 0); err == nil {
		t.Error("image can be opened for writing")
	}
}

func TestRefuse_formats(t *testing.T) {
	t.Parallel()
	needNBD(t)
	d := newDisk(t)
	d.convert(t, "ok.qcow2", "qcow2")
	held := d.convert(t, "held.qcow2", "qcow2")
	holder := qemuNBD(t, "-f", "qcow2", held)
	heldBy := fmt.Sprintf(`in use by "qemu-nbd" (process %d): end that first`, holder.run.cmd.Process.Pid)
	header := []byte(readFile(t, d.path("ok.qcow2")))
	copy(header[40:48], "\x00\x00\x00\x00\x00\x00\x00\x01") // the offset of the L1 table
	writeImage(t, d.path("corrupt.qcow2"), header)
	writeImage(t, d.path("cut.qcow2"), []byte(readFile(t, d.path("ok.qcow2")))[:512])
	writeImage(t, d.path("short.qcow2"), header[:8])
	writeImage(t, d.path("zero.vmdk"), make([]byte, mib))
	for name, backing := range map[string]string{
		"gone": "gone.raw", "remote": "nbd://localhost/x",
		"json": `json:{"driver":"raw","file":{"driver":"file","filename":"/etc/shadow"}}`,
	} {
		output(t, "qemu-img", "create", "-q", "-f", "qcow2", "-u", "-b", backing, "-F", "raw", d.path(name+".qcow2"), "1M")
	}
	for _, row := range []refusal{
		{"unknown format", []string{"disk.raw,format=iso"}, 2, `disk.raw: option format: unknown format "iso": there are raw, qcow2, vmdk, vhdx, vdi, vpc, qed, qcow, parallels, bochs, cloop`},
		{"another format", []string{"disk.raw,format=vdi"}, 1, "open DIR/disk.raw: it has not the magic of vdi"},
		{"no image", []string{"zero.vmdk"}, 1, "open DIR/zero.vmdk: it has not the magic of vmdk"},
		{"held by another qemu", []string{"held.qcow2"}, 1, "open DIR/held.qcow2: DIR/held.qcow2 is " + heldBy},
		{"held, to be written", []string{"--writable", "held.qcow2"}, 1, "open DIR/held.qcow2: DIR/held.qcow2 is " + heldBy},
		{"corrupt header", []string{"corrupt.qcow2"}, 1, "open DIR/corrupt.qcow2: qemu-nbd: Failed to blk_new_open 'driver=qcow2,file.driver=file,file.filename=DIR/corrupt.qcow2,backing=': Active L1 table offset invalid"},
		{"cut off", []string{"short.qcow2"}, 1, "open DIR/short.qcow2: its header is cut off: 64 bytes at 8 are missing"},
		{"cut off before its tables", []string{"cut.qcow2"}, 1, "open DIR/cut.qcow2: its header is corrupt, or it is cut off: it has 512 bytes, and a table of 8 should be at 196608"},
		{"missing backing file", []string{"gone.qcow2"}, 1, "open DIR/gone.qcow2: backing file of DIR/gone.qcow2: DIR/gone.raw is missing: no such file or directory"},
		{"remote backing file", []string{"remote.qcow2"}, 1, `open DIR/remote.qcow2: chain refused: backing file "nbd://localhost/x" of DIR/remote.qcow2 is no file but "nbd:" to qemu: chain=trust serves it all the same`},
		{"backing file in JSON", []string{"json.qcow2"}, 1, `open DIR/json.qcow2: chain refused: backing file "json:{\"driver\":\"raw\",\"file\":{\"driver\":\"file\",\"filename\":\"/etc/shadow\"}}" of DIR/json.qcow2 is no file but "json:" to qemu: chain=trust serves it all the same`},
		{"snapshot of raw", []string{"disk.raw,snapshot=x"}, 2, "disk.raw: option snapshot: only a qcow2 has snapshots, and this is raw"},
		{"no such snapshot", []string{"ok.qcow2,snapshot=x"}, 1, `open DIR/ok.qcow2: it has no snapshot "x", nor any other`},
		{"snapshot, to be written", []string{"ok.qcow2,snapshot=x,writable"}, 2, "ok.qcow2: options snapshot and writable: a snapshot cannot be written"},
		{"cache", []string{"ok.qcow2,cache=maybe"}, 2, `ok.qcow2: option cache: "maybe" is neither keep nor none`},
	} {
		t.Run(row.name, func(t *testing.T) { row.check(t, d.dir, program) })
	}
	t.Run("no qemu-nbd", func(t *testing.T) {
		needRoot(t) // others mount by fusermount3, which is not found then either
		refusal{"", []string{"ok.qcow2"}, 1, "open DIR/ok.qcow2: qemu-nbd is not installed: apt install qemu-utils"}.
			check(t, d.dir, program, "PATH="+scratch(t))
	})
}

// Without cgo all is there but NBD, and what goes by it.
func TestRefuse_built_without_NBD(t *testing.T) {
	t.Parallel()
	needFUSE(t)
	need(t, "qemu-img")
	d := newDisk(t)
	d.convert(t, "a.qcow2", "qcow2")
	plain := d.path("hashfs-without")
	build := exec.Command("go", "build", "-o", plain, "../cmd/hashfs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	same(t, "sum of a raw file", output(t, plain, "sum", d.raw), newOracle(d.data).sum()+"  "+d.raw+"\n")
	for _, row := range []refusal{
		{"export", []string{"nbd://localhost/x"}, 1, "open nbd://localhost/x: " + notBuilt},
		{"format", []string{"a.qcow2"}, 1, "open a.qcow2: " + notBuilt},
	} {
		t.Run(row.name, func(t *testing.T) { row.check(t, d.dir, plain) })
	}
}

// An image of an ordinary user's whose header leads to a file that only root
// may read shows that file to who serves it as root, and lets it be changed.
// It is refused, with each path named, unless the user says that he trusts it.
func TestAttack(t *testing.T) {
	t.Parallel()
	needNBD(t)
	needRoot(t)
	need(t, "qemu-img")
	d := newDisk(t)
	closed := d.path("closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	secret := random(90, diskSize)
	backing, data := filepath.Join(closed, "backing"), filepath.Join(closed, "data")
	byBacking, byData := d.path("by-backing.qcow2"), d.path("by-data.qcow2")
	output(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o",
		"preallocation=metadata,data_file_raw=on,data_file="+data, byData, fmt.Sprint(diskSize))
	for _, path := range []string{backing, data} {
		writeImage(t, path, secret)
	}
	output(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", backing, "-F", "raw", byBacking)
	for _, path := range []string{byBacking, byData} {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	message := func(role, path, image, right string) string {
		return fmt.Sprintf("open %s: chain refused: %s %s of %s is not for nobody, who owns %s, to %s: chain=trust serves it all the same",
			image, role, path, image, image, right)
	}
	for _, row := range []refusal{
		{"backing file", []string{byBacking}, 1, message("backing file", backing, byBacking, "read")},
		{"backing file, to be written", []string{"--writable", byBacking}, 1, message("backing file", backing, byBacking, "read")},
		{"data file", []string{byData}, 1, message("data file", data, byData, "read")},
		{"data file, to be written", []string{"--writable", byData}, 1, message("data file", data, byData, "read and write")},
	} {
		t.Run(row.name, func(t *testing.T) {
			row.check(t, d.dir, program)
			r := run(t, program, "sum", row.args[len(row.args)-1])
			if row.args[0] != "--writable" && (r.Status != 1 || r.Stdout != "" || r.Stderr != "hashfs: "+row.want+"\n") {
				t.Errorf("sum: %+v", r)
			}
		})
	}
	same(t, "the data file", readFile(t, data), string(secret))

	// They are attacks: trusted, they show the files and let one be changed.
	m := mount(t, "--writable", byBacking+",chain=trust", byData+",chain=trust")
	for _, image := range []string{"by-backing", "by-data"} {
		same(t, image, m.read(image, "image"), string(secret))
		m.checkDigests(image, newOracle(secret))
	}
	writeAt(t, m.path("by-data", "image"), []byte("changed"), mib)
	m.unmount()
	if got := readFile(t, data)[mib : mib+7]; got != "changed" {
		t.Errorf("the data file has %q", got)
	}
	same(t, "the backing file", readFile(t, backing), string(secret))

	// Of root's own images root's files may be a part.
	if err := os.Chown(byBacking, 0, 0); err != nil {
		t.Fatal(err)
	}
	m = mount(t, byBacking)
	m.checkDigests("by-backing", newOracle(secret))
}
