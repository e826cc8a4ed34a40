package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"hashfs/blockcache"
	"hashfs/hasher"
)

// Bounds of what varies in length in info.json, so that its size can be fixed.
const (
	maxBad     = 64  // blocks
	maxWork    = 8   // more is not shown
	maxMessage = 512 // bytes of a message as a JSON string
	maxFile    = 32  // bytes of a file's name as a JSON string
)

// info is info.json: the fields in their order.
type info struct {
	Name         string   `json:"name"`
	Source       string   `json:"source"`
	Format       string   `json:"format"`
	Size         int64    `json:"size"`
	BlockSize    int64    `json:"block_size"`
	Digest       string   `json:"digest"`
	Construction string   `json:"construction"`
	Algorithms   []string `json:"algorithms"`
	Writable     bool     `json:"writable"`
	CacheMode    string   `json:"cache_mode"`
	CacheReason  string   `json:"cache_reason"`
	Epoch        string   `json:"epoch"`
	Generation   uint64   `json:"generation"`

	Blocks struct {
		Total   int64 `json:"total"`
		Unknown int64 `json:"unknown"`
		Zero    int64 `json:"zero"`
		Data    int64 `json:"data"`
		Failed  int64 `json:"failed"`
	} `json:"blocks"`

	Cache struct {
		Bytes     int64 `json:"bytes"`
		Limit     int64 `json:"limit"`
		Needed    int64 `json:"needed"`
		Hits      int64 `json:"hits"`
		Misses    int64 `json:"misses"`
		Evictions int64 `json:"evictions"`
	} `json:"cache"`

	Work      []infoWork   `json:"work"`
	LastError *infoFailure `json:"last_error"`
	Bad       []int64      `json:"bad"`
}

type infoWork struct {
	File    string `json:"file"`
	Done    int64  `json:"done"`
	Total   int64  `json:"total"`
	Started string `json:"started"`
}

type infoFailure struct {
	Offset  int64  `json:"offset"`
	Length  int64  `json:"length"`
	Message string `json:"message"`
	Time    string `json:"time"`
}

// infoTime is RFC 3339 in UTC.
func infoTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// fixedInfo returns what of an image's info never changes.
func (d *imageDir) fixedInfo() *info {
	spec := d.Image.Image.Spec()
	i := &info{
		Name:         d.Name,
		Source:       d.Source,
		Format:       d.Format,
		BlockSize:    int64(spec.BlockSize),
		Digest:       spec.Algorithm.Name(),
		Construction: "blkhash",
		Writable:     d.Image.Image.Writable(),
		CacheMode:    d.CacheMode,
		CacheReason:  d.CacheReason,
		Epoch:        d.m.epoch,
		Work:         []infoWork{},
		Bad:          []int64{},
	}
	for _, a := range hasher.Algorithms() {
		i.Algorithms = append(i.Algorithms, a.Name())
	}
	return i
}

// openInfo renders info.json.
func (d *imageDir) openInfo(ctx context.Context, f *file) (reader, error) {
	// So that the generation tells of changes up to now. A source that does
	// not answer is no reason to keep back the rest.
	if _, err := d.Image.Image.Refresh(ctx); err != nil && ctx.Err() != nil {
		return nil, err
	}
	i := d.fixedInfo()
	i.setStatus(d.Image.Image.Status())
	b, err := i.render()
	if err != nil {
		return nil, err
	}
	b, err = pad(b, d.infoSize)
	return text(b), err
}

func (i *info) setStatus(s hasher.Status) {
	i.Size = s.Size
	i.Generation = s.Generation
	i.Blocks.Total = s.BlockCounts.Total
	i.Blocks.Unknown = s.BlockCounts.Unknown
	i.Blocks.Zero = s.BlockCounts.Zero
	i.Blocks.Data = s.BlockCounts.Data
	i.Blocks.Failed = s.BlockCounts.Failed
	i.Cache.Bytes = s.Cache.Bytes
	i.Cache.Limit = s.Cache.Limit
	i.Cache.Needed = s.CacheNeeded
	i.Cache.Hits = s.Cache.Hits
	i.Cache.Misses = s.Cache.Misses
	i.Cache.Evictions = s.Cache.Evictions
	for _, w := range s.Work[:min(len(s.Work), maxWork)] {
		i.Work = append(i.Work, infoWork{cut(w.File, maxFile), w.Done, w.Total, infoTime(w.Started)})
	}
	if e := s.LastError; e != nil {
		i.LastError = &infoFailure{e.Offset, e.Length, cut(e.Message, maxMessage), infoTime(e.Time)}
	}
	i.Bad = append(i.Bad, s.Bad[:min(len(s.Bad), maxBad)]...)
}

func (i *info) render() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(i)
	return b.Bytes(), err
}

// infoBound returns the size of the longest info.json that the image can have:
// that with the longest numbers and all there is room for.
func (d *imageDir) infoBound() (int, error) {
	const long = math.MinInt64
	longest := time.Date(2006, 1, 2, 15, 4, 5, 123456789, time.UTC)
	s := hasher.Status{
		Geometry: hasher.Geometry{Size: long, Generation: math.MaxUint64},
		LastError: &hasher.Failure{
			Offset: long, Length: long, Time: longest,
			Message: strings.Repeat("x", maxMessage),
		},
	}
	s.BlockCounts = hasher.BlockCounts{Total: long, Unknown: long, Zero: long, Data: long, Failed: long}
	s.Cache = blockcache.Stats{Bytes: long, Limit: long, Hits: long, Misses: long, Evictions: long}
	s.CacheNeeded = long
	for range maxWork {
		s.Work = append(s.Work, hasher.Work{File: strings.Repeat("x", maxFile), Done: long, Total: long, Started: longest})
	}
	for range maxBad {
		s.Bad = append(s.Bad, long)
	}
	i := d.fixedInfo()
	i.Writable = false // longer than true
	i.setStatus(s)
	b, err := i.render()
	if err != nil {
		return 0, fmt.Errorf("describe %s: %w", d.Source, err)
	}
	return len(b), nil
}

// cut shortens s so that it takes at most limit bytes in a JSON string, without
// its quotes, and makes it valid UTF-8.
func cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	used := 0
	for at, r := range s {
		n := utf8.RuneLen(r)
		if r < ' ' || r == '"' || r == '\\' || r == 0x7f || r == '\u2028' || r == '\u2029' {
			n = len(`\u0000`) // no escape is longer
		}
		if used += n; used > limit {
			return s[:at]
		}
	}
	return s
}

var errTooLong = errors.New("longer than the size it was given at the start")

// pad puts spaces before the final newline of b, to make size bytes.
func pad(b []byte, size int) ([]byte, error) {
	if len(b) > size {
		return nil, errTooLong
	}
	padded := append(make([]byte, 0, size), bytes.TrimSuffix(b, []byte("\n"))...)
	padded = append(padded, bytes.Repeat([]byte(" "), size-1-len(padded))...)
	return append(padded, '\n'), nil
}
