package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Expand returns the images of one mount. A source that is a directory is
// scanned, once and not below its subdirectories. The images that are named
// one by one come first in the contest for a name: two of them with the same
// name are an error, while a scanned one gives way, which notes tells, a line
// each, as it tells what a scan skipped.
func Expand(sources []Source) (images []Source, notes []string, err error) {
	taken := map[string]Source{}
	var directories []Source
	for _, s := range sources {
		if info, err := os.Stat(s.Location); err == nil && info.IsDir() {
			directories = append(directories, s)
			continue
		}
		if err := CheckName(s.Name); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", s.Location, err)
		}
		if other, ok := taken[s.Name]; ok {
			return nil, nil, fmt.Errorf("%s and %s: both are called %q: name one by NAME=LOCATION",
				other.Location, s.Location, s.Name)
		}
		taken[s.Name] = s
		images = append(images, s)
	}
	for _, d := range directories {
		found, skipped, err := Scan(d)
		if err != nil {
			return nil, nil, err
		}
		notes = append(notes, skipped...)
		for _, s := range found {
			if err := CheckName(s.Name); err != nil {
				notes = append(notes, fmt.Sprintf("%s: skipped: %v", s.Location, err))
				continue
			}
			if other, ok := taken[s.Name]; ok {
				notes = append(notes, fmt.Sprintf("%s: skipped: the name %q is that of %s: name it by NAME=LOCATION",
					s.Location, s.Name, other.Location))
				continue
			}
			taken[s.Name] = s
			images = append(images, s)
		}
	}
	return images, notes, nil
}

// Scan returns the images of a directory, which are its regular files with
// an image's suffix, each with the options of the directory, sorted by file
// name. Names are not checked.
func Scan(d Source) (found []Source, notes []string, err error) {
	if !d.RawGiven && d.formatGiven {
		return nil, nil, fmt.Errorf("%s: a directory takes no format= but raw: each of its images has the format of its name", d.Location)
	}
	if d.Named {
		return nil, nil, fmt.Errorf("%s: a directory takes no NAME=: each of its images has a name of its own", d.Location)
	}
	entries, err := os.ReadDir(d.Location)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: scan the directory: %w", d.Location, bare(err))
	}
	var others []string
	for _, e := range entries {
		format, known := suffixes[suffix(e.Name())]
		if d.RawGiven {
			format = "raw"
		}
		path := filepath.Join(d.Location, e.Name())
		switch {
		case !known:
			others = append(others, e.Name())
		case e.Type()&fs.ModeSymlink != 0:
			notes = append(notes, path+": skipped: a symbolic link")
		case !e.Type().IsRegular():
			notes = append(notes, path+": skipped: not a regular file")
		default:
			s := d
			s.Location, s.Name, s.Format = path, defaultName(path), format
			found = append(found, s)
		}
	}
	if len(others) > 0 {
		notes = append(notes, fmt.Sprintf("%s: skipped %d without an image's suffix: %s", d.Location, len(others), abridged(others)))
	}
	if len(found) == 0 {
		return nil, nil, fmt.Errorf("%s: no image in this directory: it has no regular file called *.raw, *.img, *.qcow2, *.vmdk, *.vhdx or *.vdi", d.Location)
	}
	return found, notes, nil
}

// abridged lists a few names; a directory may hold thousands.
func abridged(names []string) string {
	const most = 4
	quoted := make([]string, 0, most+1)
	for i, name := range names {
		if i == most {
			quoted = append(quoted, "...")
			break
		}
		quoted = append(quoted, fmt.Sprintf("%q", name))
	}
	return strings.Join(quoted, ", ")
}

// bare takes the operation and the path off an error of package os, for a
// message that has said both.
func bare(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
