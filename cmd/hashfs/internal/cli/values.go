package cli

import (
	"errors"
	"fmt"
	"math"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"hashfs/hasher"
)

// The types of flags, each a pflag.Value.

// specValue is a DIGEST[/SIZE].
type specValue struct {
	hasher.Spec
	given string // as it was given, "" for the default
}

func newSpecValue() specValue {
	spec, err := hasher.ParseSpec("sha256")
	if err != nil {
		panic(err) // the default is one of the algorithms
	}
	return specValue{Spec: spec}
}

func (v *specValue) Set(s string) (err error) {
	if v.Spec, err = hasher.ParseSpec(s); err == nil {
		v.given = s
	}
	return err
}
func (v *specValue) String() string {
	if v.Algorithm == nil { // pflag asks a zero value
		return ""
	}
	return v.Spec.String()
}
func (v *specValue) Type() string { return "DIGEST[/SIZE]" }

// sizeValue is a number of bytes.
type sizeValue struct {
	bytes int64
	given bool
}

func (v *sizeValue) Set(s string) (err error) {
	v.bytes, err = parseSize(s)
	v.given = err == nil
	return err
}
func (v *sizeValue) String() string {
	if !v.given {
		return ""
	}
	return strconv.FormatInt(v.bytes, 10)
}
func (v *sizeValue) Type() string { return "SIZE" }

// parseSize reads bytes, or with a suffix k, m, g or t powers of 1024 of them.
func parseSize(s string) (int64, error) {
	digits, shift := s, 0
	if s != "" {
		if i := strings.IndexByte("kmgt", s[len(s)-1]|0x20); i >= 0 {
			digits, shift = s[:len(s)-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is no size: it is a number of bytes, or of units with a suffix k, m, g or t", s)
	}
	if n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("the size %s is too large", s)
	}
	return int64(n) << shift, nil
}

// formatSize writes a size for people.
func formatSize(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1023.95 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}

// modeValue is the permissions of files.
type modeValue struct{ mode *uint32 }

func (v *modeValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 8, 32)
	switch {
	case err != nil:
		return errors.New("it is no octal number, such as 0440")
	case n&0o007 != 0:
		return errors.New("others may not be let in: digests tell what is in an image")
	case n&^0o660 != 0:
		return errors.New("only the bits for reading and writing of owner and group (0660) can be set")
	case n&0o400 == 0:
		return errors.New("the owner must be able to read (0400)")
	}
	mode := uint32(n)
	v.mode = &mode
	return nil
}
func (v *modeValue) String() string {
	if v.mode == nil {
		return ""
	}
	return fmt.Sprintf("%04o", *v.mode)
}
func (v *modeValue) Type() string { return "MODE" }

// ownerValue is USER, USER:GROUP, USER: (with the user's group) or :GROUP, by
// name or number, as chown(1) takes it.
type ownerValue struct {
	uid, gid *uint32
	text     string
}

func (v *ownerValue) Set(s string) error {
	name, group, hasGroup := strings.Cut(s, ":")
	if name == "" && group == "" {
		return errors.New("no user is given")
	}
	var next ownerValue
	next.text = s
	if name != "" {
		u, err := lookupUser(name)
		if err != nil {
			return err
		}
		if next.uid, err = parseID(u.Uid); err != nil {
			return err
		}
		if hasGroup && group == "" {
			if u.Gid == "" {
				return fmt.Errorf("the user %s has no login group", name)
			}
			group = u.Gid
		}
	}
	if group != "" {
		id, err := lookupGroup(group)
		if err != nil {
			return err
		}
		if next.gid, err = parseID(id); err != nil {
			return err
		}
	}
	*v = next
	return nil
}
func (v *ownerValue) String() string { return v.text }
func (v *ownerValue) Type() string   { return "USER[:GROUP]" }

// lookupUser takes a number that belongs to nobody too; a name comes first.
func lookupUser(name string) (*user.User, error) {
	if u, err := user.Lookup(name); err == nil {
		return u, nil
	}
	if _, err := parseID(name); err != nil {
		return nil, fmt.Errorf("no such user: %s", name)
	}
	if u, err := user.LookupId(name); err == nil {
		return u, nil
	}
	return &user.User{Uid: name}, nil
}

func lookupGroup(name string) (string, error) {
	if g, err := user.LookupGroup(name); err == nil {
		return g.Gid, nil
	}
	if _, err := parseID(name); err != nil {
		return "", fmt.Errorf("no such group: %s", name)
	}
	return name, nil
}

// parseID refuses -1 in disguise, which means "leave it" to chown(2).
func parseID(s string) (*uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == math.MaxUint32 {
		return nil, fmt.Errorf("%s is no user or group id", s)
	}
	id := uint32(n)
	return &id, nil
}

// report is how much is said when lists are verified. As with sha256sum the
// last of the three flags counts.
type report int

const (
	reportAll      report = iota
	reportFailures        // --quiet
	reportNothing         // --status
	reportLines           // --warn: reportAll, and which line is no good
)

// reportFlag is one of those flags.
type reportFlag struct {
	to    *report
	value report
}

func addReportFlag(f *pflag.FlagSet, to *report, value report, name, shorthand, usage string) {
	f.VarPF(&reportFlag{to, value}, name, shorthand, usage).NoOptDefVal = "true"
}

func (f *reportFlag) Set(s string) error {
	on, err := strconv.ParseBool(s)
	switch {
	case err != nil:
		return err
	case on:
		*f.to = f.value
	case *f.to == f.value:
		*f.to = reportAll
	}
	return nil
}
func (f *reportFlag) String() string { return strconv.FormatBool(f.to != nil && *f.to == f.value) }
func (f *reportFlag) Type() string   { return "bool" }
