//go:build cgo

package nbdsrc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hashfs/hasher"
)

// A chunk is a structured reply, or a part of one.
type chunk struct {
	kind    uint16
	payload []byte
}

const (
	chunkData   = 1
	chunkHole   = 2
	chunkStatus = 5
)

// fakeServer serves an export of size bytes whose reads and block status are
// answered by what answer returns, right or wrong. No real server can be made
// to break the protocol so.
func fakeServer(t *testing.T, size uint64, answer func(op uint16, off uint64, length uint32) []chunk) *Export {
	t.Helper()
	socket := filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", socket)
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if handshake(c, size) == nil {
					serve(c, answer)
				}
			}()
		}
	}()
	e, err := Open(t.Context(), "nbd+unix:///?socket="+socket, Options{Timeout: time.Second})
	check(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// handshake is that of the NBD protocol, fixed newstyle.
func handshake(c net.Conn, size uint64) error {
	be := binary.BigEndian
	c.Write([]byte("NBDMAGICIHAVEOPT\x00\x03"))
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		return err
	}
	for {
		head := make([]byte, 16)
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		option, body := head[8:12], make([]byte, be.Uint32(head[12:]))
		if _, err := io.ReadFull(c, body); err != nil {
			return err
		}
		reply := func(kind uint32, payload []byte) {
			b := be.AppendUint64(nil, 0x3e889045565a9)
			b = append(b, option...)
			b = be.AppendUint32(b, kind)
			b = be.AppendUint32(b, uint32(len(payload)))
			c.Write(append(b, payload...))
		}
		switch be.Uint32(option) {
		case 7: // go
			info := be.AppendUint64([]byte{0, 0}, size)
			reply(3, be.AppendUint16(info, 1|2)) // flags, read-only
			reply(1, nil)
			return nil
		case 8: // structured replies
			reply(1, nil)
		case 10: // meta context
			reply(4, []byte("\x00\x00\x00\x01base:allocation"))
			reply(1, nil)
		default:
			reply(1<<31|1, nil)
		}
	}
}

func serve(c net.Conn, answer func(op uint16, off uint64, length uint32) []chunk) {
	be := binary.BigEndian
	for {
		q := make([]byte, 28)
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		op := be.Uint16(q[6:])
		if op == 2 { // disconnect
			return
		}
		chunks := answer(op, be.Uint64(q[16:]), be.Uint32(q[24:]))
		for i, k := range chunks {
			b := be.AppendUint32(nil, 0x668e33ef)
			done := uint16(0)
			if i == len(chunks)-1 {
				done = 1
			}
			b = be.AppendUint16(b, done)
			b = be.AppendUint16(b, k.kind)
			b = append(b, q[8:16]...)
			b = be.AppendUint32(b, uint32(len(k.payload)))
			if _, err := c.Write(append(b, k.payload...)); err != nil {
				return
			}
		}
	}
}

func dataChunk(off uint64, p []byte) chunk {
	return chunk{chunkData, append(binary.BigEndian.AppendUint64(nil, off), p...)}
}

func holeChunk(off uint64, length uint32) chunk {
	return chunk{chunkHole, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, off), length)}
}

func statusChunk(pairs ...uint32) chunk {
	b := binary.BigEndian.AppendUint32(nil, 1)
	for _, n := range pairs {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return chunk{chunkStatus, b}
}

// TestReadAt_parts: bytes that no part of a reply brought must not be taken
// from what was in the buffer before.
func TestReadAt_parts(t *testing.T) {
	a, b := bytes.Repeat([]byte{'a'}, 512), bytes.Repeat([]byte{'b'}, 512)
	for _, tc := range []struct {
		name   string
		answer func(off uint64) []chunk
		want   string // two halves of 512 bytes, "" for an error
	}{
		{"one part", func(off uint64) []chunk { return []chunk{dataChunk(off, append(a, b...))} }, "ab"},
		{"two parts", func(off uint64) []chunk { return []chunk{dataChunk(off, a), dataChunk(off+512, b)} }, "ab"},
		{"the second first", func(off uint64) []chunk { return []chunk{dataChunk(off+512, b), dataChunk(off, a)} }, "ab"},
		{"data and hole", func(off uint64) []chunk { return []chunk{dataChunk(off, a), holeChunk(off+512, 512)} }, "a\x00"},
		{"hole and data", func(off uint64) []chunk { return []chunk{dataChunk(off+512, b), holeChunk(off, 512)} }, "\x00b"},
		{"end missing", func(off uint64) []chunk { return []chunk{dataChunk(off, a)} }, ""},
		{"beginning missing", func(off uint64) []chunk { return []chunk{holeChunk(off+512, 512)} }, ""},
		{"nothing", func(off uint64) []chunk { return []chunk{{}} }, ""},
		{"one part twice", func(off uint64) []chunk { return []chunk{dataChunk(off, a), dataChunk(off, b)} }, ""},
		{"parts overlap", func(off uint64) []chunk {
			return []chunk{dataChunk(off, append(a, b[:256]...)), holeChunk(off+512, 256)}
		}, ""},
		{"beyond the range", func(off uint64) []chunk { return []chunk{dataChunk(off+512, append(a, b...))} }, ""},
		{"status", func(off uint64) []chunk { return []chunk{statusChunk(1024, 0)} }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := fakeServer(t, 1<<20, func(op uint16, off uint64, length uint32) []chunk { return tc.answer(off) })
			p := bytes.Repeat([]byte{'x'}, 1024)
			n, err := e.ReadAt(p, 4096)
			if tc.want == "" {
				if n != 0 || err == nil {
					t.Errorf("got %d bytes, %v", n, err)
				}
				return
			}
			check(t, err)
			want := append(bytes.Repeat([]byte{tc.want[0]}, 512), bytes.Repeat([]byte{tc.want[1]}, 512)...)
			if !bytes.Equal(p, want) {
				t.Errorf("got %q %q, want %q", p[0], p[512], tc.want)
			}
		})
	}
}

// TestExtents_answers: whatever a block status answer is, the extents cover the
// range, or there is an error.
func TestExtents_answers(t *testing.T) {
	const size = 1 << 20
	for _, tc := range []struct {
		name   string
		answer func(off uint64, length uint32) []chunk
		fails  bool
		zero   int64
	}{
		{"exact", func(off uint64, length uint32) []chunk { return []chunk{statusChunk(length, 3)} }, false, size},
		{"longer than asked for", func(off uint64, length uint32) []chunk { return []chunk{statusChunk(1<<32-1, 3)} }, false, size},
		{"in small steps", func(off uint64, length uint32) []chunk { return []chunk{statusChunk(65536, 3)} }, false, size},
		{"with empty extents", func(off uint64, length uint32) []chunk { return []chunk{statusChunk(0, 3, 65536, 1, 0, 0)} }, false, 0},
		{"unknown bits", func(off uint64, length uint32) []chunk { return []chunk{statusChunk(length, 0xfffffffc)} }, false, 0},
		{"ends within a unit", func(off uint64, length uint32) []chunk {
			if off < 5000 {
				return []chunk{statusChunk(uint32(5000-off), 0)}
			}
			return []chunk{statusChunk(length, 3)}
		}, false, size - 5120},
		{"of no byte", func(off uint64, length uint32) []chunk { return []chunk{statusChunk(0, 3)} }, true, 0},
		{"no extent", func(off uint64, length uint32) []chunk { return []chunk{{}} }, true, 0},
		{"two answers", func(off uint64, length uint32) []chunk {
			return []chunk{statusChunk(length, 3), statusChunk(length, 3)}
		}, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := fakeServer(t, size, func(op uint16, off uint64, length uint32) []chunk {
				if op == 7 {
					return tc.answer(off, length)
				}
				return []chunk{holeChunk(off, length)}
			})
			pos, zero := int64(0), int64(0)
			err := e.Extents(t.Context(), 0, size, func(x hasher.Extent) bool {
				if x.Offset != pos || x.Length <= 0 || x.Type > 3 {
					t.Errorf("%+v at %d", x, pos)
				}
				pos = x.End()
				if x.Zero() {
					zero += x.Length
				}
				return true
			})
			if tc.fails != (err != nil) || err == nil && (pos != size || zero != tc.zero) {
				t.Errorf("ends at %d with %d zero bytes, %v", pos, zero, err)
			}
		})
	}
}

// TestExtents_distrust: a server that calls data zero is found out, nothing
// more is believed, and the stamp is another.
func TestExtents_distrust(t *testing.T) {
	const size = 1 << 30
	for _, tc := range []struct {
		name  string
		wrong int64 // the only byte that is not zero
		found bool
	}{
		{"at the beginning", 0, true},
		{"at the end", size - 1, true},
		{"nowhere", -1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := nbdkit(t, "--filter=extentlist", "memory", "1G", "extentlist="+diskFile(t, []byte("0 1G hole,zero\n")))
			var log logged
			e := s.open(Options{Writable: true, Log: log.logger(), Name: "disk"})
			if tc.wrong >= 0 {
				check2(t)(e.WriteAt([]byte{1}, tc.wrong))
			}
			before := stamp(t, e)
			for range 2 {
				if zero := zeroBytes(t, e); tc.found != (zero < size) || zero == 0 != tc.found {
					t.Errorf("%d zero bytes", zero)
				}
			}
			if e.HasExtents() == tc.found || (stamp(t, e) == before) == tc.found {
				t.Errorf("extents %v, stamp %+v, was %+v", e.HasExtents(), stamp(t, e), before)
			}
			if n := strings.Count(log.String(), "calls data zero"); n > 1 || (n == 1) != tc.found {
				t.Errorf("logged %d times", n)
			}
		})
	}
}

// TestExtents_race: a write between status and sample is no lie.
func TestExtents_race(t *testing.T) {
	var written atomic.Bool
	e := fakeServer(t, 1<<20, func(op uint16, off uint64, length uint32) []chunk {
		switch {
		case op == 7 && !written.Load():
			return []chunk{statusChunk(length, 3)}
		case op == 7:
			return []chunk{statusChunk(length, 0)}
		}
		written.Store(true)
		return []chunk{dataChunk(off, bytes.Repeat([]byte{1}, int(length)))}
	})
	if zero := zeroBytes(t, e); zero != 0 || !e.HasExtents() {
		t.Errorf("%d zero bytes, trusted %v", zero, e.HasExtents())
	}
}

// TestExtents_cancelled: the caller of a server that does not answer can leave.
func TestExtents_cancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e := fakeServer(t, 1<<20, func(op uint16, off uint64, length uint32) []chunk {
		cancel()
		return nil
	})
	err := e.Extents(ctx, 0, 1<<20, func(hasher.Extent) bool { return true })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	check(t, e.Close())
}

// TestPattern reads far into an export of a size that a 32-bit number does not
// hold.
func TestPattern(t *testing.T) {
	e := nbdkit(t, "pattern", "5T").open(Options{})
	want, got := make([]byte, 300000), make([]byte, 300000)
	for _, off := range []int64{0, 1, 1<<32 - 7, 1<<42 + 5, 5<<40 - 300000} {
		check2(t)(e.ReadAt(got, off))
		pattern(want, off)
		if !bytes.Equal(got, want) {
			t.Errorf("wrong bytes at %d", off)
		}
	}
}
