package qemunbd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ordinary users of the attacks, who need not exist.
const attacker, attackerGroup = 54321, 54322

// secret makes a directory that only root can enter, with a file in it.
func secret(t *testing.T, mode os.FileMode) (path string, data []byte) {
	t.Helper()
	needRoot(t)
	need(t, "qemu-img", "qemu-nbd", "qemu-io", "nbdcopy")
	dir := filepath.Join(openDir(t), "secret")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	data = content(9)
	path = writeFile(t, filepath.Join(dir, "data"), data)
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path, data
}

// owned gives files to the attacker.
func owned(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Lchown(path, attacker, attackerGroup); err != nil {
			t.Fatal(err)
		}
	}
}

// withData makes a qcow2 of which data is the external data file.
func withData(t *testing.T, path, data string) {
	t.Helper()
	stand := filepath.Join(openDir(t), "stand-in")
	stand += strings.Repeat("x", max(0, len(data)-len(stand)))
	if len(stand) > len(data) {
		t.Fatalf("%s is too short", data)
	}
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "preallocation=metadata,data_file_raw=on,data_file="+stand, path, "6M")
	patchFile(t, path, stand, data)
}

func TestAttack_backing_file(t *testing.T) {
	path, data := secret(t, 0o600)
	image := backed(t, filepath.Join(openDir(t), "a.qcow2"), path, "raw")

	// The attack is one: root's own image, or a trusted one, shows the file.
	wantContent(t, serve(t, Options{Path: image}), data)
	owned(t, image)
	wantContent(t, serve(t, Options{Path: image, TrustChain: true}), data)

	err := refused(t, Options{Path: image}, path, "uid 54321", "read", "chain=trust")
	if !errors.Is(err, ErrRefused) {
		t.Error("it is not ErrRefused")
	}
}

func TestAttack_data_file(t *testing.T) {
	path, data := secret(t, 0o600)
	image := filepath.Join(openDir(t), "a.qcow2")
	long := filepath.Join(filepath.Dir(path), strings.Repeat("y", 100))
	if err := os.Rename(path, long); err != nil {
		t.Fatal(err)
	}
	withData(t, image, long)

	s := serve(t, Options{Path: image, Writable: true})
	wantContent(t, s, data)
	run(t, "qemu-io", "-f", "raw", "-c", "write -P 0x77 0 64k", s.URI())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	changed, err := os.ReadFile(long)
	if err != nil || bytes.Equal(changed, data) {
		t.Fatalf("the attack is none: %v", err)
	}

	owned(t, image)
	refused(t, Options{Path: image}, long, "read")
	refused(t, Options{Path: image, Writable: true}, long, "read and write")
	if now, err := os.ReadFile(long); err != nil || !bytes.Equal(now, changed) {
		t.Errorf("the file was changed: %v", err)
	}

	// Open to all to read, but not to write.
	if err := os.Chmod(filepath.Dir(long), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(long, 0o644); err != nil {
		t.Fatal(err)
	}
	wantContent(t, serve(t, Options{Path: image}), changed)
	refused(t, Options{Path: image, Writable: true}, long, "read and write")
}

func TestAttack_ways(t *testing.T) {
	for _, row := range []struct {
		name string
		mode os.FileMode // of the secret file
		make func(t *testing.T, dir, secret string) string
		want []string
	}{
		{"file for all in a closed directory", 0o644, func(t *testing.T, dir, secret string) string {
			return backed(t, dir+"/a.qcow2", secret, "raw")
		}, nil},
		{"by a relative name", 0o600, func(t *testing.T, dir, secret string) string {
			return backed(t, dir+"/a.qcow2", "../.././../../../../.."+secret, "raw")
		}, nil},
		{"by a link of the attacker's", 0o600, func(t *testing.T, dir, secret string) string {
			if err := os.Symlink(secret, dir+"/link"); err != nil {
				t.Fatal(err)
			}
			owned(t, dir+"/link")
			return backed(t, dir+"/a.qcow2", "link", "raw")
		}, nil},
		{"behind files that are allowed", 0o600, func(t *testing.T, dir, secret string) string {
			owned(t, backed(t, dir+"/b.qcow2", secret, "raw"))
			return backed(t, dir+"/a.qcow2", "b.qcow2", "qcow2")
		}, []string{"of " /* b */}},
		{"behind a file of root's", 0o600, func(t *testing.T, dir, secret string) string {
			owned(t, backed(t, dir+"/b.qcow2", secret, "raw"))
			owned(t, backed(t, dir+"/c.qcow2", dir+"/b.qcow2", "qcow2"))
			return overlay(t, dir+"/root.qcow2", "qcow2", "c.qcow2", "qcow2")
		}, []string{"who owns", "c.qcow2"}},
		{"with a name that writes to the terminal", 0o644, func(t *testing.T, dir, secret string) string {
			name := filepath.Dir(secret) + "/x\x1b[2J\n"
			if err := os.Rename(secret, name); err != nil {
				t.Fatal(err)
			}
			writeFile(t, secret, nil)
			return backed(t, dir+"/a.qcow2", name, "raw")
		}, []string{`x\x1b[2J\n`}},
		{"as another format", 0o600, func(t *testing.T, dir, secret string) string {
			return backed(t, dir+"/a.qcow2", secret, "qcow2")
		}, nil},
		{"next to the image, which the owner cannot reach", 0o644, func(t *testing.T, dir, secret string) string {
			return backed(t, filepath.Dir(secret)+"/a.qcow2", "data", "raw")
		}, nil},
		{"several", 0o600, func(t *testing.T, dir, secret string) string {
			backed(t, filepath.Dir(secret)+"/b.qcow2", "data", "raw")
			return backed(t, dir+"/a.qcow2", filepath.Dir(secret)+"/b.qcow2", "qcow2")
		}, []string{"/b.qcow2 of "}},
		{"by the old prefix of files", 0o600, func(t *testing.T, dir, secret string) string {
			return backed(t, dir+"/a.qcow2", "file:"+secret, "raw")
		}, nil},
		{"extent", 0o600, func(t *testing.T, dir, secret string) string {
			text := "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\nRW 12288 FLAT \"" + secret + "\" 0\n"
			return writeFile(t, dir+"/a.vmdk", []byte(text))
		}, nil},
		{"parent of a vmdk", 0o600, func(t *testing.T, dir, secret string) string {
			hint := "x" + strings.Repeat("p", len(secret)-1)
			convert(t, content(1), dir+"/"+hint[:20], "vmdk")
			t.Chdir(dir)
			if err := os.Rename(hint[:20], hint); err != nil {
				t.Fatal(err)
			}
			overlay(t, "a.vmdk", "vmdk", hint, "vmdk")
			patchFile(t, "a.vmdk", hint, secret)
			return dir + "/a.vmdk"
		}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			path, _ := secret(t, row.mode)
			image := row.make(t, openDir(t), path)
			if filepath.Base(image) != "root.qcow2" {
				owned(t, image)
			}
			refused(t, Options{Path: image}, append(row.want, filepath.Dir(path), ErrRefused.Error())...)
		})
	}
}

// A descriptor of ours is no way around a directory.
func TestAttack_our_descriptors(t *testing.T) {
	path, _ := secret(t, 0o644)
	held, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for _, name := range []string{procFD(int(held.Fd())), "/proc/self/fd/../fd/" + filepath.Base(procFD(int(held.Fd())))} {
		image := backed(t, filepath.Join(openDir(t), "a.qcow2"), name, "raw")
		owned(t, image)
		refused(t, Options{Path: image}, name)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	image := backed(t, filepath.Join(openDir(t), "a.qcow2"), procFD(int(dir.Fd()))+"/data", "raw")
	owned(t, image)
	refused(t, Options{Path: image}, procFD(int(dir.Fd())), "link")
}

// What the owner can open is served, by whatever right he has it.
func TestOwner_may(t *testing.T) {
	needRoot(t)
	need(t, "qemu-img", "qemu-nbd", "nbdcopy")
	data := content(1)
	for _, row := range []struct {
		name     string
		mode     os.FileMode
		uid, gid int
	}{
		{"his own", 0o400, attacker, 0},
		{"anybody's", 0o604, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := openDir(t)
			base := raw(t, dir, data)
			if err := errors.Join(os.Chown(base, row.uid, row.gid), os.Chmod(base, row.mode)); err != nil {
				t.Fatal(err)
			}
			image := overlay(t, dir+"/a.qcow2", "qcow2", base, "raw")
			owned(t, image)
			wantContent(t, serve(t, Options{Path: image}), data)
		})
	}
}
