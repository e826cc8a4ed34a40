package filesrc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// findHolder says in words who has a lock on file, besides file itself, for an
// error message. The kernel tells no process for locks of open files, but each
// process's fdinfo lists its own (proc(5)); those of other users stay hidden
// from all but root. pid, if above 0, is known to be a holder.
func findHolder(file *os.File, pid int) string {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return "another process"
	}
	infos, _ := filepath.Glob("/proc/[0-9]*/fdinfo/*") // what cannot be listed is left out
	for _, info := range infos {
		part := strings.Split(info, "/") // "", proc, PID, fdinfo, FD
		self := part[2] == strconv.Itoa(os.Getpid())
		if self && part[4] == strconv.Itoa(int(file.Fd())) {
			continue
		}
		if !hasLock(info, st.Ino) {
			continue
		}
		// The lock names its file by numbers that need not be those of
		// stat(2), on Btrfs for one: look at the file itself.
		var other unix.Stat_t
		fd := strings.Replace(info, "/fdinfo/", "/fd/", 1)
		if unix.Stat(fd, &other) != nil || !sameFile(&st, &other) {
			continue
		}
		if self {
			return "this hashfs itself (is it given twice?)"
		}
		return process(part[2])
	}
	if pid > 0 {
		return process(strconv.Itoa(pid))
	}
	return "another process"
}

// hasLock reports whether an fdinfo file lists a record lock on inode ino,
// as in "lock:	1: OFDLCK  ADVISORY  READ -1 fe:00:1234 100 100".
func hasLock(info string, ino uint64) bool {
	data, err := os.ReadFile(info)
	if err != nil {
		return false
	}
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) < 7 || f[0] != "lock:" || f[2] != "OFDLCK" && f[2] != "POSIX" {
			continue
		}
		if strings.HasSuffix(f[6], ":"+strconv.FormatUint(ino, 10)) {
			return true
		}
	}
	return false
}

func process(pid string) string {
	comm, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil {
		return "process " + pid
	}
	return fmt.Sprintf("%q (process %s)", bytes.TrimSpace(comm), pid)
}
