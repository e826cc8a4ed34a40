package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// changes are ways in which another process changes an image of ioSize bytes.
var changes = []struct {
	name  string
	argv  []string // the last is the image's path
	tools []string
}{
	{"write a byte", []string{"python3", "-c", "import os,sys; os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b'x', 70000)"}, []string{"python3"}},
	{"write all", []string{"sh", "-c", "head -c 1323065 /dev/urandom | dd of=\"$1\" bs=32k conv=notrunc,fsync iflag=fullblock status=none", "sh"}, nil},
	{"write zeros", []string{"sh", "-c", "dd if=/dev/zero of=\"$1\" bs=64k count=3 seek=4 conv=notrunc status=none", "sh"}, nil},
	{"write the tail", []string{"sh", "-c", "printf tail | dd of=\"$1\" bs=1 seek=1323061 conv=notrunc status=none", "sh"}, nil},
	{"punch", []string{"fallocate", "--punch-hole", "--offset", "100000", "--length", "400000"}, []string{"fallocate"}},
	{"zero", []string{"fallocate", "--zero-range", "--offset", "65536", "--length", "131072"}, []string{"fallocate"}},
	{"punch all", []string{"fallocate", "--punch-hole", "--offset", "0", "--length", "1323065"}, []string{"fallocate"}},
	{"store", []string{"python3", "-c", `
import mmap, sys
f = open(sys.argv[1], "r+b")
m = mmap.mmap(f.fileno(), 0)
m[200000:300000] = b"s" * 100000
m.flush()`}, []string{"python3"}},
	{"write by O_DIRECT", []string{"sh", "-c", "dd if=/dev/urandom of=\"$1\" bs=256k count=2 seek=1 iflag=fullblock oflag=direct conv=notrunc status=none", "sh"}, nil},
}

// A momentFile is an open file that shows one moment, with what it must show.
type momentFile struct {
	*os.File
	want string
}

// openMoment opens each of the files that show one moment.
func (d *diskMount) openMoment(data []byte) []momentFile {
	d.t.Helper()
	o := newOracle(data)
	all := []momentFile{{nil, o.checksum()}, {nil, o.digests()}, {nil, o.bin()}, {nil, extentLines(extentsOf(d.t, d.backing))}}
	for i, name := range []string{"checksum", "digests", "digests.bin", "map"} {
		f, err := os.Open(d.path("disk", name))
		if err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { f.Close() })
		all[i].File = f
	}
	return all
}

// A handle that was opened before a change shows what was before it: whatever
// part of it had been read by then, or was computed, and however often it is
// read. One that is opened after shows what is now.
func TestView_shows_the_moment_of_its_open(t *testing.T) {
	t.Parallel()
	for _, known := range []string{"nothing", "some digests", "all digests"} {
		t.Run("with "+known+" known", func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(20, uint64(len(known))))
			d := writableDisk(t, random(20, ioSize))
			for _, c := range changes {
				need(t, c.tools...)
				data := []byte(readFile(t, d.backing))
				d.forget()
				views := d.openMoment(data)
				d.know(known, rng)
				before := d.info("disk")
				infoFile, err := os.Open(d.path("disk", "info.json"))
				if err != nil {
					t.Fatal(err)
				}
				defer infoFile.Close()
				output(t, append(c.argv, d.image())...)
				for range 2 {
					for _, v := range views {
						checkMoment(t, c.name, v, rng)
					}
				}
				checkInfoMoment(t, c.name, infoFile, before.Generation)
				if after := d.info("disk"); after.Generation == before.Generation {
					t.Errorf("%s: the generation is still %d", c.name, after.Generation)
				}
				d.checkHere(c.name)
				for _, v := range views {
					v.Close()
				}
			}
			d.check("after all")
		})
	}
}

// forget makes all blocks unknown, by writing each as it is.
func (d *diskMount) forget() {
	d.t.Helper()
	f := d.open(os.O_RDWR)
	defer f.Close()
	p := []byte(readFile(d.t, d.backing))
	if _, err := f.WriteAt(p, 0); err != nil {
		d.t.Fatal(err)
	}
}

// know has the digests of nothing, some or all of the blocks computed.
func (d *diskMount) know(what string, rng *rand.Rand) {
	d.t.Helper()
	switch what {
	case "all digests":
		d.read("disk", "checksum")
	case "some digests":
		f, err := os.Open(d.path("disk", "digests.bin"))
		if err != nil {
			d.t.Fatal(err)
		}
		defer f.Close()
		for range 5 {
			if _, err := f.ReadAt(make([]byte, 64), rng.Int64N(15)*32); err != nil {
				d.t.Fatal(err)
			}
		}
	}
}

// checkMoment reads pieces of a file, then all of it.
func checkMoment(t *testing.T, when string, v momentFile, rng *rand.Rand) {
	t.Helper()
	for range 5 {
		from := rng.IntN(len(v.want))
		p := make([]byte, 1+rng.IntN(200))
		n, err := v.ReadAt(p, int64(from))
		if err != nil && err != io.EOF {
			t.Errorf("%s: %s: %v", when, v.Name(), err)
		}
		same(t, fmt.Sprintf("%s: %s from %d", when, v.Name(), from), string(p[:n]), v.want[from:min(len(v.want), from+len(p))])
	}
	p := make([]byte, len(v.want)+100)
	n, err := v.ReadAt(p, 0)
	if err != io.EOF {
		t.Errorf("%s: %s: %v", when, v.Name(), err)
	}
	same(t, when+": "+v.Name(), string(p[:n]), v.want)
	var st unix.Stat_t
	if err := unix.Fstat(int(v.Fd()), &st); err != nil || st.Size != int64(len(v.want)) {
		t.Errorf("%s: fstat of %s: %d bytes, %v; want %d", when, v.Name(), st.Size, err, len(v.want))
	}
}

// checkInfoMoment reads an info.json that was opened at a generation.
func checkInfoMoment(t *testing.T, when string, f *os.File, generation uint64) {
	t.Helper()
	for range 2 {
		var i info
		if err := json.NewDecoder(io.NewSectionReader(f, 0, 1<<20)).Decode(&i); err != nil {
			t.Errorf("%s: info.json: %v", when, err)
		}
		if i.Generation != generation {
			t.Errorf("%s: info.json, opened at generation %d, shows %d", when, generation, i.Generation)
		}
	}
}

// A punch of more than is hashed for a view ends it: it answers ESTALE, not
// what is now, and the next one answers right.
func TestView_ends_when_too_much_is_overwritten(t *testing.T) {
	t.Parallel()
	const size = 80 * mib // more than the 64 MiB that one request hashes
	d := writableDisk(t, random(21, size))
	view, err := os.Open(d.path("disk", "digests.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	if err := fallocate(d.open(os.O_RDWR), punch|keepSize, 0, size); err != nil {
		t.Fatal(err)
	}
	_, err = view.ReadAt(make([]byte, 32), 0)
	wantErrno(t, "view", err, unix.ESTALE)
	d.check("after all")

	// Nothing has to be hashed for one that has it all.
	d.read("disk", "checksum")
	known := d.openMoment(make([]byte, size))
	output(t, "dd", "if=/dev/urandom", "of="+d.image(), "bs=1M", "count=80", "conv=notrunc", "status=none")
	for _, v := range known {
		checkMoment(t, "zeros overwritten", v, rand.New(rand.NewPCG(1, 2)))
		v.Close()
	}
	d.checkHere("zeros overwritten")
}
