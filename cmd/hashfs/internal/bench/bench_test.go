package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRow_verdict(t *testing.T) {
	for _, tt := range []struct {
		name   string
		row    row
		result string
		want   string
	}{
		{"below", row{peer: "p", target: atMost(0.5), ours: []float64{1, 2, 9}, theirs: []float64{5}}, "0.4", "pass"},
		{"equal", row{peer: "p", target: atMost(0.5), ours: []float64{1}, theirs: []float64{2}}, "0.5", "pass"},
		{"above, though it is shown as equal", row{peer: "p", target: atMost(0.5), ours: []float64{0.5001}, theirs: []float64{1}}, "0.5", "MISS"},
		{"enough", row{peer: "p", target: atLeast(1.8), ours: []float64{2}, theirs: []float64{1}}, "2", "pass"},
		{"not enough", row{peer: "p", target: atLeast(1.8), ours: []float64{1.7}, theirs: []float64{1}}, "1.7", "MISS"},
		{"the largest counts without a peer", row{unit: mebi, target: atMost(24), ours: []float64{1, 25, 1}}, "25 MiB", "MISS"},
		{"no number is no pass", row{peer: "p", target: atMost(1), ours: []float64{0}, theirs: []float64{0}}, "NaN", "MISS"},
		{"nothing to reach", row{peer: "p", ours: []float64{1}, theirs: []float64{4}}, "0.25", ""},
		{"missing", row{peer: "p", target: atMost(1), missing: "no tool"}, "not measured", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.row.verdict(); got != tt.want {
				t.Errorf("verdict %q, want %q", got, tt.want)
			}
			if got := tt.row.result(); got != tt.result {
				t.Errorf("result %q, want %q", got, tt.result)
			}
		})
	}
}

func TestUnit_format(t *testing.T) {
	for _, tt := range []struct {
		unit unit
		v    float64
		want string
	}{
		{seconds, 12.3456, "12.3 s"},
		{seconds, 0.8612, "861 ms"},
		{seconds, 0.00151, "1.51 ms"},
		{seconds, 0.0000275, "27.5 µs"},
		{seconds, 0.0000000384, "38.4 ns"},
		{perSec, 53512.4, "53512/s"},
		{mebi, 11.87, "11.9 MiB"},
	} {
		if got := tt.unit.format(tt.v); got != tt.want {
			t.Errorf("%v in %s: %q, want %q", tt.v, tt.unit, got, tt.want)
		}
	}
	if got := number(1.0 / 400); got != "0.0025" {
		t.Errorf("1/400: %q", got)
	}
	if got := number(math.NaN()); got != "NaN" {
		t.Errorf("no number: %q", got)
	}
}

func TestLab_race_takesTurns(t *testing.T) {
	var order strings.Builder
	side := func(name string, v float64) measurement {
		return func(context.Context) (float64, error) {
			order.WriteString(name)
			return v, nil
		}
	}
	l := &lab{options: &options{runs: 3}}
	r := &row{}
	if err := l.race(context.Background(), r, side("a", 1), side("b", 2)); err != nil {
		t.Fatal(err)
	}
	if order.String() != "abbaabba" {
		t.Errorf("order %s", &order)
	}
	if diff := cmp.Diff([][]float64{{1, 1, 1}, {2, 2, 2}}, [][]float64{r.ours, r.theirs}); diff != "" {
		t.Errorf("the first turn does not count (-want +got):\n%s", diff)
	}
}

func TestLab_turns(t *testing.T) {
	for _, c := range []struct {
		runs, most, want int
	}{{3, 0, 3}, {3, 5, 5}, {3, 2, 3}} {
		l := &lab{options: &options{runs: c.runs, mostRuns: c.most}}
		next := 0
		err := l.turns(func(i int) error {
			if i != next {
				t.Errorf("turn %d, want %d", i, next)
			}
			next++
			return nil
		})
		if err != nil || next != c.want+1 {
			t.Errorf("%d to %d runs: %d turns count, %v, want %d", c.runs, c.most, next-1, err, c.want)
		}
	}
}

func TestLab_turns_longOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lab{options: &options{runs: 2, mostRuns: 9}}
		turns := 0
		if err := l.turns(func(int) error { turns++; time.Sleep(enoughTime / 3); return nil }); err != nil {
			t.Error(err)
		}
		if turns != 3 {
			t.Errorf("%d turns, want 3", turns)
		}
		turns = 0
		if err := l.turns(func(int) error { turns++; time.Sleep(enoughTime / 5); return nil }); err != nil {
			t.Error(err)
		}
		if turns != 5 {
			t.Errorf("%d turns, want 5", turns)
		}
	})
}

func TestLab_race_endsWithAnError(t *testing.T) {
	broken := errors.New("broken")
	l := &lab{options: &options{runs: 3}}
	err := l.race(context.Background(), &row{}, func(context.Context) (float64, error) { return 0, broken }, nil)
	if !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
}

func TestParseFio(t *testing.T) {
	r, err := parseFio([]byte(`fio: a warning
{"jobs": [{"read": {"io_bytes": 0}, "write": {"io_bytes": 1000, "bw_bytes": 500, "iops": 7.5,
 "clat_ns": {"percentile": {"99.000000": 1, "99.900000": 2000}}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.IOPS != 7.5 || r.seconds() != 2 || r.tail() != 2e-6 {
		t.Errorf("%+v", r)
	}
	for name, out := range map[string]string{
		"nothing done": `{"jobs": [{"read": {"io_bytes": 0}, "write": {"io_bytes": 0}}]}`,
		"no job":       `{"jobs": []}`,
		"no JSON":      `fio: failed`,
	} {
		if _, err := parseFio([]byte(out)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestParseBenchmark(t *testing.T) {
	v, err := parseBenchmark([]byte("goos: linux\nBenchmarkNothing-2   \t 1000\t        25.0 ns/op\nPASS\n"), "Nothing")
	if math.Abs(v-25e-9) > 1e-12 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if v, err := parseBenchmark([]byte("PASS\n"), "Nothing"); err == nil {
		t.Errorf("%v of nothing", v)
	}
}

func TestParseProfile(t *testing.T) {
	report := "# Overhead  Command\n" +
		"    40.10%  hashfs  hashfs             [.] blocks4.abi0      -      -\n" +
		"    30.00%  swapper [kernel.kallsyms]  [k] halt\n" +
		"    10.00%  swapper [kernel.kallsyms]  [k] tick\n" +
		"     5.00%  nbdkit  [kernel.kallsyms]  [k] copy to user\n\n" +
		"no line of a report\n"
	want := []string{
		"40.10% hashfs hashfs [.] blocks4.abi0",
		"5.00% nbdkit [kernel.kallsyms] [k] copy to user",
		"40.00% idle",
	}
	if diff := cmp.Diff(want, parseProfile(report)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestParseProcessor(t *testing.T) {
	model, flags := parseProcessor("processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sha_ni avx2 avx512f\n\nprocessor\t: 1\nmodel name\t: Some CPU\nflags\t\t: fpu sha_ni avx2 avx512f\n")
	if model != "Some CPU" {
		t.Errorf("model %q", model)
	}
	if diff := cmp.Diff([]string{"sha_ni", "avx2", "avx512f"}, flags); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestReadTopology_threadsOfACore(t *testing.T) {
	dir := t.TempDir()
	// Two sockets that number their cores alike, two threads a core.
	for cpu, at := range []string{"0 0", "0 0", "1 0", "1 0"} {
		socket, core, _ := strings.Cut(at, " ")
		d := filepath.Join(dir, "cpu"+string(rune('0'+cpu)), "topology")
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, v := range map[string]string{"physical_package_id": socket, "core_id": core} {
			if err := os.WriteFile(filepath.Join(d, name), []byte(v+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, want := readTopology(dir).String(), "4 processors: 2 sockets, 2 cores, 2 threads a core"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestExperiments_rows(t *testing.T) {
	names := map[string]bool{}
	for _, e := range allExperiments() {
		if names[e.name] {
			t.Errorf("two experiments are called %s", e.name)
		}
		names[e.name] = true
		for _, r := range e.rows {
			if r.work == "" || r.unit == "" || !strings.HasSuffix(r.why, ".") || !strings.HasSuffix(r.limits, ".") {
				t.Errorf("%s: a row says too little: %+v", e.name, r)
			}
		}
	}
}

func TestWriteDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "docs", "performance.md")
	rows := []*row{{
		work: "work", peer: "peer <x", target: atMost(0.5), unit: seconds, why: "Because.", limits: "Nothing.",
		ours: []float64{1}, theirs: []float64{4}, profile: []string{"90% f", "10% idle"},
	}, {
		work: "other", peer: "p", unit: seconds, why: "So.", limits: "All.", missing: "no tool",
	}}
	if err := writeDocument(path, []fact{{"kernel", "Linux"}}, rows); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n- kernel: Linux\n",
		"\n| 1 | work | peer &lt;x | 1 s ∞ | 4 s ∞ | 0.25 | ≤ 0.5 | pass |\n| 2 | other |",
		"\n1. **work.** Because. *It cannot show:* Nothing.\n2. **other.** So. *It cannot show:* All. Not measured: no tool.\n",
		"\nRow 1:\n\n```\n90% f\n10% idle\n```\n",
		"\n- 1: 1 s against 4 s\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestWarm_andChill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	have, known, err := cached(f)
	if err != nil {
		t.Fatal(err)
	}
	if !known || have < 3<<20 {
		t.Skipf("this kernel does not tell what is cached (%d bytes)", have)
	}
	if err := chill(path, false); err != nil {
		t.Skipf("the file system keeps its data in memory: %v", err)
	}
	if have, _, _ := cached(f); have > 1<<20 {
		t.Errorf("%d bytes are cached after chill", have)
	}
	if err := warm(path); err != nil {
		t.Fatal(err)
	}
	if have, _, _ := cached(f); have < 3<<20 {
		t.Errorf("%d bytes are cached after warm", have)
	}
}

func TestParse_refuses(t *testing.T) {
	for _, args := range [][]string{
		{"-quick", "-o", "x"}, {"-only", "x", "-o", "x"}, {"-only", "("}, {"-runs", "-1"}, {"argument"},
	} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	o, err := parse(nil)
	if err != nil || o.runs != fullRuns {
		t.Errorf("%+v, %v", o, err)
	}
	o, err = parse([]string{"-quick"})
	if err != nil || o.runs != quickRuns {
		t.Errorf("%+v, %v", o, err)
	}
}
