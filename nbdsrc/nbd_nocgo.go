//go:build !cgo

package nbdsrc

import (
	"syscall"
	"time"
)

// Without cgo there is no libnbd, and Open says so before it comes to any of
// these.

func loadLibnbd() error { return ErrNotBuilt }

const maxInFlight = 1

const (
	stateConnecting state = iota
	stateReady
	stateFailed
)

type state int

const (
	opRead = iota
	opWrite
	opZero
	opFlush
	opStatus
)

type handle struct{}

func newHandle(int) (*handle, error) { return nil, ErrNotBuilt }

func (*handle) free()                                        {}
func (*handle) connect(string, bool) state                   { return stateFailed }
func (*handle) wait(int) state                               { return stateFailed }
func (*handle) spin(time.Duration)                           {}
func (*handle) disconnect()                                  {}
func (*handle) failure() *connError                          { return &connError{ErrNotBuilt.Error(), 0} }
func (*handle) socket() int                                  { return -1 }
func (*handle) info() info                                   { return info{} }
func (*handle) put(int, uint32, *request)                    {}
func (*handle) turn(int, int) bool                           { return false }
func (*handle) done() int                                    { return 0 }
func (*handle) result(int) (uint32, syscall.Errno, []uint32) { return 0, 0, nil }
