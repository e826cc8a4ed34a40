package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// guestTime is how long the guest may take from power on to power off. Its
// processor is emulated.
const guestTime = 10 * time.Minute

// A guest has its disk on the image of a mount, makes a file system on it and
// writes files, while the checksum is read again and again. In the end it is
// that of the image as it is found by other ways, and the file system is clean.
func TestGuest(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	t.Parallel()
	needNBD(t)
	needRoot(t)
	need(t, "qemu-system-x86_64", "qemu-img", "e2fsck", "debugfs")
	dir := scratch(t)
	kernel, initramfs := guestSystem(t, dir)
	disk := filepath.Join(dir, "disk.qcow2")
	output(t, "qemu-img", "create", "-q", "-f", "qcow2", disk, "64M")
	m := mount(t, "--writable", disk)

	guest := startCommand(t, "qemu-system-x86_64", "-accel", "tcg", "-nodefaults", "-no-user-config", "-display", "none",
		"-m", "256", "-no-reboot", "-serial", "stdio", "-kernel", kernel, "-initrd", initramfs,
		"-append", "console=ttyS0 quiet panic=-1",
		"-drive", "if=none,id=d,format=raw,cache=none,discard=unmap,file="+m.path("disk", "image"),
		"-device", "virtio-blk-pci,drive=d")
	defer guest.stop()
	sums := watchChecksum(t, m, guest)
	if !guest.ended() {
		guest.stop()
		t.Fatalf("the guest is not through after %v: %s", guestTime, guest.stdout.String())
	}
	r := guest.result()
	if r.Status != 0 || r.Stderr != "" || !strings.Contains(r.Stdout, guestDone) {
		t.Fatalf("the guest: %+v", r)
	}
	if len(sums) < 3 {
		t.Errorf("the checksum was %v, of how many reads", sums)
	}
	last := m.read("disk", "checksum")
	m.unmount()

	raw := filepath.Join(dir, "disk.raw")
	output(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", disk, raw)
	same(t, "checksum", last, newOracle([]byte(readFile(t, raw))).checksum())
	if blkhash, ok := blkhashOf(t, disk); ok {
		same(t, "nbdcopy --blkhash", blkhash, last)
	}
	output(t, "qemu-img", "check", "-f", "qcow2", disk)
	if r := run(t, "e2fsck", "-f", "-n", raw); r.Status != 0 {
		t.Errorf("e2fsck: %+v", r)
	}
	r = run(t, "debugfs", "-R", "cat /"+guestFile, raw)
	same(t, guestFile, r.Stdout, string(guestContent()))
}

// watchChecksum reads the checksum every second until the guest has powered
// off, and returns how often it was which.
func watchChecksum(t *testing.T, m *mounted, guest *running) map[string]int {
	t.Helper()
	sums := map[string]int{}
	for end := time.Now().Add(guestTime); time.Now().Before(end); {
		sum := m.read("disk", "checksum")
		if len(sum) != 65 || strings.Trim(sum, "0123456789abcdef") != "\n" {
			t.Fatalf("checksum %q", sum)
		}
		sums[sum]++
		select {
		case <-guest.done:
			return sums
		case <-time.After(time.Second):
		}
	}
	return sums
}

// blkhashOf returns what the nbdcopy of the environment variable NBDCOPY, 1.24
// or later, finds for an image, if there is one.
func blkhashOf(t *testing.T, image string) (string, bool) {
	t.Helper()
	nbdcopy := os.Getenv("NBDCOPY")
	if nbdcopy == "" {
		return "", false
	}
	// Over TCP, since it may be one that sees other files, of a newer system's.
	port := freePort(t)
	server := startCommand(t, "qemu-nbd", "--persistent", "--read-only", "--shared=0", "--bind=127.0.0.1", "--port="+port, "-f", "qcow2", image)
	defer server.stop()
	awaitTCP(t, port)
	return output(t, nbdcopy, "--blkhash=sha256/64k", "nbd://127.0.0.1:"+port, "null:"), true
}

const (
	guestDone = "the guest has finished"
	guestFile = "numbers"
)

// guestContent is what the guest writes into guestFile.
func guestContent() []byte {
	var b bytes.Buffer
	for i := 1; i <= 200000; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.Bytes()
}

// guestInit is the guest's first process.
const guestInit = `#!/bin/busybox sh
set -e
trap 'echo "the guest has failed"; poweroff -f' EXIT
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
modprobe -a MODULES
mke2fs -q -t ext4 /dev/vda
mount -t ext4 -o discard /dev/vda /mnt
mkdir /mnt/dir
for i in 1 2 3 4 5; do
	dd if=/dev/urandom of=/mnt/dir/$i bs=64k count=40 2>/dev/null
	sync
	sleep 1
done
seq 1 200000 >/mnt/` + guestFile + `
rm /mnt/dir/2 /mnt/dir/4
dd if=/dev/urandom of=/mnt/dir/5 bs=1000 seek=7 count=30 conv=notrunc,fsync 2>/dev/null
sync
fstrim /mnt
umount /mnt
sync
echo "` + guestDone + `"
trap - EXIT
poweroff -f
`

// guestModules are what the guest needs of the kernel.
var guestModules = []string{"virtio_pci", "virtio_blk", "ext4"}

// guestSystem gets a kernel of Debian's, and makes an initramfs for it, of
// programs of this system.
func guestSystem(t *testing.T, dir string) (kernel, initramfs string) {
	t.Helper()
	need(t, "apt-get", "apt-cache", "dpkg-deb", "depmod", "modprobe", "busybox", "mke2fs", "ldd")
	unpacked := filepath.Join(dir, "kernel")
	output(t, "dpkg-deb", "--extract", downloadKernel(t, dir), unpacked)
	kernels, _ := filepath.Glob(filepath.Join(unpacked, "boot", "vmlinuz-*"))
	if len(kernels) != 1 {
		t.Fatalf("kernels %q", kernels)
	}
	version := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	if usr := filepath.Join(unpacked, "usr", "lib"); !exists(filepath.Join(unpacked, "lib")) && exists(usr) {
		if err := os.Rename(usr, filepath.Join(unpacked, "lib")); err != nil {
			t.Fatal(err)
		}
	}
	output(t, "depmod", "--basedir", unpacked, version)

	root := filepath.Join(dir, "root")
	for _, d := range []string{"bin", "dev", "proc", "sys", "mnt", "etc", filepath.Join("lib", "modules", version)} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	init := strings.ReplaceAll(guestInit, "MODULES", strings.Join(guestModules, " "))
	if err := os.WriteFile(filepath.Join(root, "init"), []byte(init), 0o755); err != nil {
		t.Fatal(err)
	}
	copyModules(t, unpacked, root, version)
	for _, name := range []string{"busybox", "mke2fs", "modprobe"} {
		copyProgram(t, root, name)
	}
	for _, applet := range []string{"sh", "mount", "umount", "mkdir", "dd", "sync", "sleep", "seq", "rm", "fstrim", "poweroff", "echo"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	initramfs = filepath.Join(dir, "initramfs")
	output(t, "sh", "-c", `cd "$0" && find . | busybox cpio -o -H newc 2>/dev/null >"$1"`, root, initramfs)
	return kernels[0], initramfs
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// downloadKernel returns the package of the kernel for clouds, the smallest.
func downloadKernel(t *testing.T, dir string) string {
	t.Helper()
	const meta = "linux-image-cloud-amd64"
	for _, update := range []bool{false, true} {
		if update {
			run(t, "apt-get", "update")
		}
		// "  Depends: linux-image-6.1.0-57-cloud-amd64"
		for line := range strings.Lines(run(t, "apt-cache", "depends", meta).Stdout) {
			name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
			if !ok || !strings.HasPrefix(name, "linux-image-") {
				continue
			}
			// Its complaint is about a directory that the user _apt may not enter.
			call{argv: []string{"apt-get", "download", name}, dir: dir}.run(t)
			if found, _ := filepath.Glob(filepath.Join(dir, name+"_*.deb")); len(found) == 1 {
				return found[0]
			}
		}
	}
	missing(t, "apt-get cannot download "+meta+": a guest needs a kernel")
	return ""
}

// copyModules copies the modules that the guest needs, and what finds them.
func copyModules(t *testing.T, from, root, version string) {
	t.Helper()
	rel := filepath.Join("lib", "modules", version)
	files, _ := filepath.Glob(filepath.Join(from, rel, "modules.*"))
	// "insmod PATH" of each, in order; "builtin NAME" of what is in the kernel.
	argv := append([]string{"modprobe", "--dirname", from, "--set-version", version, "--show-depends", "--all"}, guestModules...)
	for line := range strings.Lines(output(t, argv...)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "insmod "); ok {
			files = append(files, path)
		}
	}
	for _, file := range files {
		at, err := filepath.Rel(from, file)
		if err != nil {
			t.Fatal(err)
		}
		copyFile(t, file, filepath.Join(root, at), 0o644)
	}
}

// copyProgram copies a program to /bin of root, with the libraries it needs.
func copyProgram(t *testing.T, root, name string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, path, filepath.Join(root, "bin", name), 0o755)
	// "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)"; a static program
	// has none, which is an error.
	for line := range strings.Lines(run(t, "ldd", path).Stdout) {
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "/") {
				copyFile(t, word, filepath.Join(root, word), 0o755)
			}
		}
	}
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, mode); err != nil {
		t.Fatal(err)
	}
}
