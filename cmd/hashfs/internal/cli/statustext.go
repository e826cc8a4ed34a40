package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"hashfs/cmd/hashfs/internal/mounts"
)

// info is what the text needs of info.json.
type info struct {
	Source    string
	Format    string
	Size      int64
	BlockSize int64 `json:"block_size"`
	Digest    string
	Writable  bool
	Blocks    struct{ Total, Unknown, Zero, Data, Failed int64 }
	Work      []struct {
		File        string
		Done, Total int64
		Started     time.Time
	}
	LastError *struct {
		Offset, Length int64
		Message        string
		Time           time.Time
	} `json:"last_error"`
}

func isPermission(err error) bool { return errors.Is(err, fs.ErrPermission) }

func printStatus(stdout, stderr io.Writer, all []mountStatus) error {
	if len(all) == 0 {
		complain(stderr, "nothing is mounted")
	}
	out := bufio.NewWriter(stdout)
	for _, s := range all {
		if s.State == "none" {
			complain(stderr, "%s: %s", s.Point, s.Error)
			continue
		}
		if s.State != "ok" {
			fmt.Fprintf(out, "%s: %s\n", oneLine(s.Point), oneLine(s.Error))
			continue
		}
		fmt.Fprintf(out, "%s:\n", oneLine(s.Point))
		for _, im := range s.Images {
			printImage(out, im)
		}
	}
	return out.Flush()
}

func printImage(out io.Writer, im mounts.Image) {
	var i info
	if im.Error == "" {
		if err := json.Unmarshal(im.Info, &i); err != nil {
			im.Error = "info.json: " + err.Error()
		}
	}
	if im.Error != "" {
		fmt.Fprintf(out, "  %s: %s\n", oneLine(im.Name), oneLine(im.Error))
		return
	}
	access := "read-only"
	if i.Writable {
		access = "writable"
	}
	fmt.Fprintf(out, "  %s: %s, %s, %s\n", oneLine(im.Name), oneLine(i.Source), i.Format, access)
	fmt.Fprintf(out, "    size    %s\n", sizeText(i.Size))
	fmt.Fprintf(out, "    digest  %s, blocks of %d bytes\n", i.Digest, i.BlockSize)
	fmt.Fprintf(out, "    blocks  %d: %d hashed, %d zero, %d unknown, %d failed\n",
		i.Blocks.Total, i.Blocks.Data, i.Blocks.Zero, i.Blocks.Unknown, i.Blocks.Failed)
	for _, w := range i.Work {
		percent := 100.0
		if w.Total > 0 {
			percent = 100 * float64(w.Done) / float64(w.Total)
		}
		fmt.Fprintf(out, "    now     %s: %.0f %% of %s, since %s\n",
			w.File, percent, formatSize(w.Total), w.Started.Local().Format(time.DateTime))
	}
	if e := i.LastError; e != nil {
		fmt.Fprintf(out, "    error   %s, %d bytes at %d: %s\n",
			e.Time.Local().Format(time.DateTime), e.Length, e.Offset, oneLine(e.Message))
	}
}

func sizeText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d bytes (%s)", n, formatSize(n))
}
