//go:build !386 && !arm

package qemunbd

import "golang.org/x/sys/unix"

const sysSetgroups = unix.SYS_SETGROUPS
