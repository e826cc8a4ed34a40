package integration

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serveSource serves an image of size bytes, none of them zero, as a regular
// file on the FUSE file system of another program, which filters of nbdkit can
// make slow. A read from it is of 128 KiB at most.
func serveSource(t testing.TB, size int64, arguments ...string) (path string) {
	t.Helper()
	needRoot(t)
	need(t, "nbdkit", "nbdfuse")
	dir := newPoint(t, 0)
	path = filepath.Join(dir, "disk.img")
	argv := append([]string{path, "--command", "nbdkit", "-s", "--exit-with-parent", "pattern", fmt.Sprint(size)}, arguments...)
	server := exec.Command("nbdfuse", argv...)
	var stderr bytes.Buffer
	server.Stderr = &stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Unmount(dir, unix.MNT_DETACH)
		server.Process.Kill()
		server.Wait()
		if t.Failed() {
			t.Log(stderr.String())
		}
	})
	awaitFile(t, path)
	return path
}

// pattern is what such an image has: the offset of each eight bytes.
func pattern(size int64) []byte {
	data := make([]byte, size)
	for i := range size / 8 {
		for k := range int64(8) {
			data[8*i+k] = byte((8 * i) >> (56 - 8*k))
		}
	}
	return data
}

// ends waits for the end of a client that got this signal, and returns when
// that came.
func ends(t testing.TB, cmd *exec.Cmd, s syscall.Signal) (after time.Duration) {
	t.Helper()
	begun := time.Now()
	cmd.Process.Signal(s)
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatalf("%q does not end by %v", cmd.Args, s)
	}
	if got := exitStatus(cmd.ProcessState); got != 128+int(s) {
		t.Errorf("%q ended with status %d, want that of %v", cmd.Args, got, s)
	}
	return time.Since(begun)
}

// Who reads a checksum and is interrupted leaves at once, however long the
// block still takes; and the work that nobody waits for any more stops.
func TestInterrupt_checksum(t *testing.T) {
	t.Parallel()
	need(t, "cat")
	const bs = 64 * mib
	path := serveSource(t, 3*bs, "--filter=delay", "rdelay=20ms")
	d := mountDisk(t, path, fmt.Sprintf("--digest=sha256/%d", bs))
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		reader := exec.Command("cat", d.path("disk", "checksum"))
		if err := reader.Start(); err != nil {
			t.Fatal(err)
		}
		awaitWork(t, d, true)
		// The block takes ten seconds.
		if after := ends(t, reader, s); after > 2*time.Second {
			t.Errorf("cat ended %v after %v", after, s)
		}
		begun := time.Now()
		awaitWork(t, d, false)
		// It lingers for a second, for a reader that comes back.
		if after := time.Since(begun); after > 5*time.Second {
			t.Errorf("the work stopped %v after %v", after, s)
		}
		time.Sleep(time.Second) // for the reads under way
		before := d.metric(`hashfs_image_hashed_bytes_total{image="disk"}`)
		time.Sleep(time.Second)
		if after := d.metric(`hashfs_image_hashed_bytes_total{image="disk"}`); after != before {
			t.Errorf("after the end of the work %s bytes became %s", before, after)
		}
	}
}

// awaitWork returns when a checksum is being computed, or none is.
func awaitWork(t testing.TB, d *diskMount, going bool) {
	t.Helper()
	for range 1000 {
		if (len(d.info("disk").Work) > 0) == going {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("that a checksum is being computed does not become %v", going)
}

// metric returns the value of a series in .hashfs/metrics.
func (d *diskMount) metric(series string) string {
	d.t.Helper()
	for line := range strings.Lines(d.read(".hashfs", "metrics")) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	d.t.Fatalf("there is no %s in the metrics", series)
	return ""
}

// A source that does not answer holds up who reads it, and nobody else: they
// can leave, other images are served, and all goes on when it answers again.
func TestInterrupt_hanging_source(t *testing.T) {
	t.Parallel()
	need(t, "cat")
	const size = 40 * blockSize
	control := filepath.Join(scratch(t), "control")
	path := serveSource(t, size, "--filter=pause", "pause-control="+control)
	other := filepath.Join(scratch(t), "other.img")
	data := random(55, ioSize)
	writeImage(t, other, data)
	d := mountDisk(t, path, "other="+other)
	tell := newPause(t, control)

	tell("p")
	var readers []*exec.Cmd
	for _, name := range []string{"checksum", "digests", "sums/md5", "blocks/0000000000010000", "image"} {
		reader := exec.Command("cat", d.path("disk", name))
		if err := reader.Start(); err != nil {
			t.Fatal(err)
		}
		awaitSyscall(t, reader.Process.Pid, "fuse")
		readers = append(readers, reader)
	}
	same(t, "image of another", d.read("other", "image"), string(data))
	same(t, "checksum of another", d.read("other", "checksum"), newOracle(data).checksum())
	d.info("disk")
	for i, reader := range readers {
		s := []syscall.Signal{syscall.SIGINT, syscall.SIGKILL}[i%2]
		if after := ends(t, reader, s); after > 5*time.Second {
			t.Errorf("%q ended after %v", reader.Args, after)
		}
	}
	tell("r")
	d.checkDigests("disk", newOracle(pattern(size)))
}

// newPause returns what tells the pause filter of nbdkit to pause and to go on.
func newPause(t testing.TB, control string) (tell func(string)) {
	t.Helper()
	awaitFile(t, control)
	conn, err := net.Dial("unix", control)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func(command string) {
		t.Helper()
		answer := make([]byte, 1)
		if _, err := conn.Write([]byte(command)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(answer); err != nil || answer[0] == 'X' {
			t.Fatalf("the filter answers %q to %q, %v", answer, command, err)
		}
	}
}
