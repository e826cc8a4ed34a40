//go:build cgo

package nbdsrc

/*
#cgo CFLAGS: -Wall -Wextra -Wno-unused-parameter
#cgo noescape binding_turn
#cgo nocallback binding_turn
#cgo noescape binding_nothing
#cgo nocallback binding_nothing

#include <stdlib.h>
#include "binding.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// maxInFlight is how many requests a handle takes at once.
const maxInFlight = C.BINDING_DEPTH

// loadLibnbd finds libnbd and its functions, before any of them is called. See
// load.h for why it is not linked in.
var loadLibnbd = sync.OnceValue(func() error {
	if why := C.binding_load(); why != nil {
		return fmt.Errorf("%w: %s", ErrNotLoaded, C.GoString(why))
	}
	return nil
})

// The states of a handle.
const (
	stateConnecting = C.BINDING_CONNECTING
	stateReady      = C.BINDING_READY
	stateFailed     = C.BINDING_FAILED
)

type state = C.enum_binding_state

// A handle is a connection of libnbd. One goroutine at a time may use it. What
// C keeps of Go's memory are the buffers of requests that were sent and are
// not done, which their owner has pinned.
type handle struct{ c *C.struct_binding_conn }

// newHandle returns a handle that is woken through the eventfd wake.
func newHandle(wake int) (*handle, error) {
	c := C.binding_new(C.int(wake))
	if c == nil {
		return nil, errors.New("libnbd: out of memory")
	}
	return &handle{c}, nil
}

// free closes the connection; no buffer is touched afterwards.
func (h *handle) free() {
	C.binding_free(h.c)
	h.c = nil
}

// connect begins to connect, and asks for block status if extents is set. It
// may hang in the resolver.
func (h *handle) connect(uri string, extents bool) state {
	u := C.CString(uri)
	defer C.free(unsafe.Pointer(u))
	return C.binding_connect(h.c, u, C.bool(extents))
}

// wait drives a connection in stateConnecting until it is in another, for
// timeout milliseconds, or until woken.
func (h *handle) wait(timeout int) state { return C.binding_wait(h.c, C.int(timeout)) }

// spin has each wait go on for d before the thread sleeps.
func (h *handle) spin(d time.Duration) { h.c.spin = C.uint32_t(d.Microseconds()) }

// disconnect has the next turn tell the server that all is over.
func (h *handle) disconnect() { C.binding_disconnect(h.c) }

// failure returns why the connection failed.
func (h *handle) failure() *connError {
	return &connError{C.GoString(&h.c.message[0]), syscall.Errno(h.c.error)}
}

// socket returns the descriptor of the socket, which stays libnbd's.
func (h *handle) socket() int { return int(C.binding_socket(h.c)) }

func (h *handle) info() info {
	var i C.struct_binding_info
	C.binding_info(h.c, &i)
	return info{
		size:      int64(i.size),
		minimum:   int64(i.minimum),
		preferred: int64(i.preferred),
		maximum:   int64(i.maximum),
		readOnly:  bool(i.read_only),
		flush:     bool(i.flush),
		fua:       bool(i.fua),
		zero:      bool(i.zero),
		multiConn: bool(i.multi_conn),
		extents:   bool(i.extents),
	}
}

// put places r as the i-th request of the next turn.
func (h *handle) put(i int, slot uint32, r *request) {
	c := &h.c.requests[i]
	c.buf = C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(r.buf))))
	c.offset = C.uint64_t(r.off)
	c.count = C.uint32_t(r.length)
	c.slot = C.uint32_t(slot)
	c.op = C.uint32_t(r.op)
	c.fua = C.bool(r.fua)
	c.no_hole = C.bool(r.noHole)
}

// turn sends the n requests that were put, and returns when a request is done,
// after timeout milliseconds, or when woken. It reports false if the
// connection has failed.
func (h *handle) turn(n, timeout int) bool {
	return bool(C.binding_turn(h.c, C.uint32_t(n), C.int(timeout)))
}

// done returns the number of requests that the last turn found done.
func (h *handle) done() int { return int(h.c.ndone) }

// result returns the i-th of them: its slot, its error, and the pairs of a
// block status, which are C's until the next turn.
func (h *handle) result(i int) (slot uint32, errno syscall.Errno, pairs []uint32) {
	d := &h.c.done[i]
	pairs = unsafe.Slice((*uint32)(unsafe.Pointer(d.pairs)), 2*int(d.npairs))
	return uint32(d.slot), syscall.Errno(d.err), pairs
}

// The operations of a request.
const (
	opRead   = C.BINDING_READ
	opWrite  = C.BINDING_WRITE
	opZero   = C.BINDING_ZERO
	opFlush  = C.BINDING_FLUSH
	opStatus = C.BINDING_STATUS
)

// nothing calls C, and C does nothing.
func nothing() { C.binding_nothing() }
