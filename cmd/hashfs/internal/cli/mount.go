package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hashfs/cmd/hashfs/internal/daemon"
	"hashfs/cmd/hashfs/internal/mntopt"
	"hashfs/cmd/hashfs/internal/source"
	"hashfs/hasher"
)

type mountOptions struct {
	writable   bool
	digest     specValue
	cacheSize  sizeValue
	jobs       int
	owner      ownerValue
	mode       modeValue
	allowOther bool
	logFile    string
	foreground bool
	options    []string // of -o
	remote     remoteOptions

	byType  bool   // called as mount(8) does
	fake    bool   // mount -f
	sloppy  bool   // mount -s
	version string // of the program
}

// mountLong is a function, since it lists the algorithms there are.
func mountLong() string {
	return `mount shows each SOURCE as a directory below MOUNTPOINT and returns as soon as that can be used, while a daemon goes on. With --foreground it stays, and tells systemd (Type=notify) when the mount can be used.

A SOURCE is [NAME=]LOCATION[,option=value...]. NAME, by default the last part of LOCATION without its suffix, is the image's directory. A comma in a location is doubled; a location with an equals sign before its first slash is written ./LOCATION. The options are:

  digest=DIGEST[/SIZE]  as --digest, for this image
  writable              as --writable, for this image
  format=FORMAT         what the file is, whatever its name says: raw,
                        qcow2, vmdk, vhdx, vdi, or another of qemu's
  snapshot=NAME         an internal snapshot of a qcow2
  chain=trust           serve backing and data files that the owner of the
                        image could not open himself
  cache=keep|none       keep digests between opens, or not (default: keep
                        where no change from outside can go unnoticed)

A LOCATION is a regular file, a block device, an NBD URI (nbd://, nbds://, nbd+unix://, nbds+unix://), or a directory, whose files called *.raw, *.img, *.qcow2, *.vmdk, *.vhdx and *.vdi are taken, once and without following links. The name of a file says what it is, never its content: by its suffix, or else raw. Formats other than raw need qemu-nbd (Debian's qemu-utils).

A DIGEST is one of ` + strings.Join(digestNames(), ", ") + `. SIZE, the length of a block, is a power of two from 4 bytes to 64m; by default it is 64k.

Images are read-only unless --writable. Their size cannot change through the mount.

Each flag is also a mount option, -o allow_other,digest=sha512. Of the options of mount(8), ro and noexec, sync, dirsync do what they say, nonempty lets MOUNTPOINT hold files, and those without a meaning here are ignored.

The daemon ends when the mount is unmounted, and on SIGTERM and SIGINT, which unmount. When the mount is busy, it is detached, and served until the last file is closed; a second signal ends it at once. Messages of the daemon go to --log-file, else to syslog, else to standard error where that is a file.`
}

const mountExample = `  hashfs mount vm1.img vm2.img /mnt
  hashfs mount --allow-other --owner root:backup --mode 0440 /srv/images /mnt
  hashfs mount root=/data/a.img,digest=blake3/1m,writable /mnt
  mount -t fuse.hashfs -o writable /data/a.img /mnt

  in /etc/fstab:
  /data/a.img  /mnt  fuse.hashfs  allow_other,noauto  0  0`

func newMountCommand(version string) *cobra.Command {
	o := &mountOptions{digest: newSpecValue(), version: version}
	c := &cobra.Command{
		Use:     "mount [flags] SOURCE... MOUNTPOINT",
		Short:   "show images below a directory",
		Long:    mountLong(),
		Example: mountExample,
		Args:    arguments(2, -1, "a SOURCE and a MOUNTPOINT are needed"),
	}
	setUsage(c,
		"hashfs mount [flags] SOURCE... MOUNTPOINT",
		"hashfs SOURCE MOUNTPOINT [-o OPTIONS]     (as mount(8) calls it)")
	shared := o.flags()
	c.Flags().AddFlagSet(shared)
	c.RunE = func(c *cobra.Command, args []string) error { return runMount(c, o, shared, args) }
	c.RegisterFlagCompletionFunc("digest", completeDigest)
	return c
}

// newMountTypeCommand makes the command for mount(8): -sfnv, -N and -t are
// what it passes on beside the options (see "External helpers" there).
func newMountTypeCommand(version string) *cobra.Command {
	o := &mountOptions{digest: newSpecValue(), version: version, byType: true}
	c := &cobra.Command{
		Use:    mountType + " SOURCE MOUNTPOINT [-o OPTIONS]",
		Short:  "mount as mount(8) asks for it",
		Hidden: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("mount: a SOURCE and a MOUNTPOINT are needed, and nothing more; see hashfs mount --help")
			}
			return nil
		},
	}
	shared := o.flags()
	f := c.Flags()
	f.AddFlagSet(shared)
	f.BoolVarP(&o.sloppy, "sloppy", "s", false, "ignore unknown options")
	f.BoolVarP(&o.fake, "fake", "f", false, "do everything but mount")
	f.BoolP("no-mtab", "n", false, "no effect")
	f.BoolP("verbose", "v", false, "no effect")
	f.StringP("type", "t", "", "no effect")
	c.RunE = func(c *cobra.Command, args []string) error { return runMount(c, o, shared, args) }
	return c
}

// flags returns the flags that are mount options too.
func (o *mountOptions) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("mount", pflag.ContinueOnError)
	f.BoolVar(&o.writable, "writable", false, "let all images be written")
	f.Var(&o.digest, "digest", "digest, and length of a block, of all images that do not say otherwise")
	f.Var(&o.cacheSize, "cache-size", "bound of the memory for digests, with a suffix k, m, g (default: what all images need, at most a quarter of the memory)")
	f.IntVar(&o.jobs, "jobs", 0, "number `N` of threads that hash (default: that of the processors)")
	f.Var(&o.owner, "owner", "owner of the files (default: that of the image; an ordinary user's own)")
	f.Var(&o.mode, "mode", "permissions of the files, in octal, for the group at most (default: 0400, image 0600 when writable)")
	f.BoolVar(&o.allowOther, "allow-other", false, "let other users in, as far as owner and mode let them")
	f.StringVar(&o.logFile, "log-file", "", "`FILE` to which the daemon adds its messages (default: syslog)")
	f.BoolVar(&o.foreground, "foreground", false, "do not go into the background, log to standard error")
	o.remote.addFlags(f)
	f.StringArrayVarP(&o.options, "options", "o", nil, "mount `OPTIONS`, separated by commas")
	return f
}

// A mountPlan is a mount command that has been understood. Nothing on the
// machine has been looked at yet.
type mountPlan struct {
	*mountOptions
	sources  []source.Source
	point    string
	kernel   []string // options of the mount(2) call
	nonEmpty bool
}

func runMount(c *cobra.Command, o *mountOptions, shared *pflag.FlagSet, args []string) error {
	child, isChild := daemon.Started()
	plan, err := o.plan(shared, args)
	warn := func(text string) { complain(c.ErrOrStderr(), "warning: %s", text) }
	switch {
	case err == nil && o.fake:
		return nil
	case isChild && err == nil:
		return plan.serveAsChild(c.Context(), child)
	case isChild:
		// The parent, with the same arguments, saw no error.
		child.Fail(oneLine(err.Error()), exitUsage)
		return statusError(exitUsage)
	case err != nil:
		return err
	case o.foreground:
		return plan.serveInForeground(c.Context(), warn)
	}
	return daemon.Start(warn)
}

// plan takes the options of -o into o and checks what can be checked by
// looking at the command line alone. Its errors are usage errors.
func (o *mountOptions) plan(shared *pflag.FlagSet, args []string) (*mountPlan, error) {
	own := func(name string) bool { return name != "options" && shared.Lookup(name) != nil }
	r, err := mntopt.Parse(o.options, own, o.sloppy)
	if err != nil {
		return nil, usageError{err}
	}
	for _, option := range r.Own {
		if err := applyOption(shared.Lookup(option.Name), option); err != nil {
			return nil, usageError{err}
		}
	}
	if o.jobs < 0 {
		return nil, usagef("--jobs %d: a number of threads cannot be negative", o.jobs)
	}
	if err := o.remote.check(); err != nil {
		return nil, err
	}
	p := &mountPlan{mountOptions: o, kernel: r.Kernel, nonEmpty: r.NonEmpty}
	p.point = args[len(args)-1]
	for _, arg := range args[:len(args)-1] {
		if o.byType {
			// fstab's old way to name the type; mount.fuse takes it
			// off, but not everybody goes through that.
			arg = strings.TrimPrefix(arg, "hashfs#")
		}
		s, err := source.Parse(arg)
		if err != nil {
			return nil, usageError{err}
		}
		s.Writable = s.Writable || o.writable
		if s.Writable && r.ReadOnly {
			return nil, usageError{mntopt.ErrReadOnly}
		}
		p.sources = append(p.sources, s)
	}
	return p, nil
}

// applyOption sets a flag from a mount option. The flag itself, or the same
// option once more, must not have said something else.
func applyOption(f *pflag.Flag, option mntopt.Option) error {
	value := option.Value
	if !option.HasValue {
		if f.NoOptDefVal == "" {
			return fmt.Errorf("mount option %s: no value given", option.Name)
		}
		value = f.NoOptDefVal
	}
	before := f.Value.String()
	if err := f.Value.Set(value); err != nil {
		return fmt.Errorf("mount option %s=%s: %w", option.Name, value, err)
	}
	if after := f.Value.String(); f.Changed && before != after {
		return fmt.Errorf("mount option %s: both %s and %s given", option.Name, before, after)
	}
	f.Changed = true
	return nil
}

// spec returns what the digests of s are.
func (p *mountPlan) spec(s source.Source) (hasher.Spec, error) {
	if s.Digest == "" {
		return p.digest.Spec, nil
	}
	return hasher.ParseSpec(s.Digest)
}

func digestNames() []string {
	var names []string
	for _, a := range hasher.Algorithms() {
		names = append(names, a.Name())
	}
	return names
}

func completeDigest(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return digestNames(), cobra.ShellCompDirectiveNoFileComp
}

// setPath gives a PATH to the programs that are run: mount(8) gives us none.
func setPath() {
	if os.Getenv("PATH") == "" {
		os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	}
}
