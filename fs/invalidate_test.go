package fs

import (
	"strings"
	"testing"
)

func TestParseInvalidation_lines(t *testing.T) {
	for _, c := range []struct {
		line string
		want *invalidation
		err  string
	}{
		{line: ""},
		{line: " \t\n"},
		{line: "all\n", want: &invalidation{all: true}},
		{line: "0 1", want: &invalidation{length: 1}},
		{line: "  65536\t4096 \r\n", want: &invalidation{off: 65536, length: 4096}},
		{line: "0 0", want: &invalidation{}},
		{line: "9223372036854775807 9223372036854775807", want: &invalidation{off: 1<<63 - 1}},
		{line: "5", err: "neither OFFSET LENGTH nor all"},
		{line: "1 2 3", err: "neither OFFSET LENGTH nor all"},
		{line: "ALL", err: "neither OFFSET LENGTH nor all"},
		{line: "-1 5", err: `offset "-1" is not a number of bytes`},
		{line: "0x10 5", err: `offset "0x10" is not a number of bytes`},
		{line: "5 1k", err: `length "1k" is not a number of bytes`},
		{line: "9223372036854775808 1", err: "is not a number of bytes"},
	} {
		got, err := parseInvalidation(c.line)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: error %v, want one with %q", c.line, err, c.err)
			}
			continue
		}
		if err != nil || (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%q: %+v, %v, want %+v", c.line, got, err, c.want)
		}
	}
}

func FuzzParseInvalidation(f *testing.F) {
	f.Add("all")
	f.Add("123 456")
	f.Add("9223372036854775807 2")
	f.Fuzz(func(t *testing.T, line string) {
		i, err := parseInvalidation(line)
		if err != nil || i == nil {
			return
		}
		if i.off < 0 || i.length < 0 || i.off+i.length < 0 {
			t.Errorf("%q: %+v", line, i)
		}
	})
}
