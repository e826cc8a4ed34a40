package filesrc

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aioReads is how many reads an aio has under way at most. The kernel counts them
// against /proc/sys/fs/aio-max-nr, 65536 for the whole machine.
const aioReads = 4

// An aio is a context of Linux AIO, see io_setup(2): reads are sent there, and
// come back in any order. Unlike io_uring that is allowed in most containers.
type aio struct {
	context uintptr
	under   int // reads under way
	events  [aioReads]ioEvent
	calls   [aioReads]iocb
	batch   [aioReads]*iocb
}

// iocb and ioEvent are struct iocb and struct io_event of
// include/uapi/linux/aio_abi.h.
type iocb struct {
	id       uint64
	keyFlags uint64 // the flags are the upper half, whatever the byte order
	opcode   uint16 // 0: pread
	priority int16
	fd       uint32
	buf      uint64
	length   uint64
	offset   int64
	_        uint64
	_, _     uint32
}

type ioEvent struct {
	id     uint64
	iocb   uint64
	result int64 // bytes, or an error number if negative
	_      int64
}

// idleAIOs are those that nobody uses. The kernel takes milliseconds to end one,
// so they are kept, as many as there were readers at a time.
var idleAIOs struct {
	sync.Mutex
	list []*aio
}

// takeAIO returns an aio for the caller alone.
func takeAIO() (*aio, error) {
	idleAIOs.Lock()
	defer idleAIOs.Unlock()
	if n := len(idleAIOs.list); n > 0 {
		a := idleAIOs.list[n-1]
		idleAIOs.list = idleAIOs.list[:n-1]
		return a, nil
	}
	a := &aio{}
	_, _, errno := unix.Syscall(unix.SYS_IO_SETUP, aioReads, uintptr(unsafe.Pointer(&a.context)), 0)
	if errno != 0 {
		return nil, errno
	}
	// Whoever forbids one of the calls does so now, when nothing is under way yet.
	if _, err := a.get(0); err != nil {
		_, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, a.context, 0, 0)
		return nil, err
	}
	return a, nil
}

// giveBack ends the use of an aio that has nothing under way.
func (a *aio) giveBack() {
	idleAIOs.Lock()
	defer idleAIOs.Unlock()
	idleAIOs.list = append(idleAIOs.list, a)
}

// send begins reads, no more than there is room for, and returns how many were
// begun: fewer with an error. Their buffers must be kept until they are done.
func (a *aio) send(fd int, flags uint32, reads []*queuedRead) (int, error) {
	for i, r := range reads {
		a.calls[i] = iocb{
			id: r.id, keyFlags: uint64(flags) << 32, fd: uint32(fd),
			buf: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.p)))), length: uint64(len(r.p)), offset: r.off,
		}
		a.batch[i] = &a.calls[i]
	}
	for sent := 0; ; {
		rest := a.batch[sent:len(reads)]
		if len(rest) == 0 {
			return sent, nil
		}
		n, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, a.context, uintptr(len(rest)), uintptr(unsafe.Pointer(unsafe.SliceData(rest))))
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return sent, errno
		default:
			sent += int(n)
			a.under += int(n)
		}
	}
}

// done returns the results of reads that are done, of at least one with wait. They
// are valid until the next call.
func (a *aio) done(wait bool) []ioEvent {
	if a.under == 0 {
		return nil
	}
	least := 0
	if wait {
		least = 1
	}
	n, err := a.get(least)
	if err != nil {
		// It has worked, and the context and the memory are ours. Who went on
		// would not know when the kernel has left his buffers alone.
		panic(fmt.Sprintf("io_getevents: %v", err))
	}
	a.under -= n
	return a.events[:n]
}

// get is io_getevents(2). It waits for as many events as are wanted at least.
func (a *aio) get(least int) (int, error) {
	var timeout *unix.Timespec
	if least == 0 {
		timeout = &unix.Timespec{}
	}
	for {
		n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, a.context, uintptr(least), aioReads,
			uintptr(unsafe.Pointer(&a.events)), uintptr(unsafe.Pointer(timeout)), 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
