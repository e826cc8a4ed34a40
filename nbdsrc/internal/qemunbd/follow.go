package qemunbd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

func checkBackingFormat(path string, l links) error {
	switch {
	case l.backingFormat == "":
		return fmt.Errorf("the header of %s does not say of which format its backing file %s is, and a guest could forge that: record it with qemu-img rebase -u -F FORMAT -b %s %s",
			show(path), show(l.backing), show(l.backing), show(path))
	case l.backingFormat != formatRaw && !Known(l.backingFormat):
		return fmt.Errorf("the backing file of %s is of format %q: known are %s, %s",
			show(path), l.backingFormat, formatRaw, strings.Join(formats, ", "))
	}
	return nil
}

// follow opens the file that the header of m names. It returns nil where a
// trusted chain leads to something else than a file.
func (w *walker) follow(m *member, what, name string, writable bool) (*member, error) {
	from := m.place.path
	path, protocol := fileName(name)
	if protocol != "" {
		w.remote = true
		if !w.opts.TrustChain {
			w.refused = append(w.refused, fmt.Sprintf("%s %q of %s is no file but %q to qemu", what, name, show(from), protocol))
		}
		return nil, nil
	}
	if !filepath.IsAbs(path) {
		// QEMU goes by the name of the image, not by where a link leads. A
		// "dir/.." is the kernel's to resolve.
		path = filepath.Dir(from) + "/" + path
	}
	next, denied, err := w.open(path, writable)
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", what, show(from), whyNot(path, err))
	}
	w.members = append(w.members, next)
	if len(w.members) > maxMembers {
		return nil, fmt.Errorf("its chain has more than %d files", maxMembers)
	}
	if denied != nil {
		may := "read"
		if writable {
			may = "read and write"
		}
		if real, err := os.Readlink(procFD(int(next.file.Fd()))); err == nil && real != filepath.Clean(path) {
			path += " (which is " + real + ")"
		}
		w.refused = append(w.refused, fmt.Sprintf("%s %s of %s is not for %s, who owns %s, to %s",
			what, show(path), show(from), denied.name, show(denied.file), may))
	}
	for _, other := range w.members[:len(w.members)-1] {
		if sameFile(&other.st, &next.st) {
			return nil, fmt.Errorf("%s of %s: %s is in the chain already", what, show(from), show(path))
		}
	}
	return next, nil
}

// addOwner adds the owner of a file whose header was read to those that must be
// able to open what comes next: each could have written the header.
func (w *walker) addOwner(m *member) {
	o := newOwner(m, w.opts.TrustChain)
	switch {
	case len(w.owners) == 0 || w.owners[0].by == rightsOurs:
		w.owners = []*owner{o}
	case o.by != rightsOurs && !slices.ContainsFunc(w.owners, func(other *owner) bool { return other.uid == o.uid }):
		w.owners = append(w.owners, o)
	}
}

// open opens a file as each of the owners. It returns one of those who could
// not, if any.
func (w *walker) open(path string, writable bool) (m *member, denied *owner, err error) {
	for _, o := range w.owners {
		next, allowed, err := o.open(w.find(path, false), writable)
		if err == nil && m != nil && !sameFile(&m.st, &next.st) {
			next.file.Close()
			err = ErrBusy // another file by now than the one that was allowed
		}
		if m != nil {
			m.file.Close()
		}
		if err != nil {
			return nil, nil, err
		}
		m = next
		if !allowed && denied == nil {
			denied = o
		}
	}
	return m, denied, nil
}

// show quotes a path that would not show as it is. Some come from headers.
func show(path string) string {
	if strings.ContainsFunc(path, func(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }) {
		return strconv.Quote(path)
	}
	return path
}

// extents opens the extents of a VMDK. Several may lie in one file.
func (w *walker) extents(n *node, writable bool) error {
	known := map[string]*member{}
	for _, e := range n.desc.extents {
		m, ok := known[e.name]
		if !ok {
			var err error
			if m, err = w.follow(n.file, "extent", e.name, writable); err != nil {
				return err
			}
			known[e.name] = m
		}
		n.extents = append(n.extents, m)
		if m == nil || e.flat() {
			continue
		}
		if err := checkSparse(m.file); err != nil {
			return fmt.Errorf("extent %s: %w", show(m.place.path), err)
		}
	}
	return nil
}
