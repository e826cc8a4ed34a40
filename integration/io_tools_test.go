package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// qemu-io reads, writes and discards by each of its ways to do I/O, with many
// requests at once, and the digests are right after.
func TestQEMU_io(t *testing.T) {
	t.Parallel()
	need(t, "qemu-io")
	commands := []string{
		"write -P 0xa1 0 1M",
		"write -P 0xa2 1000448 130k", // 512-byte sectors, across the end of a request
		"read -P 0xa1 0 1000448",
		"read -P 0xa2 1000448 130k",
		"discard 64k 128k",
		"read -P 0 64k 128k",
		"write -z 256k 64k",
		"write -z -u 384k 128k",
		"read -P 0 256k 64k",
		"read -P 0 384k 128k",
		"aio_write -P 0xb1 2M 1M",
		"aio_write -P 0xb2 3M 1M",
		"aio_write -P 0xb3 4M 64k",
		"aio_write -z 5M 64k",
		"aio_read -P 0xa1 512k 128k",
		"aio_flush",
		"read -P 0xb1 2M 1M",
		"read -P 0xb2 3M 1M",
		"read -P 0xb3 4M 64k",
		"writev -P 0xc1 6M 512 1024 4096 512",
		"read -P 0xc1 6M 6144",
		"flush",
		"map",
	}
	for _, row := range []struct{ name, cache, aio string }{
		{"native", "none", "native"},
		{"io_uring", "none", "io_uring"},
		{"threads", "none", "threads"},
		{"io_uring through the page cache", "writeback", "io_uring"},
		{"directsync", "directsync", "native"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := writableDisk(t, random(17, 8*mib))
			argv := []string{"qemu-io", "-f", "raw", "-t", row.cache, "-i", row.aio, "-d", "unmap"}
			for _, c := range commands {
				argv = append(argv, "-c", c)
			}
			r := run(t, append(argv, d.image())...)
			if r.Status != 0 || strings.Contains(r.Stdout+r.Stderr, "failed") {
				t.Errorf("qemu-io: %+v", r)
			}
			d.check("after all")
			// As seen by itself in the backing file.
			r = run(t, "qemu-img", "compare", "-U", "-f", "raw", "-F", "raw", d.image(), d.backing)
			if r.Status != 0 {
				t.Errorf("qemu-img compare: %+v", r)
			}
		})
	}
}

// fio finds what it wrote, with many requests in flight, while the checksum is
// read again and again; at the end each digest is right.
func TestFio_verify(t *testing.T) {
	t.Parallel()
	need(t, "fio")
	for _, row := range []struct {
		name    string
		options []string
	}{
		{"libaio", []string{"--ioengine=libaio", "--direct=1", "--iodepth=16"}},
		{"io_uring", []string{"--ioengine=io_uring", "--direct=1", "--iodepth=16"}},
		{"psync", []string{"--ioengine=psync", "--fsync=32"}},
		{"mmap", []string{"--ioengine=mmap", "--fsync=64"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(scratch(t), "backing.img")
			writeSparse(t, path, 4*mib+4096, piece{0, random(18, 2*mib)})
			d := mountDisk(t, path, "--writable")
			stop, stopped := make(chan struct{}), make(chan error, 1)
			go func() {
				for {
					select {
					case <-stop:
						stopped <- nil
						return
					default:
					}
					if sum, err := readAll(d.path("disk", "checksum")); err != nil || len(sum) != 65 {
						stopped <- fmt.Errorf("checksum: %q, %w", sum, err)
						return
					}
				}
			}()
			argv := []string{"fio", "--name=job", "--filename=" + d.image(), "--allow_file_create=0", "--rw=randwrite",
				"--bsrange=512-128k", "--bs_unaligned=0", "--blockalign=512", "--size=4m", "--verify=crc32c", "--do_verify=1", "--verify_state_save=0",
				"--verify_fatal=1", "--randseed=1", "--output-format=terse", "--numjobs=1"}
			if row.name == "mmap" || row.name == "psync" {
				argv = append(argv, "--bsrange=4k-128k", "--blockalign=4k")
			}
			r := run(t, append(argv, row.options...)...)
			close(stop)
			if err := <-stopped; err != nil {
				t.Error(err)
			}
			if r.Status != 0 {
				t.Errorf("fio: %+v", r)
			}
			d.check("after all")
		})
	}
}
