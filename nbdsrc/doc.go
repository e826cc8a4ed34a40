// Package nbdsrc serves the exports of NBD servers as a [hasher.Source]. It
// speaks the protocol of the NBD project's doc/proto.md by the C library
// libnbd, 1.14 or later, and takes the URIs of its doc/uri.md.
//
// It is the only package that needs cgo. Built without, Open answers
// [ErrNotBuilt]. The first Open loads libnbd, or answers [ErrNotLoaded].
//
// # What callers may rely on
//
// All methods may be called at once from many goroutines, but for Close, which
// comes last. A connection has up to 64 requests under way, and there are
// several connections where the server allows it: one is shared by all, the
// others are lanes, each for one pass over the image at a time. What the server cannot take
// unaligned is read in whole units and cut, or read, changed and written back,
// with other writers of the same Export kept away meanwhile.
//
// Bytes are never taken for granted: a reply that leaves a byte of a read out,
// or brings one twice, is an error, and so is an answer about extents that
// does not add up. Extents that are said to be zero are looked at in samples,
// see [Export.Extents].
//
// # Losing the server
//
// When a connection fails, or a request was not answered within the timeout,
// all connections to the export are given up, and a new session is tried, at
// once and then at growing distances, until it is there.
//
//   - Reads under way are sent again over the new session, if it is there
//     within half of the timeout. No read takes longer than the timeout.
//   - Writes under way fail with [hasher.ErrUnknownOutcome], since the server
//     may have done them, and may do them yet. They are never sent twice. New
//     ones wait as long as reads do. Those that were answered and not flushed
//     may be lost with the server: the next Flush fails.
//   - When the outage has lasted for half of the timeout, everything fails at
//     once with [ErrLost], Stamp too.
//   - [Export.Stamp] tells one session from another, and is where the size of
//     the new one takes effect. No byte of the new session is handed out
//     before it would.
//
// Close returns within a tenth of a second, whatever the server does.
//
// # Limits
//
// The protocol tells nothing of what other clients write: Stamp does not see
// it. A server's certificate is compared with the host's name over TCP only;
// over a unix socket libnbd does not check it. Certificate authorities of the
// system are not used, since libnbd would then check nothing: a ca-cert.pem has
// to be there.
//
// # Locks
//
// An Export's mutex comes before that of a session, and that before a
// connection's. None is held across a call that waits for the server.
//
// The tests run against nbdkit, qemu-nbd, and where those cannot be made to
// break the protocol, a server of the tests' own. C's memory is checked by
// go test -asan.
package nbdsrc
