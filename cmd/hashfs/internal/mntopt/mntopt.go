// Package mntopt reads the value of -o, in the form that mount(8) and fstab
// use: key[=value], separated by commas, a comma within a value escaped by a
// backslash as libfuse does.
//
// An option is one of hashfs's own, which the caller knows, or one of the
// options that every file system is given. Of those the ones that mean
// something to the kernel are kept, the ones that cannot matter are ignored,
// and everything else is refused: an option that is silently lost can be the
// one that the mount was to be protected by.
//
// Tested by tables.
package mntopt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// An Option is one of the file system's own options, its name with dashes.
type Option struct {
	Name     string
	Value    string
	HasValue bool
}

// A Result is what the options ask for.
type Result struct {
	Own      []Option // in the order given
	Kernel   []string // for the mount(2) call: ro, noexec, sync, dirsync
	ReadOnly bool     // ro was given, and no rw after it
	NonEmpty bool     // the mount point need not be empty
}

// ignored are standard options without effect here. rw is what mount(8)
// always says: only writable makes an image writable. dev and suid are added
// by mount(8) too, but the mount is nodev and nosuid all the same. Times of
// access are not kept; the rest are for mount(8), systemd and fsck.
var ignored = set(`defaults dev nodev suid nosuid
	atime noatime diratime nodiratime relatime norelatime strictatime nostrictatime lazytime nolazytime
	iversion noiversion mand nomand silent loud default_permissions
	auto noauto user nouser users group owner _netdev nofail`)

// switched are the options that undo each other, the last one counts.
var switched = map[string]string{"rw": "ro", "exec": "noexec", "async": "sync"}

var kernel = []string{"ro", "noexec", "sync", "dirsync"}

// refused tells why, for options that other file systems do know.
var refused = map[string]string{
	// libfuse's auto_unmount keeps a fusermount3 process, for which
	// go-fuse waits for ever.
	"auto_unmount": "not supported: a dead mount is cleared by the next hashfs mount, or by hashfs umount",
	"allow_root":   "not supported: use allow_other",
	"remount":      "not supported: unmount, and mount again",
	"uid":          "not supported: use owner=USER[:GROUP]",
	"gid":          "not supported: use owner=USER[:GROUP]",
	"umask":        "not supported: use mode=MODE",
}

// Parse reads lists of options. A key for which own is true, underscores
// being taken for dashes, is an option of hashfs itself. With sloppy, which
// is the -s of mount(8), unknown options are ignored.
func Parse(lists []string, own func(name string) bool, sloppy bool) (Result, error) {
	var r Result
	on := map[string]bool{}
	for _, option := range split(lists) {
		key, value, hasValue := strings.Cut(option, "=")
		name := strings.ReplaceAll(key, "_", "-")
		off, isOff := switched[key]
		switch {
		case key == "":
			return Result{}, fmt.Errorf("mount option %q: no name given", option)
		case key == "owner" && !hasValue: // fstab's: the owner of the device may mount
		case own(name):
			r.Own = append(r.Own, Option{name, value, hasValue})
		case key == "nonempty" && !hasValue:
			r.NonEmpty = true
		case isOff && !hasValue:
			on[off] = false
		case slices.Contains(kernel, key) && !hasValue:
			on[key] = true
		case ignored[key] && !hasValue:
		case strings.HasPrefix(key, "x-"), strings.HasPrefix(key, "X-"), key == "comment", key == "user":
		case refused[key] != "":
			return Result{}, fmt.Errorf("mount option %s: %s", key, refused[key])
		case !sloppy:
			return Result{}, fmt.Errorf("mount option %q: unknown; see hashfs mount --help", option)
		}
	}
	for _, k := range kernel {
		if on[k] {
			r.Kernel = append(r.Kernel, k)
		}
	}
	r.ReadOnly = on["ro"]
	return r, nil
}

// ErrReadOnly: a writable image was asked for on a mount with the option ro.
var ErrReadOnly = errors.New("the mount options ro and writable contradict each other")

// split splits at commas that have no backslash before them. Empty options
// are dropped, as mount(8) does.
func split(lists []string) []string {
	var options []string
	for _, list := range lists {
		var option strings.Builder
		flush := func() {
			if option.Len() > 0 {
				options = append(options, option.String())
			}
			option.Reset()
		}
		for i := 0; i < len(list); i++ {
			switch {
			case list[i] == '\\' && i+1 < len(list):
				i++
				option.WriteByte(list[i])
			case list[i] == ',':
				flush()
			default:
				option.WriteByte(list[i])
			}
		}
		flush()
	}
	return options
}

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}
