package qemunbd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func contextOf() context.Context { return context.Background() }

// wrapper puts a shell script before the real qemu-nbd.
func wrapper(t *testing.T, script string) {
	t.Helper()
	need(t, program)
	real, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script = "#!/bin/sh\n" + strings.ReplaceAll(script, "QEMU_NBD", real) + "\n"
	if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// A header that is changed after it was checked does not get its way.
func TestVerify_header_changed_meanwhile(t *testing.T) {
	need(t, "qemu-img", "qemu-nbd")
	dir := t.TempDir()
	data := content(1)
	image := convert(t, data, dir+"/a.qcow2", "qcow2")
	forged := dir + "/forged.qcow2"
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "data_file="+dir+"/other", forged, "6M")

	backing := backed(t, dir+"/backed.qcow2", raw(t, dir, data), "raw")
	t.Run("data file", func(t *testing.T) {
		wrapper(t, fmt.Sprintf(`cat %s > %s; exec QEMU_NBD "$@"`, forged, image))
		refused(t, Options{Path: image}, ErrRefused.Error(), dir+"/other")
	})
	t.Run("backing file", func(t *testing.T) {
		plain := convert(t, data, dir+"/b.qcow2", "qcow2")
		wrapper(t, fmt.Sprintf(`cat %s > %s; exec QEMU_NBD "$@"`, backing, plain))
		// Not followed at all: the new header has no data of its own.
		wantContent(t, serve(t, Options{Path: plain}), make([]byte, imageSize))
	})
}

// QEMU opens the chain's files by their descriptors, and nothing besides.
func TestVerify_opens_nothing_else(t *testing.T) {
	need(t, "strace", "qemu-img", "qemu-nbd", "nbdcopy")
	for _, row := range []struct {
		name string
		make func(t *testing.T, dir string) string
		want int
	}{
		{"qcow2 over vmdk with extents", func(t *testing.T, dir string) string {
			convert(t, content(1), dir+"/base.vmdk", "vmdk", "-o", "subformat=twoGbMaxExtentFlat")
			return overlay(t, dir+"/a.qcow2", "qcow2", dir+"/base.vmdk", "vmdk")
		}, 3},
		{"qcow2 with data file", func(t *testing.T, dir string) string {
			return convert(t, content(1), dir+"/a.qcow2", "qcow2", "-o", "data_file="+dir+"/a.data")
		}, 2},
		{"vhdx", func(t *testing.T, dir string) string {
			return convert(t, content(1), dir+"/a.vhdx", "vhdx")
		}, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			image := row.make(t, dir)
			trace := filepath.Join(t.TempDir(), "trace")
			wrapper(t, fmt.Sprintf(`exec strace -D -f -qq -e trace=open,openat,openat2,creat,connect -o %s QEMU_NBD "$@"`, trace))
			s := serve(t, Options{Path: image})
			read(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(trace)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), dir) || strings.Contains(string(text), "connect(") {
				t.Errorf("a file was opened by its name, or a connection made:\n%s", text)
			}
			// What any program opens, and files that say what the machine has.
			system := regexp.MustCompile(`"(/etc/|/lib/|/lib64/|/usr/|/sys/|/dev/null|/dev/urandom|/proc/self/status|/proc/filesystems|/proc/self/maps)`)
			var opened []string
			for line := range strings.Lines(string(text)) {
				if m := regexp.MustCompile(`open\w*\(.*"(.*)"`).FindStringSubmatch(line); m != nil && !system.MatchString(line) {
					opened = append(opened, m[1])
				}
			}
			slices.Sort(opened)
			opened = slices.Compact(opened)
			var want []string
			for i := range row.want {
				want = append(want, procFD(firstFD+i))
			}
			if !slices.Equal(opened, want) {
				t.Errorf("opened %q, want %q", opened, want)
			}
		})
	}
}
