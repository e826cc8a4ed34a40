package sumlist

import (
	"encoding/hex"
	"errors"
	"strings"

	"hashfs/hasher"
)

// A Kind says how a digest is made.
type Kind struct {
	Spec  hasher.Spec
	Plain bool // of the bytes themselves: the block size does not count
}

// Tag returns the name of the kind in a tagged line, "blk-sha256/65536".
func (k Kind) Tag() string {
	if k.Plain {
		return k.Spec.Algorithm.Name()
	}
	return "blk-" + k.Spec.String()
}

// parseTag is the inverse of Tag. Plain tags are taken in upper case too, as
// sha256sum --tag writes them.
func parseTag(tag string) (Kind, bool) {
	spec, blocks := strings.CutPrefix(tag, "blk-")
	if !blocks {
		spec = strings.ToLower(spec)
	}
	// A tag of blocks is always written with their size: without, it would
	// leave open what the digest is. A plain one has none.
	if blocks != strings.Contains(spec, "/") {
		return Kind{}, false
	}
	s, err := hasher.ParseSpec(spec)
	return Kind{Spec: s, Plain: !blocks}, err == nil
}

// An Entry is one line of a list.
type Entry struct {
	Kind   Kind
	Digest []byte
	Name   string
}

// Format returns the entry's line, with its newline.
func (e Entry) Format(tagged bool) string {
	name, escaped := escape(e.Name)
	start := ""
	if escaped {
		start = `\`
	}
	if tagged {
		return start + e.Kind.Tag() + " (" + name + ") = " + hex.EncodeToString(e.Digest) + "\n"
	}
	return start + hex.EncodeToString(e.Digest) + "  " + name + "\n"
}

// Label returns the name as a report about it shows it, in one line.
func Label(name string) string {
	escaped, any := escape(name)
	if any {
		return `\` + escaped
	}
	return name
}

var (
	// ErrFormat: the line is none of a list.
	ErrFormat = errors.New("improperly formatted checksum line")

	// ErrUntagged: it is one, but nothing says of which kind.
	ErrUntagged = errors.New("the line does not say which digest it is")
)

// Parse reads one line, given without its newline. untagged is the kind of
// the lines without a tag; when nil, those are ErrUntagged. Any other line
// that cannot be read is ErrFormat.
func Parse(line string, untagged *Kind) (Entry, error) {
	line = strings.TrimLeft(line, " \t")
	line, escaped := strings.CutPrefix(line, `\`)
	e, err := parseTagged(line)
	if err != nil {
		e, err = parseUntagged(line, untagged)
	}
	if err != nil {
		return Entry{}, err
	}
	if escaped {
		var ok bool
		if e.Name, ok = unescape(e.Name); !ok {
			return Entry{}, ErrFormat
		}
	}
	// No file has such a name; to open it would end at the zero byte.
	if e.Name == "" || strings.Contains(e.Name, "\x00") {
		return Entry{}, ErrFormat
	}
	return e, nil
}

// parseTagged takes the last ") = " for the end of the name, since a name
// can hold one too.
func parseTagged(line string) (Entry, error) {
	tag, rest, ok := strings.Cut(line, " (")
	end := strings.LastIndex(rest, ") = ")
	if !ok || end < 0 {
		return Entry{}, ErrFormat
	}
	kind, ok := parseTag(tag)
	if !ok {
		return Entry{}, ErrFormat
	}
	digest, err := hex.DecodeString(rest[end+len(") = "):])
	if err != nil || len(digest) != kind.Spec.Algorithm.Size() {
		return Entry{}, ErrFormat
	}
	return Entry{kind, digest, rest[:end]}, nil
}

func parseUntagged(line string, kind *Kind) (Entry, error) {
	digits, rest, ok := strings.Cut(line, " ")
	if !ok || len(rest) < 2 || rest[0] != ' ' && rest[0] != '*' {
		return Entry{}, ErrFormat
	}
	digest, err := hex.DecodeString(digits)
	switch {
	case err != nil || len(digest) == 0:
		return Entry{}, ErrFormat
	case kind == nil:
		return Entry{}, ErrUntagged
	case len(digest) != kind.Spec.Algorithm.Size():
		return Entry{}, ErrFormat
	}
	return Entry{*kind, digest, rest[1:]}, nil
}

var escaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`)

func escape(name string) (escaped string, any bool) {
	escaped = escaper.Replace(name)
	return escaped, escaped != name
}

func unescape(s string) (string, bool) {
	var name strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			name.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			return "", false
		}
		switch s[i] {
		case '\\':
			name.WriteByte('\\')
		case 'n':
			name.WriteByte('\n')
		case 'r':
			name.WriteByte('\r')
		default:
			return "", false
		}
	}
	return name.String(), true
}
