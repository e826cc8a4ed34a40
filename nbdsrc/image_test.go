//go:build cgo

package nbdsrc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestImage_restarted: the stamp after a change, which has qemu-nbd started
// again, is the new one's in all, its size too, and does not move once more.
func TestImage_restarted(t *testing.T) {
	need(t, "qemu-nbd")
	need(t, "qemu-img")
	dir := shortDir(t)
	path := filepath.Join(dir, "a.qcow2")
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "1M")
	im, err := OpenImage(t.Context(), ImageOptions{Path: path, Format: "qcow2"})
	check(t, err)
	t.Cleanup(func() { im.Close() })
	for size := int64(2); size < 12; size++ {
		other := filepath.Join(dir, "b.qcow2")
		run(t, "qemu-img", "create", "-q", "-f", "qcow2", other, fmt.Sprintf("%dM", size))
		check(t, os.Rename(other, path))
		start := time.Now()
		st, err := im.Stamp()
		check(t, err)
		// A server that fails often is left alone for long, this one is not.
		if d := time.Since(start); d > lastBackoff/2 {
			t.Errorf("it took %v", d)
		}
		if st.Size != size<<20 {
			t.Errorf("size %d MiB is %d", size, st.Size)
		}
		until(t, "it is connected again", func() bool { return im.Connections() > 1 })
		if again, err := im.Stamp(); err != nil || again != st {
			t.Errorf("stamp %+v, then %+v, %v", st, again, err)
		}
	}
}

// TestImage_child_killed: a stamp that is asked for before anybody knows that
// qemu-nbd has died does not keep the later ones waiting.
func TestImage_child_killed(t *testing.T) {
	need(t, "qemu-nbd")
	need(t, "qemu-img")
	path := filepath.Join(shortDir(t), "a.qcow2")
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "1M")
	im, err := OpenImage(t.Context(), ImageOptions{Path: path, Format: "qcow2"})
	check(t, err)
	t.Cleanup(func() { im.Close() })
	for range 10 {
		before, err := im.Stamp()
		check(t, err)
		check(t, syscall.Kill(child(t, "qemu-nbd"), syscall.SIGKILL))
		until(t, "another stamp", func() bool {
			start := time.Now()
			st, err := im.Stamp() // the first may come before its end
			if err != nil {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			return st != before
		})
	}
}

// child returns the process ID of the child of this process with that name.
func child(t *testing.T, name string) (found int) {
	t.Helper()
	until(t, "a "+name+" runs", func() bool {
		lists, err := filepath.Glob("/proc/self/task/*/children")
		check(t, err)
		for _, list := range lists {
			pids, _ := os.ReadFile(list) // a thread may have ended
			for _, field := range strings.Fields(string(pids)) {
				if comm, _ := os.ReadFile("/proc/" + field + "/comm"); string(comm) == name+"\n" {
					found, err = strconv.Atoi(field)
					check(t, err)
				}
			}
		}
		return found != 0
	})
	return found
}
