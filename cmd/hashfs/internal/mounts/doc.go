// Package mounts finds the hashfs mounts of this machine, looks into them
// without being caught by one that hangs, and takes them down.
//
// A process that waits for a FUSE server cannot always be killed: a request
// that the server has taken is waited for even after SIGKILL (fs/fuse/dev.c,
// request_wait_answer). So nothing here touches a mount in this process:
// Probe starts this program again to look, gives it a moment, and leaves it
// behind when it does not come back. A program that calls Probe runs RunProbe
// when its arguments are those of ProbeCommand.
//
// Tested without FUSE by mount tables in files, by probes of plain
// directories, and by one of a fifo, which hangs as a dead server does.
package mounts
