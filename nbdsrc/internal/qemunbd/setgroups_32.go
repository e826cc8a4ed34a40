//go:build 386 || arm

package qemunbd

import "golang.org/x/sys/unix"

// The older call knows groups of 16 bits only.
const sysSetgroups = unix.SYS_SETGROUPS32
