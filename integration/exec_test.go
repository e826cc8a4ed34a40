package integration

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is the hard timeout of a client: far longer than any takes, also
// under -race on a busy machine.
const patience = 2 * time.Minute

// A result is what a command came to.
type result struct {
	Stdout, Stderr string
	Status         int // exit status; 128 and the signal when one ended it
}

// A call is a command to be run, with what it does not get from its arguments.
type call struct {
	argv  []string
	dir   string   // working directory
	stdin string   // content of its standard input
	env   []string // added to the environment
}

// run runs a command and returns what it came to. It fails the test only when
// the command cannot be run or does not end in time.
func run(t testing.TB, argv ...string) result {
	t.Helper()
	return call{argv: argv}.run(t)
}

// output runs a command that must succeed without a word on standard error,
// and returns its standard output.
func output(t testing.TB, argv ...string) string {
	t.Helper()
	return call{argv: argv}.output(t)
}

func (c call) output(t testing.TB) string {
	t.Helper()
	r := c.run(t)
	if r.Status != 0 || r.Stderr != "" {
		t.Fatalf("%q: status %d, stderr:\n%s", c.argv, r.Status, r.Stderr)
	}
	return r.Stdout
}

func (c call) run(t testing.TB) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stdin = strings.NewReader(c.stdin)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if status := wait(t, cmd); status >= 0 {
		return result{stdout.String(), stderr.String(), status}
	}
	// The buffers may still be written to.
	t.Fatalf("%q does not end, and cannot be killed", c.argv)
	return result{}
}

// wait runs cmd, in a process group of its own, and returns its status, or -1
// when it did not even end by SIGKILL.
func wait(t testing.TB, cmd *exec.Cmd) int {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Errorf("%q: not done after %v, killed", cmd.Args, patience)
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			return -1
		}
	}
	return exitStatus(cmd.ProcessState)
}

// exitStatus is as in a shell.
func exitStatus(s *os.ProcessState) int {
	if ws := s.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// packages are the Debian packages of the programs that need is asked for;
// others are in a package of their own name.
var packages = map[string]string{
	"blkid": "util-linux", "losetup": "util-linux", "setpriv": "util-linux", "prlimit": "util-linux", "unshare": "util-linux",
	"nsenter": "util-linux", "mount": "mount", "umount": "mount", "findmnt": "mount", "su": "util-linux",
	"awk": "mawk", "cmp": "diffutils", "diff": "diffutils", "find": "findutils", "getfattr": "attr",
	"fusermount3": "fuse3", "mount.fuse3": "fuse3",
	"mkfs.ext4": "e2fsprogs", "fsck.ext4": "e2fsprogs", "chattr": "e2fsprogs",
	"mkfs.xfs": "xfsprogs", "xfs_io": "xfsprogs",
	"nbdinfo": "libnbd-bin", "nbdcopy": "libnbd-bin",
	"mke2fs": "e2fsprogs", "e2fsck": "e2fsprogs", "debugfs": "e2fsprogs",
	"certtool": "gnutls-bin", "psktool": "gnutls-bin",
	"qemu-system-x86_64": "qemu-system-x86", "dpkg-deb": "dpkg", "apt-get": "apt", "apt-cache": "apt",
	"depmod": "kmod", "modprobe": "kmod", "ldd": "libc-bin",
	"qemu-img": "qemu-utils", "qemu-io": "qemu-utils", "qemu-nbd": "qemu-utils",
	"script": "bsdutils", "setfacl": "acl", "dmsetup": "dmsetup",
}

// need skips the test, or in CI fails it, when a program is missing.
func need(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			name := packages[tool]
			if name == "" {
				name = tool
			}
			missing(t, tool+" is not installed: apt install "+name)
		}
	}
}

// needRoot skips the test, or in CI fails it, for an ordinary user.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "only root can do this")
	}
}

// needFUSE skips the test, or in CI fails it, where nothing can be mounted.
func needFUSE(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		missing(t, err.Error()+": is the module fuse loaded?")
	}
	f.Close()
	if os.Geteuid() != 0 {
		need(t, "fusermount3")
	}
}

// missing ends the test: what it needs is not there.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// A running is a command that runs beside the test.
type running struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended; its output can be read then

	stdout, stderr bytes.Buffer
}

// startCommand starts a command in a process group of its own.
func startCommand(t testing.TB, argv ...string) *running {
	t.Helper()
	r := &running{t: t, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	go func() { r.cmd.Wait(); close(r.done) }()
	return r
}

// ended reports whether the command has ended.
func (r *running) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// result waits for the end of the command.
func (r *running) result() result {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.stop()
		r.t.Fatalf("%q: not done after %v", r.cmd.Args, patience)
	}
	return result{r.stdout.String(), r.stderr.String(), exitStatus(r.cmd.ProcessState)}
}

// stop ends the command, if it has not, by SIGKILL.
func (r *running) stop() {
	r.t.Helper()
	syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL)
	select {
	case <-r.done:
	case <-time.After(10 * time.Second):
		r.t.Errorf("%q cannot be killed", r.cmd.Args)
	}
}
