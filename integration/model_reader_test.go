package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A modelReader is a process that opens files of digests and compares them
// with the model. It may be killed at any time.
type modelReader struct {
	*plan
	*board
	rng   *rand.Rand
	state *modelState // of what certainly had been done
}

func runModelReader(p *plan, number int) error {
	b, err := openBoard(p)
	if err != nil {
		return err
	}
	r := &modelReader{plan: p, board: b, rng: rand.New(rand.NewPCG(p.Seed, uint64(100+number)))}
	if r.state, err = loadState(p); err != nil {
		return err
	}
	for {
		var mount uint64
		r.await(func() bool { mount = r.ready.Load(); return mount != 0 })
		if r.stop.Load() != 0 {
			return nil
		}
		err := r.look(mount)
		switch {
		case err == nil:
		case errors.Is(err, unix.ESTALE) && r.Stale:
			r.stale.Add(1)
		case r.died(err, mount) && r.ready.Load() != mount:
		default:
			return err
		}
	}
}

// A digestFile is one whose content follows from the bytes of the image.
type digestFile struct {
	name    string
	content func(*oracle) string
}

var digestFiles = []digestFile{
	{"digests.bin", (*oracle).bin},
	{"digests", (*oracle).digests},
	{"checksum", (*oracle).checksum},
}

// look opens one file, and reads it a few times while others write.
func (r *modelReader) look(mount uint64) error {
	if r.rng.IntN(10) == 0 {
		return r.lookForm()
	}
	kind := digestFiles[r.rng.IntN(len(digestFiles))]
	for w := range r.Writers {
		r.state.advance(w, r.writers[w].completed.Load())
	}
	f, err := os.Open(filepath.Join(r.Mount, "disk", kind.name))
	if err != nil {
		return err
	}
	defer f.Close()
	started := make([]uint64, r.Writers)
	for w := range started {
		started[w] = r.writers[w].started.Load()
	}
	if r.ready.Load() != mount {
		return nil // this may be the next mount, and its writers not there yet
	}
	moments := r.state.moments(started)
	if moments == nil {
		r.skipped.Add(1)
		return nil
	}
	contents := make([]string, len(moments))
	for i, m := range moments {
		contents[i] = kind.content(m)
	}
	r.views.Add(1)
	for range 1 + r.rng.IntN(4) {
		if contents, err = r.read(f, contents); err != nil {
			return fmt.Errorf("%s, opened between %v and %v: %w", kind.name, r.state.done, started, err)
		}
		time.Sleep(time.Duration(r.rng.IntN(8000)) * time.Microsecond)
	}
	return nil
}

// read reads a part of a file, and returns those of the contents that agree.
func (r *modelReader) read(f *os.File, contents []string) (fit []string, err error) {
	from, to := 0, len(contents[0])
	if r.rng.IntN(3) > 0 {
		from = r.rng.IntN(to)
		to = min(to, from+1+r.rng.IntN(2000))
	}
	p := make([]byte, to-from)
	if _, err := f.ReadAt(p, int64(from)); err != nil {
		return nil, err
	}
	r.reads.Add(1)
	for _, c := range contents {
		if c[from:to] == string(p) {
			fit = append(fit, c)
		}
	}
	if len(fit) == 0 {
		return nil, fmt.Errorf("bytes from %d on are of none of %d moments; of the first: %w",
			from, len(contents), diff(p, []byte(contents[0][from:to])))
	}
	return fit, nil
}

// lookForm reads a file whose content depends on more than the image's bytes,
// and looks whether it is one at all.
func (r *modelReader) lookForm() error {
	name := []string{"map", "info.json"}[r.rng.IntN(2)]
	content, err := readAll(filepath.Join(r.Mount, "disk", name))
	if err != nil {
		return err
	}
	if name == "info.json" {
		return json.Unmarshal([]byte(content), new(info))
	}
	at := int64(0)
	for line := range bytes.Lines([]byte(content)) {
		var off, length, typ int64
		if _, err := fmt.Sscan(string(line), &off, &length, &typ); err != nil || off != at || length <= 0 {
			return fmt.Errorf("map: %q after %d bytes: %w", line, at, errors.Join(err, io.ErrUnexpectedEOF))
		}
		at += length
	}
	if at != r.Size {
		return fmt.Errorf("map: ends at %d, want %d", at, r.Size)
	}
	return nil
}
