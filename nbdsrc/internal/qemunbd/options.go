package qemunbd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstFD is the number that the first of exec.Cmd's ExtraFiles has in a child.
const firstFD = 3

// A plan is what qemu-nbd is told about a chain.
type plan struct {
	options []string
	files   []*os.File        // the child's from firstFD on
	names   map[string]string // what the child calls a file: its path
	memory  *os.File          // the descriptor that stands for the image's own
	owned   []*os.File        // to be closed with the plan
}

// newPlan spells the chain out. No file name of the chain is in it, unless a
// trusted one leads to what is no file.
func newPlan(c *chain) (*plan, error) {
	p := &plan{names: map[string]string{}}
	if err := p.node("", c.top); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *plan) close() {
	for _, f := range p.owned {
		f.Close()
	}
}

func (p *plan) set(key, value string) {
	p.options = append(p.options, key+"="+strings.ReplaceAll(value, ",", ",,"))
}

// give passes a file on and returns the child's name for it.
func (p *plan) give(f *os.File, path string) string {
	name := procFD(firstFD + len(p.files))
	p.files = append(p.files, f)
	p.names[name] = path
	return name
}

func (p *plan) file(prefix string, f *os.File, path string) {
	p.set(prefix+"driver", "file")
	p.set(prefix+"filename", p.give(f, path))
}

func (p *plan) node(prefix string, n *node) error {
	p.set(prefix+"driver", n.format)
	file := n.file.file
	if n.desc != nil {
		var err error
		if file, err = p.descriptor(n); err != nil {
			return err
		}
		if prefix == "" {
			p.memory = file
		}
	}
	p.file(prefix+"file.", file, n.file.place.path)
	if n.data != nil {
		p.file(prefix+"data-file.", n.data.file, n.data.place.path)
	}
	switch {
	case n.backing != nil:
		return p.node(prefix+"backing.", n.backing)
	case n.format != formatRaw && !n.remoteBacking:
		p.set(prefix+"backing", "") // none, whatever the header says
	}
	return nil
}

// descriptor makes a file in memory that stands for the descriptor of n.
func (p *plan) descriptor(n *node) (*os.File, error) {
	var names []string
	for i, m := range n.extents {
		name := n.desc.extents[i].name // only where it is trusted, and no file
		if m != nil {
			name = p.give(m.file, m.place.path)
		}
		names = append(names, name)
	}
	fd, err := unix.MemfdCreate("descriptor", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "descriptor")
	p.owned = append(p.owned, f)
	if _, err := f.Write(n.desc.text(names)); err != nil {
		return nil, fmt.Errorf("write a file in memory: %w", err)
	}
	return f, nil
}

// saveCID writes the content ID that QEMU gave the image, if it did, to the
// image's own descriptor.
func (p *plan) saveCID(c *chain) error {
	if p.memory == nil || !c.top.file.writable {
		return nil
	}
	file := c.top.file.file
	change, ok := cidPatch(peek(file, 0, maxDescriptor), bytes.TrimRight(peek(p.memory, 0, maxDescriptor), "\x00"))
	if !ok {
		return nil
	}
	if _, err := file.WriteAt([]byte(change.text), change.offset); err != nil {
		return fmt.Errorf("write the content ID: %w", err)
	}
	return file.Sync()
}

// arguments returns qemu-nbd's.
func (p *plan) arguments(o *Options, snap *snapshot, socket string) []string {
	args := []string{
		"--socket=" + socket,
		"--persistent",
		"--shared=" + strconv.Itoa(maxClients),
		"--cache=writeback", // durable after a flush, as files are
		"--aio=threads",
		"--discard=unmap", // a punched range gives its storage back
		"--detect-zeroes=off",
	}
	if !o.Writable {
		args = append(args, "--read-only")
	}
	if snap != nil {
		double := func(s string) string { return strings.ReplaceAll(s, ",", ",,") }
		args = append(args, "--load-snapshot=snapshot.id="+double(snap.id)+",snapshot.name="+double(snap.name))
	}
	return append(args, "--image-opts", strings.Join(p.options, ","))
}

// explain puts the paths of files where the child names its descriptors.
func (p *plan) explain(line string) string {
	for i := len(p.files) - 1; i >= 0; i-- { // 12 before 1
		name := procFD(firstFD + i)
		line = strings.ReplaceAll(line, name, p.names[name])
	}
	return show(strings.TrimPrefix(line, "qemu-nbd: "))
}
