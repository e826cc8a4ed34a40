package fs

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"hashfs/hasher"
)

const (
	hole = hasher.ExtentHole
	zero = hasher.ExtentZero
)

// maps are the maps that the formats are tried with.
var maps = map[string]*hasher.Map{
	"empty": {},
	"data":  {Size: 65536, Extents: []hasher.Extent{{Offset: 0, Length: 65536}}},
	"each type": {Size: 400, Extents: []hasher.Extent{
		{Offset: 0, Length: 100, Type: hole | zero},
		{Offset: 100, Length: 100},
		{Offset: 200, Length: 100, Type: hole},
		{Offset: 300, Length: 100, Type: zero},
	}},
	"wider than the columns": {Size: math.MaxInt64, Extents: []hasher.Extent{
		{Offset: 0, Length: 12345678901, Type: hole | zero},
		{Offset: 12345678901, Length: math.MaxInt64 - 12345678901},
	}},
}

func TestMapText_asNbdinfo(t *testing.T) {
	names := []string{"data", "hole", "zero", "hole,zero"}
	for name, m := range maps {
		t.Run(name, func(t *testing.T) {
			var want strings.Builder
			for _, e := range m.Extents {
				fmt.Fprintf(&want, "%10d  %10d  %3d  %s\n", e.Offset, e.Length, e.Type, names[e.Type])
			}
			checkFormat(t, mapText, m, want.String())
		})
	}
}

func TestMapJSON_asQemuImg(t *testing.T) {
	for _, raw := range []bool{true, false} {
		for name, m := range maps {
			t.Run(fmt.Sprintf("%s, raw %v", name, raw), func(t *testing.T) {
				var lines []string
				for _, e := range m.Extents {
					line := fmt.Sprintf(`{ "start": %d, "length": %d, "depth": 0, "present": true, "zero": %v, "data": %v, "compressed": false`,
						e.Offset, e.Length, e.Type&zero != 0, e.Type&hole == 0)
					if raw {
						line += fmt.Sprintf(`, "offset": %d`, e.Offset)
					}
					lines = append(lines, line+"}")
				}
				want := "[" + strings.Join(lines, ",\n") + "]\n"
				checkFormat(t, mapJSON(raw), m, want)
				if !json.Valid([]byte(want)) {
					t.Errorf("not JSON: %s", want)
				}
			})
		}
	}
}

func checkFormat(t *testing.T, format mapFormat, m *hasher.Map, want string) {
	t.Helper()
	size := format.renderedSize(m)
	if size != int64(len(want)) {
		t.Errorf("size is %d before rendering, want %d", size, len(want))
	}
	if diff := cmp.Diff(want, string(format.render(m, size))); diff != "" {
		t.Error(diff)
	}
}
