package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slack is what a busy machine may add to a bound in time.
const slack = 20 * time.Second

// lostOr fails the test unless err is one that a lost server may bring.
func lostOr(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ESTALE) {
		t.Errorf("%s: %v", what, err)
	}
}

// A server that dies in the middle of a hash fails the readers, and once it is
// back, here with other content, nothing of the old is left.
func TestLost_while_hashing(t *testing.T) {
	t.Parallel()
	needNBD(t)
	path := filepath.Join(scratch(t), "x.raw")
	before, after := random(70, 8*mib), random(71, 8*mib)
	writeImage(t, path, before)
	s := nbdkit(t, "--filter=delay", "file", path, "rdelay=0")
	for _, cache := range []string{"none", "keep"} {
		t.Run("cache="+cache, func(t *testing.T) {
			writeImage(t, path, before)
			s.argv[len(s.argv)-1] = "rdelay=0"
			s.restart()
			m := mount(t, "--nbd-timeout=2s", "x="+s.uri()+",cache="+cache)
			m.expect(lostServer...)
			old := hold(t, m.path("x", "digests"), os.O_RDONLY)
			want := newOracle(before).digests()
			head := make([]byte, 90)
			if _, err := io.ReadFull(old, head); err != nil {
				t.Fatal(err)
			}
			same(t, "the first block", string(head), want[:90])

			// The bytes come slowly enough that it dies amid them.
			s.argv[len(s.argv)-1] = "rdelay=60"
			s.restart()
			reader := startCommand(t, "cat", m.path("x", "digests"))
			defer reader.stop()
			eventually(t, "it is being hashed", func() bool { return len(m.info("x").Work) > 0 || reader.ended() })
			s.run.stop()
			start := time.Now()
			r := reader.result()
			if r.Status != 1 || r.Stdout != "" && !strings.HasPrefix(want, r.Stdout) ||
				!strings.Contains(r.Stderr, "Input/output error") && !strings.Contains(r.Stderr, "Stale file handle") {
				t.Errorf("cat: %+v", r)
			}
			if d := time.Since(start); d > 2*time.Second+slack {
				t.Errorf("it failed after %v", d)
			}
			if _, err := os.ReadFile(m.path("x", "checksum")); err == nil {
				t.Error("a checksum without a server")
			} else {
				lostOr(t, "checksum", err)
			}

			writeImage(t, path, after)
			s.argv[len(s.argv)-1] = "rdelay=0"
			s.start()
			awaitImage(t, m, "x")
			m.checkDigests("x", newOracle(after))
			same(t, "image", m.read("x", "image"), string(after))
			rest, err := io.ReadAll(old)
			lostOr(t, "the rest of a view from before", err)
			if err == nil || !strings.HasPrefix(want[90:], string(rest)) {
				t.Errorf("the rest of a view from before: %d bytes, %v", len(rest), err)
			}
		})
	}
}

// notAnswered is the line about a write of unknown outcome.
const notAnswered = `level=WARN msg="a write was not answered, and may be done yet: no digest is kept until invalidate names its blocks" .*image=\S+ offset=\d+ length=\d+`

// awaitImage waits until an image can be read again.
func awaitImage(t testing.TB, m *mounted, image string) {
	t.Helper()
	eventually(t, image+" can be read again", func() bool {
		_, err := os.ReadFile(m.path(image, "checksum"))
		lostOr(t, "checksum", err)
		return err == nil
	})
}

// Of a write that a server died over nobody knows what became of it: it fails,
// and the digests are those of what the server has once it is back.
func TestLost_while_writing(t *testing.T) {
	t.Parallel()
	needNBD(t)
	path := filepath.Join(scratch(t), "x.raw")
	data := random(72, 4*mib)
	writeImage(t, path, data)
	arrived := path + ".log"
	s := nbdkit(t, "--filter=log", "--filter=delay", "file", path, "logfile="+arrived, "wdelay=0")
	for _, cache := range []string{"none", "keep"} {
		t.Run("cache="+cache, func(t *testing.T) {
			m := mount(t, "--writable", "--nbd-timeout=5s", "x="+s.uri()+",cache="+cache)
			m.expect(append(lostServer, notAnswered)...)
			m.read("x", "checksum")
			s.argv[len(s.argv)-1] = "wdelay=60"
			s.restart()
			awaitImage(t, m, "x")
			f := hold(t, m.path("x", "image"), os.O_RDWR)
			failed := make(chan error, 1)
			go func() {
				_, err := f.WriteAt(random(73, mib), mib+100)
				failed <- err
			}()
			eventually(t, "it is being written", func() bool {
				select {
				case err := <-failed:
					t.Fatalf("the write: %v", err)
				default:
				}
				return strings.Contains(readFile(t, arrived), " Write id=")
			})
			// Whether a byte of it arrives is the server's business.
			writeAt(t, path, []byte(cache+" was done"), mib+100)
			s.run.stop()
			select {
			case err := <-failed:
				if !errors.Is(err, syscall.EIO) {
					t.Errorf("the write: %v", err)
				}
			case <-time.After(5*time.Second + slack):
				t.Fatal("the write does not end")
			}
			s.argv[len(s.argv)-1] = "wdelay=0"
			s.start()
			awaitImage(t, m, "x")
			m.checkDigests("x", newOracle([]byte(readFile(t, path))))
			if _, err := f.WriteAt([]byte("again"), 3*mib); err != nil {
				t.Errorf("a write after it: %v", err)
			}
			if err := f.Sync(); err != nil {
				t.Errorf("fsync: %v", err)
			}
			m.checkDigests("x", newOracle([]byte(readFile(t, path))))
		})
	}
}

// A server that does not answer keeps nobody beyond the timeout, the reader who
// is interrupted not even as long, and the other images not at all.
func TestLost_stalled(t *testing.T) {
	t.Parallel()
	needNBD(t)
	d := newDisk(t)
	copied := d.convert(t, "copy.raw", "raw")
	// nbdkit 1.32 can fail an assertion when it goes on after its clients have
	// left; this server has to.
	s, other := qemuNBD(t, "--format=raw", "--shared=8", d.raw), nbdkit(t, "file", copied)
	const timeout = 10 * time.Second
	m := mount(t, "--writable", fmt.Sprint("--nbd-timeout=", timeout), "x="+s.uri(), "other="+other.uri(), "file="+copied)
	m.expect(append(lostServer, notAnswered)...)
	m.expect(`level=ERROR msg="request failed" .*image=x op=.* err=.*no answer from the server`)
	o := newOracle(d.data)
	m.checkDigests("x", o)
	f := hold(t, m.path("x", "image"), os.O_RDWR)
	s.stall()
	defer s.signal(syscall.SIGCONT)

	start := time.Now()
	var failed [2]time.Duration
	written := make(chan error, 1)
	go func() {
		_, err := f.WriteAt([]byte("data"), 5*mib)
		failed[0] = time.Since(start)
		written <- err
	}()
	waiting := startCommand(t, "cat", m.path("x", "checksum"))
	defer waiting.stop()
	read := make(chan struct{})
	go func() {
		<-waiting.done
		failed[1] = time.Since(start)
		close(read)
	}()
	for _, file := range []string{"checksum", "image", "digests", "map", "sums/md5"} {
		impatient := startCommand(t, "cat", m.path("x", file))
		time.Sleep(100 * time.Millisecond)
		if impatient.ended() {
			// On a busy machine the timeout may be over by now.
			if time.Since(start) < timeout/2 {
				t.Errorf("cat %s does not wait: %+v", file, impatient.result())
			}
			continue
		}
		interrupted := time.Now()
		syscall.Kill(impatient.cmd.Process.Pid, syscall.SIGINT)
		if r := impatient.result(); r.Status != 128+int(syscall.SIGINT) && time.Since(start) < timeout/2 {
			t.Errorf("cat %s: %+v", file, r)
		}
		if d := time.Since(interrupted); d > timeout/2 {
			t.Errorf("cat %s ended %v after SIGINT", file, d)
		}
	}
	for _, image := range []string{"other", "file"} {
		m.checkDigests(image, o)
	}
	if r := waiting.result(); r.Status != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, "Input/output error") {
		t.Errorf("cat checksum: %+v", r)
	}
	if err := <-written; !errors.Is(err, syscall.EIO) {
		t.Errorf("a write: %v", err)
	}
	<-read
	for i, d := range failed {
		if d < timeout/2 || d > timeout+slack {
			t.Errorf("the %s failed after %v", [...]string{"write", "read"}[i], d)
		}
	}
	for _, image := range []string{"other", "file"} {
		m.checkDigests(image, o)
	}

	s.signal(syscall.SIGCONT)
	eventually(t, "x can be read again", func() bool {
		if s.run.ended() {
			t.Fatalf("the server: %+v\n%s", s.run.result(), m.log())
		}
		_, err := os.ReadFile(m.path("x", "checksum"))
		lostOr(t, "checksum", err)
		return err == nil
	})
	// The write may be done only now.
	eventually(t, "the digests are those of the file", func() bool {
		content := []byte(readFile(t, d.raw))
		return m.read("x", "checksum") == newOracle(content).checksum()
	})
	if !strings.Contains(m.log(), "image=x export=\""+s.uri()) {
		t.Errorf("no line names the image and the export: %s", m.log())
	}
}

// A block that cannot be read for a while is no block for a while.
func TestLost_errors_for_a_while(t *testing.T) {
	t.Parallel()
	needNBD(t)
	d := newDisk(t)
	trigger := d.path("trigger")
	s := nbdkit(t, "--filter=error", "file", d.raw, "error-pread=EIO", "error-pread-rate=1", "error-pread-file="+trigger)
	o := newOracle(d.data)
	for _, cache := range []string{"none", "keep"} {
		t.Run("cache="+cache, func(t *testing.T) {
			m := mount(t, "x="+s.uri()+",cache="+cache)
			m.expect(`level=ERROR msg="cannot read" .*image=x offset=\d+ length=\d+ cause=.*the server answered: input/output error`)
			writeImage(t, trigger, nil)
			for _, file := range []string{"checksum", "digests.bin", "image", "blocks/0000000000000000", "sums/md5"} {
				if content, err := os.ReadFile(m.path("x", file)); !errors.Is(err, syscall.EIO) || len(content) > 0 {
					t.Errorf("%s: %d bytes, %v", file, len(content), err)
				}
			}
			i := m.info("x")
			if cache == "keep" && i.Blocks.Failed == 0 || i.LastError == nil || !strings.Contains(i.LastError.Message, s.uri()) {
				t.Errorf("%+v, last error %+v", i.Blocks, i.LastError)
			}
			if err := os.Remove(trigger); err != nil {
				t.Fatal(err)
			}
			m.checkDigests("x", o)
			if i := m.info("x"); i.Blocks.Failed > 0 || len(i.Bad) > 0 {
				t.Errorf("failed blocks are left: %+v, %v", i.Blocks, i.Bad)
			}
		})
	}
}

// Nothing is lost with a server that comes and goes: no descriptor, no
// goroutine, no child.
func TestLost_leaks_nothing(t *testing.T) {
	t.Parallel()
	needNBD(t)
	d := newDisk(t)
	image := d.convert(t, "a.qcow2", "qcow2")
	o := newOracle(d.data)
	counts := func(reconnects int) (descriptors, goroutines int) {
		s := nbdkit(t, "file", d.raw)
		m := mount(t, "x="+s.uri(), image)
		m.expect(lostServer...)
		m.expect(childDied...)
		m.checkDigests("x", o)
		m.checkDigests("a", o)
		for range reconnects {
			s.restart()
			child := children(t, m.daemon.Pid)
			if len(child) != 1 {
				t.Fatalf("children %v", child)
			}
			syscall.Kill(child[0], syscall.SIGKILL)
			eventually(t, "another child", func() bool {
				now := children(t, m.daemon.Pid)
				return len(now) == 1 && now[0] != child[0]
			})
			awaitImage(t, m, "x")
			awaitImage(t, m, "a")
		}
		m.checkDigests("x", o)
		m.checkDigests("a", o)
		time.Sleep(2 * time.Second) // for jobs without a waiter, and connections that are added
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.daemon.Pid))
		if err != nil {
			t.Fatal(err)
		}
		// The runtime lists its goroutines when it is ended like this.
		m.expect("")
		m.killed = true
		m.signal(syscall.SIGQUIT)
		m.waitEnd()
		m.unmount()
		for stack := range strings.SplitSeq(m.log(), "\ngoroutine ") {
			// Those of the runtime and of go-fuse come as they are needed.
			if strings.Contains(stack, "\nhashfs/") {
				goroutines++
			}
		}
		return len(open), goroutines
	}
	// A session has four connections, of two descriptors each.
	const times, play = 6, 8
	fewFDs, few := counts(0)
	manyFDs, many := counts(times)
	if manyFDs > fewFDs+play || many > few+play || few == 0 {
		t.Errorf("%d descriptors and %d goroutines, after %d reconnects %d and %d", fewFDs, few, times, manyFDs, many)
	}
}

// A write that was given up may be done after one that came later and was answered:
// what is read of its blocks is not kept until invalidate names them.
func TestLost_write_done_late(t *testing.T) {
	t.Parallel()
	needNBD(t)
	dir := scratch(t)
	path, slow := filepath.Join(dir, "x.raw"), filepath.Join(dir, "slow")
	data := random(74, mib)
	writeImage(t, path, data)
	s := nbdkit(t, "eval", "thread_model=echo parallel", "can_write=exit 0", "can_flush=exit 0", "flush=exit 0",
		"get_size=echo "+fmt.Sprint(len(data)),
		"pread=dd if="+path+" bs=1M iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none",
		"pwrite=cat >$tmpdir/$$; if rm "+slow+" 2>/dev/null; then sleep 4; touch "+slow+".done; fi; dd if=$tmpdir/$$ of="+path+" bs=1M oflag=seek_bytes seek=$4 conv=notrunc status=none")
	m := mount(t, "--writable", "--nbd-timeout=2s", "x="+s.uri()+",cache=keep")
	m.expect(append(lostServer, notAnswered)...)
	f := hold(t, m.path("x", "image"), os.O_RDWR)
	first, second := random(75, 65536), random(76, 65536)
	writeImage(t, slow, nil)
	if _, err := f.WriteAt(first, 0); !errors.Is(err, syscall.EIO) {
		t.Fatalf("the slow write: %v", err)
	}
	awaitImage(t, m, "x")
	eventually(t, "another write is done", func() bool { _, err := f.WriteAt(second, 0); return err == nil })
	copy(data, second)
	m.checkDigests("x", newOracle(data))
	eventually(t, "the first is done", func() bool { _, err := os.Stat(slow + ".done"); return err == nil })
	eventually(t, "it shows", func() bool { return m.read("x", "image")[:65536] == string(first) })
	copy(data, first)
	m.checkDigests("x", newOracle(data))
	writeImage(t, m.path("x", "invalidate"), []byte("0 65536\n"))
	m.checkDigests("x", newOracle(data))
}
