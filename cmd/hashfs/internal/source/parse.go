package source

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"hashfs/hasher"
	"hashfs/nbdsrc"
)

// suffixes maps the suffix of a file's name, in lower case, to its format.
// Each is also taken off to make an image's default name.
var suffixes = map[string]string{
	".raw":   "raw",
	".img":   "raw",
	".qcow2": "qcow2",
	".vmdk":  "vmdk",
	".vhdx":  "vhdx",
	".vdi":   "vdi",
}

// A file may be called "nbd:x", so that only the form with // is a URI.
var nbdURI = regexp.MustCompile(`^nbds?(\+[a-z]+)?://`)

// nameMax is NAME_MAX of Linux, in bytes.
const nameMax = 255

// Parse parses one SOURCE argument. The name is checked only when it was
// given; CheckName checks a default one.
func Parse(arg string) (Source, error) {
	fields := splitFields(arg)
	s := Source{Arg: arg, Location: fields[0]}
	if i := strings.IndexAny(s.Location, "=/"); i >= 0 && s.Location[i] == '=' {
		s.Name, s.Named, s.Location = s.Location[:i], true, s.Location[i+1:]
	}
	if s.Location == "" {
		return Source{}, fmt.Errorf("source %q: no location given: it is [NAME=]LOCATION[,option=value...]", arg)
	}
	format := ""
	for _, option := range fields[1:] {
		if err := s.setOption(option, &format); err != nil {
			return Source{}, fmt.Errorf("%s: %w", s.Location, err)
		}
	}
	if err := s.decideFormat(format); err != nil {
		return Source{}, fmt.Errorf("%s: %w", s.Location, err)
	}
	if !s.Named {
		s.Name = defaultName(s.Location)
		return s, nil
	}
	if err := CheckName(s.Name); err != nil {
		return Source{}, fmt.Errorf("source %q: %w", arg, err)
	}
	return s, nil
}

// At returns the source at a location, which is taken as it stands, with all
// options as they are by default.
func At(location string) Source {
	s := Source{Arg: location, Location: location, Name: defaultName(location)}
	if err := s.decideFormat(""); err != nil {
		panic(err) // only options that were given can be refused
	}
	return s
}

// splitFields splits at single commas; two in a row are one comma of a field.
func splitFields(arg string) []string {
	fields := []string{}
	var field strings.Builder
	for i := 0; i < len(arg); i++ {
		switch {
		case arg[i] != ',':
			field.WriteByte(arg[i])
		case i+1 < len(arg) && arg[i+1] == ',':
			field.WriteByte(',')
			i++
		default:
			fields = append(fields, field.String())
			field.Reset()
		}
	}
	return append(fields, field.String())
}

func (s *Source) setOption(option string, format *string) error {
	key, value, hasValue := strings.Cut(option, "=")
	switch key {
	case "format", "digest", "cache", "snapshot", "chain":
		if value == "" {
			return fmt.Errorf("option %s: no value given", key)
		}
	case "writable":
		if hasValue {
			return errors.New("option writable: it takes no value")
		}
	case "":
		return errors.New("empty option: a comma in a location is doubled (,,)")
	default:
		return fmt.Errorf("unknown option %q: the options are format=, digest=, writable, cache=, snapshot=, chain=; a comma in a location is doubled (,,)", key)
	}
	switch key {
	case "format":
		return setOnce(format, key, value)
	case "digest":
		if _, err := hasher.ParseSpec(value); err != nil {
			return err
		}
		return setOnce(&s.Digest, key, value)
	case "cache":
		if value != "keep" && value != "none" {
			return fmt.Errorf("option cache: %q is neither keep nor none", value)
		}
		return setOnce(&s.Cache, key, value)
	case "snapshot":
		return setOnce(&s.Snapshot, key, value)
	case "chain":
		if value != "trust" {
			return fmt.Errorf("option chain: %q is not trust", value)
		}
		s.TrustChain = true
		return nil
	}
	s.Writable = true
	return nil
}

func setOnce(to *string, key, value string) error {
	if *to != "" && *to != value {
		return fmt.Errorf("option %s: both %q and %q given", key, *to, value)
	}
	*to = value
	return nil
}

// decideFormat settles the format from format= and else from the name, and
// refuses options that say nothing about it.
func (s *Source) decideFormat(given string) error {
	s.RawGiven, s.formatGiven = given == "raw", given != ""
	switch {
	case nbdURI.MatchString(s.Location):
		if given != "" {
			return fmt.Errorf("option format: an NBD server tells nothing of formats: leave out format=%s", given)
		}
		s.Format = "nbd"
	case given == "":
		s.Format = "raw"
		if f := suffixes[suffix(s.Location)]; f != "" {
			s.Format = f
		}
	case given == "raw" || nbdsrc.KnownFormat(given):
		s.Format = given
	default:
		return fmt.Errorf("option format: unknown format %q: there are raw, %s", given, strings.Join(nbdsrc.KnownFormats(), ", "))
	}
	switch {
	case s.Snapshot != "" && s.Format != "qcow2":
		return fmt.Errorf("option snapshot: only a qcow2 has snapshots, and this is %s", s.Format)
	case s.Snapshot != "" && s.Writable:
		return errors.New("options snapshot and writable: a snapshot cannot be written")
	case s.TrustChain && (s.Format == "raw" || s.Format == "nbd"):
		return fmt.Errorf("option chain: %s has no chain of files", s.Format)
	}
	return nil
}

// suffix returns the suffix of a path in lower case: disks that come from
// Windows are called DISK.VHDX too.
func suffix(path string) string {
	return strings.ToLower(filepath.Ext(path))
}

// defaultName returns the last part of a location without its suffix: of an
// NBD URI, the last part of the export's name, else of the socket's, else the
// host.
func defaultName(location string) string {
	base := filepath.Base(location)
	if nbdURI.MatchString(location) {
		base = exportName(location)
	}
	if _, known := suffixes[suffix(base)]; known {
		return base[:len(base)-len(filepath.Ext(base))]
	}
	return base
}

func exportName(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return nameless // nbdsrc says what is wrong with it
	}
	socket := strings.TrimSuffix(filepath.Base(u.Query().Get("socket")), ".sock")
	for _, name := range []string{filepath.Base(u.Path), socket, u.Hostname()} {
		if name != "" && name != "/" && name != "." {
			return name
		}
	}
	return nameless
}

// nameless is what an export is called that gives nothing for a name.
const nameless = "nbd"

// reserved are the names that the root of a mount uses itself; go-fuse
// answers the last of them on its own.
var reserved = map[string]bool{
	".hashfs":             true,
	"CACHEDIR.TAG":        true,
	".go-fuse-epoll-hack": true,
}

// CheckName tells why name cannot be an image's name, nil when it can.
func CheckName(name string) error {
	const wayOut = "give another one by NAME=LOCATION"
	switch {
	case name == "":
		return errors.New("the image's name is empty: " + wayOut)
	case name == "." || name == "..":
		return fmt.Errorf("an image cannot be called %q: %s", name, wayOut)
	case reserved[name]:
		return fmt.Errorf("the name %q is reserved: %s", name, wayOut)
	case strings.Contains(name, "/"):
		return fmt.Errorf("the name %q has a slash: %s", name, wayOut)
	case !utf8.ValidString(name):
		return fmt.Errorf("the name %q is not valid UTF-8: %s", name, wayOut)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the name %q has control characters: %s", name, wayOut)
	case len(name) > nameMax:
		return fmt.Errorf("the name %.20q... is longer than %d bytes: %s", name, nameMax, wayOut)
	}
	return nil
}
