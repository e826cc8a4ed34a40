package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary a program whose daemon behaves as it says.
const roleEnv = "HASHFS_TEST_DAEMON_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	if child, ok := Started(); ok {
		runChild(child, role)
		os.Exit(0)
	}
	err := Start(func(w string) { fmt.Println("warning:", w) })
	var failure *Error
	if errors.As(err, &failure) {
		fmt.Println("error:", failure.Message)
		os.Exit(failure.Status)
	}
	if err != nil {
		fmt.Println("start:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
}

// runChild leaves its pid in the file that the last argument names.
func runChild(c *Child, role string) {
	file := os.Args[len(os.Args)-1]
	switch role {
	case "ready":
		c.Warn("one\ntwo")
		c.Warn("three")
		os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0o600)
		if err := c.Ready(nil); err != nil {
			os.Exit(1)
		}
		// Its parent's output must have been let go: the test waits for it.
		time.Sleep(time.Hour)
	case "fail":
		c.Warn("first")
		c.Fail("what: why", 7)
	case "vanish":
		os.Exit(3)
	case "killed":
		unix.Kill(os.Getpid(), unix.SIGKILL)
		time.Sleep(time.Hour)
	case "slow":
		os.WriteFile(file, nil, 0o600)
		time.Sleep(time.Hour)
	}
}

func command(t *testing.T, role string) (cmd *exec.Cmd, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "pid")
	cmd = exec.Command("/proc/self/exe", file)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, "GORACE=atexit_sleep_ms=0")
	return cmd, file
}

func TestStart_ready(t *testing.T) {
	cmd, file := command(t, "ready")
	cmd.Args[0] = "/usr/bin/called-so"
	stray, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer stray.Close()
	cmd.ExtraFiles = []*os.File{stray} // must not reach the daemon
	out, err := cmd.CombinedOutput()   // ends only when the daemon let go of it
	if err != nil {
		t.Fatal(err, string(out))
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(content))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(pid, unix.SIGKILL)
	if got, want := string(out), "warning: one\ntwo\nwarning: three\nready\n"; got != want {
		t.Errorf("output %q, want %q", got, want)
	}
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("the daemon %d belongs to %d, %v", pid, sid, err)
	}
	// ps, top and pkill know a process by this; /proc/self/exe would be "exe".
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || string(name) != "called-so\n" {
		t.Errorf("the daemon is called %q, %v", name, err)
	}
	for name, want := range map[string]string{"cwd": "/", "fd/0": "/dev/null", "fd/1": "/dev/null", "fd/2": "/dev/null"} {
		if got, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, name)); err != nil || got != want {
			t.Errorf("the daemon's %s is %s, %v; want %s", name, got, err, want)
		}
	}
	// The daemon closes its end just after the parent has heard of it.
	for range 2000 {
		if len(held(pid)) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("the daemon still holds %v", held(pid))
}

// held lists the pipes, and files like the stray one of the test, that a
// process has open beyond the standard files.
func held(pid int) (open []string) {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	for _, e := range entries {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		if n, _ := strconv.Atoi(e.Name()); n > 2 && (to == os.DevNull || strings.HasPrefix(to, "pipe:")) {
			open = append(open, e.Name()+" "+to)
		}
	}
	return open
}

func TestStart_failures(t *testing.T) {
	for _, row := range []struct {
		role, want string
		status     int
	}{
		{"fail", "warning: first\nerror: what: why\n", 7},
		{"vanish", "start: the daemon ended before it was ready: exit status 3\n", 1},
		{"killed", "start: the daemon ended before it was ready: signal: killed\n", 1},
	} {
		cmd, _ := command(t, row.role)
		out, _ := cmd.CombinedOutput()
		if string(out) != row.want || cmd.ProcessState.ExitCode() != row.status {
			t.Errorf("%s: status %d, output %q; want %d, %q", row.role, cmd.ProcessState.ExitCode(), out, row.status, row.want)
		}
	}
}

func TestStart_interrupted(t *testing.T) {
	cmd, file := command(t, "slow")
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2000 { // until the daemon runs
		if _, err := os.Stat(file); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	cmd.Process.Signal(unix.SIGINT)
	if err := cmd.Wait(); err == nil || out.String() != "start: interrupted\n" {
		t.Errorf("%v, output %q", err, out.String())
	}
}
