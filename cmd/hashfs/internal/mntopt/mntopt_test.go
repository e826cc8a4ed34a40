package mntopt

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func own(name string) bool {
	return name == "allow-other" || name == "writable" || name == "digest" || name == "owner"
}

func TestParse_accepts(t *testing.T) {
	for _, row := range []struct {
		name  string
		lists []string
		want  Result
	}{
		{"nothing", nil, Result{}},
		{"empty", []string{"", ",,"}, Result{}},
		{"as mount(8) calls it", []string{"rw,allow_other,dev,suid"}, Result{Own: []Option{{Name: "allow-other"}}}},
		{"dashes", []string{"allow-other"}, Result{Own: []Option{{Name: "allow-other"}}}},
		{"value", []string{"digest=sha512/64k"}, Result{Own: []Option{{"digest", "sha512/64k", true}}}},
		{"order is kept", []string{"writable,digest=a", "digest=b=c"},
			Result{Own: []Option{{Name: "writable"}, {"digest", "a", true}, {"digest", "b=c", true}}}},
		{"escaped comma", []string{`digest=a\,b\\c,writable`}, Result{Own: []Option{{"digest", `a,b\c`, true}, {Name: "writable"}}}},
		{"backslash at the end", []string{`digest=a\`}, Result{Own: []Option{{"digest", `a\`, true}}}},
		{"our owner", []string{"owner=root"}, Result{Own: []Option{{"owner", "root", true}}}},
		{"owner of fstab", []string{"owner"}, Result{}},
		{"of an ordinary user in fstab", []string{"rw,noexec,nosuid,nodev,user=joe"}, Result{Kernel: []string{"noexec"}}},
		{"standard", []string{"defaults,noauto,users,_netdev,nofail,noatime,relatime,x-systemd.automount,x-a=b,comment=c"}, Result{}},
		{"ro", []string{"ro"}, Result{Kernel: []string{"ro"}, ReadOnly: true}},
		{"the last of ro and rw", []string{"ro,rw"}, Result{}},
		{"the last of rw and ro", []string{"rw", "ro"}, Result{Kernel: []string{"ro"}, ReadOnly: true}},
		{"for the kernel", []string{"sync,dirsync,noexec"}, Result{Kernel: []string{"noexec", "sync", "dirsync"}}},
		{"undone", []string{"sync,noexec,async,exec"}, Result{}},
		{"nonempty", []string{"nonempty"}, Result{NonEmpty: true}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := Parse(row.lists, own, false)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParse_refuses(t *testing.T) {
	for _, row := range []struct{ name, list, want string }{
		{"unknown", "rw,kernel_cache", `mount option "kernel_cache": unknown; see hashfs mount --help`},
		{"value for a standard one", "ro=1", `mount option "ro=1": unknown; see hashfs mount --help`},
		{"no name", "=a", `mount option "=a": no name given`},
		{"auto_unmount", "auto_unmount", `mount option auto_unmount: not supported: a dead mount is cleared by the next hashfs mount, or by hashfs umount`},
		{"uid", "uid=0", `mount option uid: not supported: use owner=USER[:GROUP]`},
		{"remount", "remount,ro", `mount option remount: not supported: unmount, and mount again`},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := Parse([]string{row.list}, own, false)
			if err == nil {
				t.Fatal("accepted")
			}
			if diff := cmp.Diff(row.want, err.Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParse_sloppy(t *testing.T) {
	got, err := Parse([]string{"kernel_cache,writable"}, own, true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Result{Own: []Option{{Name: "writable"}}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := Parse([]string{"auto_unmount"}, own, true); err == nil {
		t.Error("auto_unmount was accepted")
	}
}
