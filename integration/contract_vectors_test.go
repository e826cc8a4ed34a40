package integration

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A vector is a row of hasher/testdata/vectors.tsv.
type vector struct {
	image  string // in the syntax of nbdkit's data plugin, or in words
	digest string // DIGEST[/SIZE]
	sum    string // checksum in hex
}

func readVectors(t *testing.T) []vector {
	t.Helper()
	f, err := os.Open("../hasher/testdata/vectors.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows []vector
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		columns := strings.Split(lines.Text(), "\t")
		if len(columns) != 3 {
			t.Fatalf("row %q", lines.Text())
		}
		rows = append(rows, vector{columns[0], columns[1], columns[2]})
	}
	if len(rows) == 0 {
		t.Fatal("no rows")
	}
	return rows
}

// writeVector writes the image of a vector to path. What is above a MiB of
// zeros becomes a hole, which is cheap; other zeros are written.
func writeVector(path, image string) error {
	var size int64
	var pieces []piece
	switch words := strings.Fields(image); {
	case strings.HasPrefix(image, "hole of "):
		n, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil {
			return err
		}
		size = n
	case strings.HasSuffix(image, " zero bytes"):
		n, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			return err
		}
		size = n
		if n <= mib {
			pieces = []piece{{0, make([]byte, n)}}
		}
	default:
		for _, word := range words {
			if offset, ok := strings.CutPrefix(word, "@"); ok {
				n, err := strconv.ParseInt(offset, 10, 64)
				if err != nil {
					return err
				}
				size = n
				continue
			}
			data, err := expandData(word)
			if err != nil {
				return err
			}
			pieces = append(pieces, piece{size, data})
			size += int64(len(data))
		}
	}
	return writePieces(path, size, pieces)
}

// expandData expands "text" and "text"*N.
func expandData(word string) ([]byte, error) {
	quoted, times, repeated := strings.Cut(word, "*")
	text, err := strconv.Unquote(quoted)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", word, err)
	}
	n := 1
	if repeated {
		if n, err = strconv.Atoi(times); err != nil {
			return nil, err
		}
	}
	return []byte(strings.Repeat(text, n)), nil
}

// Every published checksum comes out of hashfs sum and out of a mount, whose
// images here each have a digest of their own.
func TestVectors(t *testing.T) {
	t.Parallel()
	rows := readVectors(t)
	dir := scratch(t)
	var sources []string
	for i, v := range rows {
		path := filepath.Join(dir, fmt.Sprintf("%02d.raw", i))
		if err := writeVector(path, v.image); err != nil {
			t.Fatal(err)
		}
		sources = append(sources, path+",digest="+v.digest)
	}
	m := mount(t, sources...)
	for i, v := range rows {
		t.Run(fmt.Sprintf("%s %s", v.image, v.digest), func(t *testing.T) {
			name := fmt.Sprintf("%02d", i)
			path := filepath.Join(dir, name+".raw")
			same(t, "hashfs sum", output(t, program, "sum", "--digest", v.digest, path), v.sum+"  "+path+"\n")
			same(t, "checksum", readFile(t, m.path(name, "checksum")), v.sum+"\n")
		})
	}
}
