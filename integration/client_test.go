package integration

import (
	"path/filepath"
	"testing"
)

func TestMount_foreground_and_background(t *testing.T) {
	t.Parallel()
	data := random(1, 3*blockSize+100)
	path := filepath.Join(scratch(t), "disk.img")
	writeImage(t, path, data)
	for _, row := range []struct {
		name  string
		mount func(testing.TB, ...string) *mounted
	}{
		{"foreground", mount},
		{"background", mountBackground},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := row.mount(t, path)
			m.checkDigests("disk", newOracle(data))
			same(t, "image", m.read("disk", "image"), string(data))
		})
	}
}
