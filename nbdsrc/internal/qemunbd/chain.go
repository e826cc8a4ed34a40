package qemunbd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	maxDepth   = 64
	maxMembers = 256
)

// ErrRefused: the image leads to files that its owner may not open, or to
// something else than a file.
var ErrRefused = errors.New("chain refused")

// A member is one file of a chain.
type member struct {
	place    *place
	file     *os.File
	st       unix.Stat_t
	writable bool // by QEMU
	late     bool // see stampsLate
}

func openMember(find func() (*place, error), writable bool) (*member, error) {
	p, err := find()
	if err != nil {
		return nil, err
	}
	file, st, err := p.open(writable)
	if err != nil {
		return nil, err
	}
	return &member{p, file, *st, writable, stampsLate(file)}, nil
}

// A node is one image of a chain with its files.
type node struct {
	format  string
	file    *member
	data    *member // external data file of a qcow2
	backing *node
	desc    *descriptor // of a VMDK with extents in files of their own
	extents []*member   // as desc has them, nil where QEMU goes by the name

	// A trusted chain may lead to what is no file: QEMU then goes by the name.
	remoteBacking, remoteData bool
}

// A chain is an image with all that it consists of.
type chain struct {
	top     *node
	members []*member
	remote  bool // part of it is no file

	users atomic.Int32 // besides who opened it
}

// close ends the use of c. The last user closes its files.
func (c *chain) close() {
	if c.users.Add(-1) >= 0 {
		return
	}
	for _, m := range c.members {
		m.file.Close()
	}
}

// places are where files were found, by path. They are kept while the image is
// served, so that its chain can be opened again without walking paths.
type places map[string]*place

// A walker opens a chain.
type walker struct {
	*chain
	opts    *Options
	before  *chain   // what was served until now, if anything
	owners  []*owner // of the files that lead to the next one
	known   places
	found   places // by this walk
	refused []string
}

// openChain opens the image of opts and all that it leads to. It goes by the
// places that are known and adds to them what it finds, unless it fails: the
// place of a refused file was found with our rights.
func openChain(opts *Options, before *chain, known places) (*chain, error) {
	w := &walker{chain: new(chain), opts: opts, before: before, known: known, found: places{}}
	err := w.walk()
	if len(w.refused) > 0 {
		err = fmt.Errorf("open %s: %w: %s: chain=trust serves it all the same",
			show(opts.Path), ErrRefused, strings.Join(w.refused, "; "))
	}
	if err != nil {
		w.close()
		for _, p := range w.found {
			p.close()
		}
		return nil, err
	}
	maps.Copy(known, w.found)
	return w.chain, nil
}

func (w *walker) walk() error {
	path := w.opts.Path
	top, err := w.image()
	if err != nil {
		return whyNot(path, err)
	}
	w.members = append(w.members, top)
	w.top, err = w.node(top, w.opts.Format, w.opts.Writable, 0)
	if me, ok := errors.AsType[*magicError](err); ok && me.found != "" && len(w.members) == 1 {
		return fmt.Errorf("open %s: %w: give format=%s", show(path), err, me.found)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", show(path), err)
	}
	return nil
}

// image opens the image's own file. One that was served read-only follows its
// name, unless that leads to nothing that can be opened; a writable one stays.
func (w *walker) image() (*member, error) {
	var m *member
	var err error
	if w.before == nil || !w.opts.Writable {
		m, err = openMember(w.find(w.opts.Path, true), w.opts.Writable)
	}
	if w.before == nil || m != nil {
		return m, err
	}
	was := w.before.top.file
	file, err := reopen(int(was.file.Fd()), was.writable)
	if err != nil {
		return nil, err
	}
	return &member{was.place, file, was.st, was.writable, was.late}, nil
}

// find returns a function that returns the place of an absolute path. All of it
// is walked with the rights of whoever calls that, when the place is not known:
// to be next to the image is not enough where the owner cannot enter.
func (w *walker) find(path string, trusted bool) func() (*place, error) {
	return func() (*place, error) {
		for _, m := range []places{w.known, w.found} {
			if p := m[path]; p != nil {
				return p, nil
			}
		}
		p, err := newPlace(path, trusted)
		if err == nil {
			w.found[path] = p
		}
		return p, err
	}
}

// node reads the header of m and follows it.
func (w *walker) node(m *member, format string, writable bool, depth int) (*node, error) {
	l, err := readLinks(m.file, m.st.Size, format)
	if err != nil {
		return nil, err
	}
	n := &node{format: format, file: m, desc: l.desc}
	w.addOwner(m)
	if l.data != "" {
		if n.data, err = w.follow(m, "data file", l.data, writable); err != nil {
			return nil, err
		}
		n.remoteData = n.data == nil
	}
	if l.desc != nil {
		if err := w.extents(n, writable); err != nil {
			return nil, err
		}
	}
	if l.backing == "" {
		return n, nil
	}
	if depth == maxDepth {
		return nil, fmt.Errorf("its chain has more than %d levels", maxDepth)
	}
	backing, err := w.follow(m, "backing file", l.backing, false)
	if err != nil {
		return nil, err
	}
	if n.remoteBacking = backing == nil; n.remoteBacking && !w.opts.TrustChain {
		return n, nil
	}
	if err := checkBackingFormat(m.place.path, l); err != nil || n.remoteBacking {
		return n, err
	}
	if n.backing, err = w.node(backing, driver(l.backingFormat), false, depth+1); err != nil {
		return nil, fmt.Errorf("backing file %s: %w", show(backing.place.path), err)
	}
	return n, nil
}

func sameFile(a, b *unix.Stat_t) bool { return a.Dev == b.Dev && a.Ino == b.Ino }
