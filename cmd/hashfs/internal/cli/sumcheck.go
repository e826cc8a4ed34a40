package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"hashfs/cmd/hashfs/internal/source"
	"hashfs/cmd/hashfs/internal/sumlist"
)

// tally counts what checking one list came to.
type tally struct {
	proper, matched                      int
	misformatted, unreadable, mismatched int
	untagged                             int // of the misformatted ones
}

// checkList verifies one list; the rules and the words are those of
// digest_check in GNU coreutils 9.1, src/digest.c.
func (s *summer) checkList(ctx context.Context, path string) (ok bool, err error) {
	in, name := s.stdin, "'standard input'"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			complain(s.stderr, "%s: %v", path, bare(err))
			return false, nil
		}
		defer f.Close()
		in, name = f, path
	}
	var t tally
	lines := bufio.NewReader(in)
	for number := 1; ; number++ {
		line, readErr := lines.ReadString('\n')
		if readErr != nil && readErr != io.EOF {
			complain(s.stderr, "%s: read error: %v", name, bare(readErr))
			return false, nil
		}
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if line != "" && !strings.HasPrefix(line, "#") {
			if err := s.checkLine(ctx, &t, line, name, number, path == "-"); err != nil {
				return false, err
			}
		}
		if readErr != nil {
			return s.conclude(t, name), nil
		}
	}
}

// checkLine verifies the file of one line. An error ends all.
func (s *summer) checkLine(ctx context.Context, t *tally, line, list string, number int, listIsStdin bool) error {
	entry, err := sumlist.Parse(line, s.untaggedKind())
	if err == nil && listIsStdin && entry.Name == "-" {
		err = sumlist.ErrFormat
	}
	if err != nil {
		t.misformatted++
		if errors.Is(err, sumlist.ErrUntagged) {
			t.untagged++
		}
		if s.report == reportLines {
			complain(s.stderr, "%s: %d: improperly formatted %schecksum line", list, number, s.kindWord())
		}
		return nil
	}
	t.proper++
	digest, err := s.sum(ctx, source.At(entry.Name), entry.Kind)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil && s.ignoreMissing && errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		t.unreadable++
		complain(s.stderr, "%v", err)
		return s.result(entry.Name, "FAILED open or read", s.report == reportNothing)
	case !bytes.Equal(digest, entry.Digest):
		t.mismatched++
		return s.result(entry.Name, "FAILED", s.report == reportNothing)
	}
	t.matched++
	return s.result(entry.Name, "OK", s.report == reportNothing || s.report == reportFailures)
}

func (s *summer) result(name, result string, silent bool) error {
	if silent {
		return nil
	}
	_, err := fmt.Fprintf(s.stdout, "%s: %s\n", sumlist.Label(name), result)
	return writeError(err)
}

// untaggedKind is what lines without a tag hold; nil when nothing says it.
func (s *summer) untaggedKind() *sumlist.Kind {
	if s.digest.given == "" && !s.plain {
		return nil
	}
	return &sumlist.Kind{Spec: s.digest.Spec, Plain: s.plain}
}

// kindWord is the digest's name for a message about a list.
func (s *summer) kindWord() string {
	if k := s.untaggedKind(); k != nil {
		return k.Tag() + " "
	}
	return ""
}

// conclude writes the warnings after a list and returns whether it passed.
func (s *summer) conclude(t tally, list string) bool {
	if t.untagged > 0 {
		defer complain(s.stderr, "%s: lines without a tag do not say what they hold: make the list with --tag, or say it by --digest or --plain", list)
	}
	if t.proper == 0 {
		if t.untagged == 0 {
			complain(s.stderr, "%s: no properly formatted checksum lines found", list)
		}
		return false
	}
	if s.report != reportNothing {
		s.warnOf(t.misformatted, "line is improperly formatted", "lines are improperly formatted")
		s.warnOf(t.unreadable, "listed file could not be read", "listed files could not be read")
		s.warnOf(t.mismatched, "computed checksum did NOT match", "computed checksums did NOT match")
		if s.ignoreMissing && t.matched == 0 {
			complain(s.stderr, "%s: no file was verified", list)
		}
	}
	return t.matched > 0 && t.mismatched == 0 && t.unreadable == 0 && (!s.strict || t.misformatted == 0)
}

func (s *summer) warnOf(n int, one, many string) {
	switch {
	case n == 1:
		complain(s.stderr, "WARNING: 1 %s", one)
	case n > 1:
		complain(s.stderr, "WARNING: %d %s", n, many)
	}
}
