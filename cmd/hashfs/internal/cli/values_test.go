package cli

import (
	"math"
	"os/user"
	"strconv"
	"testing"

	"github.com/spf13/pflag"
)

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "1": 1, "4096": 4096, "1k": 1024, "2K": 2048, "3m": 3 << 20, "4G": 4 << 30, "1t": 1 << 40,
		"9223372036854775807": math.MaxInt64, "8388607t": 8388607 << 40,
	} {
		if got, err := parseSize(s); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "k", "-1", "1.5g", "1kb", "1 k", "0x10", "8388608t", "9223372036854775808", "1e3"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("parseSize(%q) = %d", s, got)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1023: "1023 bytes", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 10 << 30: "10.0 GiB", math.MaxInt64: "8.0 EiB",
	} {
		if got := formatSize(n); got != want {
			t.Errorf("formatSize(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestModeValue(t *testing.T) {
	for s, want := range map[string]uint32{"0400": 0o400, "440": 0o440, "0660": 0o660, "600": 0o600} {
		var v modeValue
		if err := v.Set(s); err != nil || *v.mode != want {
			t.Errorf("%s: %v, %v", s, v.mode, err)
		}
	}
	for _, s := range []string{"", "0444", "0404", "0777", "0500", "04400", "8", "0040", "u=r"} {
		var v modeValue
		if err := v.Set(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

func TestOwnerValue(t *testing.T) {
	root, err := user.LookupId("0")
	if err != nil {
		t.Skip(err)
	}
	id := func(n uint32) *uint32 { return &n }
	for _, row := range []struct {
		s        string
		uid, gid *uint32
	}{
		{root.Username, id(0), nil},
		{root.Username + ":", id(0), id(0)},
		{"0:1234567", id(0), id(1234567)},
		{":7654321", nil, id(7654321)},
		{"1234567", id(1234567), nil},
	} {
		var v ownerValue
		if err := v.Set(row.s); err != nil || !same(v.uid, row.uid) || !same(v.gid, row.gid) {
			t.Errorf("%s: %v %v, %v", row.s, text(v.uid), text(v.gid), err)
		}
	}
	for _, s := range []string{"", ":", "no such user", "0:no such group", "4294967295", "-1", "1234567:"} {
		var v ownerValue
		if err := v.Set(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

func same(a, b *uint32) bool { return text(a) == text(b) }

func text(n *uint32) string {
	if n == nil {
		return "none"
	}
	return strconv.Itoa(int(*n))
}

func TestReportFlag_last_one_counts(t *testing.T) {
	for _, row := range []struct {
		args []string
		want report
	}{
		{nil, reportAll},
		{[]string{"--quiet"}, reportFailures},
		{[]string{"--quiet", "--status"}, reportNothing},
		{[]string{"--status", "-w"}, reportLines},
		{[]string{"--status", "--status=false"}, reportAll},
		{[]string{"--status", "--quiet=false"}, reportNothing},
	} {
		var r report
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		addReportFlag(f, &r, reportFailures, "quiet", "", "")
		addReportFlag(f, &r, reportNothing, "status", "", "")
		addReportFlag(f, &r, reportLines, "warn", "w", "")
		if err := f.Parse(row.args); err != nil || r != row.want {
			t.Errorf("%q: %v, %v; want %v", row.args, r, err, row.want)
		}
	}
}
