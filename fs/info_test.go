package fs

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"hashfs/blockcache"
	"hashfs/hasher"
)

// Whatever an image's status is, it fits into the size fixed at the mount.
func TestInfo_neverOutgrowsItsSize(t *testing.T) {
	d := newTestMount(t, testOptions{}).m.images[0]
	now := time.Now()
	failure := func(message string) *hasher.Failure {
		return &hasher.Failure{Offset: math.MaxInt64, Length: math.MaxInt64, Message: message, Time: now}
	}
	many := hasher.Status{
		Geometry:    hasher.Geometry{Size: math.MaxInt64, Generation: math.MaxUint64},
		BlockCounts: hasher.BlockCounts{Total: math.MaxInt64, Unknown: math.MaxInt64, Zero: math.MaxInt64, Data: math.MaxInt64, Failed: math.MaxInt64},
		Cache:       blockcache.Stats{Bytes: math.MaxInt64, Limit: math.MaxInt64, Hits: math.MaxInt64, Misses: math.MaxInt64, Evictions: math.MaxInt64},
		CacheNeeded: math.MaxInt64,
		LastError:   failure(strings.Repeat("\x00", 10_000)),
	}
	for range 1000 {
		many.Work = append(many.Work, hasher.Work{File: strings.Repeat(`"`, 1000), Done: math.MaxInt64, Total: math.MaxInt64, Started: now})
		many.Bad = append(many.Bad, math.MaxInt64)
	}
	for _, c := range []struct {
		name   string
		status hasher.Status
	}{
		{"nothing", hasher.Status{}},
		{"as much as there can be", many},
		{"a message of quotes", hasher.Status{LastError: failure(strings.Repeat(`"\`, 400))}},
		{"a message that is no UTF-8", hasher.Status{LastError: failure(strings.Repeat("\xff", 400))}},
		{"a message of wide runes", hasher.Status{LastError: failure(strings.Repeat("\u2028é𝄞", 400))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := d.fixedInfo()
			i.setStatus(c.status)
			b, err := i.render()
			if err != nil {
				t.Fatal(err)
			}
			padded, err := pad(b, d.infoSize)
			if err != nil {
				t.Fatalf("%d bytes, where %d are: %v", len(b), d.infoSize, err)
			}
			var back map[string]any
			if len(padded) != d.infoSize || json.Unmarshal(padded, &back) != nil || padded[len(padded)-1] != '\n' {
				t.Errorf("%d bytes, want %d of JSON and a newline", len(padded), d.infoSize)
			}
		})
	}
}

func TestCut_keepsWithinLimit(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"as it is", "short", "short"},
		{"at the limit", "0123456789", "0123456789"},
		{"beyond it", "0123456789x", "0123456789"},
		{"an escape that does not fit", "01234\x00", "01234"},
		{"no half rune", "012345678é", "012345678"},
		{"no invalid byte", "a\xffb", "a\ufffdb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := cut(c.in, 10)
			if got != c.want || !utf8.ValidString(got) {
				t.Errorf("cut(%q) = %q, want %q", c.in, got, c.want)
			}
		})
	}
}

func TestPad(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		size           int
		err            bool
	}{
		{"room", "{}\n", "{}   \n", 6, false},
		{"none needed", "{}\n", "{}\n", 3, false},
		{"too long", "{}\n", "", 2, true},
		{"a blank line", "a 1\n\n", "a 1\n  \n", 7, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := pad([]byte(c.in), c.size)
			if string(got) != c.want || (err != nil) != c.err {
				t.Errorf("pad(%q, %d) = %q, %v, want %q", c.in, c.size, got, err, c.want)
			}
		})
	}
}
