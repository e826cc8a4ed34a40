// The C half of the binding: one NBD connection over libnbd, driven by one
// thread at a time. See nbd.go for the Go half.

#ifndef HASHFS_BINDING_H
#define HASHFS_BINDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// BINDING_DEPTH is how many requests a connection has in flight at most.
// libnbd looks a reply's request up in a list, and its manual suggests 64.
#define BINDING_DEPTH 64

enum binding_op {
	BINDING_READ,
	BINDING_WRITE,
	BINDING_ZERO,
	BINDING_FLUSH,
	BINDING_STATUS,
};

// A request as Go hands it over. The slot, below BINDING_DEPTH, is its name
// until it is done, and buf stays valid and unmoved until then. To Go buf is a
// number: its write barrier would look at the pointer that was here before,
// which may be to memory that is no more.
struct binding_request {
	uintptr_t buf;
	uint64_t offset;
	uint32_t count;
	uint32_t slot;
	uint32_t op;
	bool fua;     // of writes and zeroes
	bool no_hole; // of zeroes
};

// A request that is done. err is 0, the server's errno, or ENOTCONN if the
// connection ended first. The pairs, length and type of consecutive extents,
// are those of BINDING_STATUS, valid until the slot is used again.
struct binding_done {
	uint32_t slot;
	int32_t err;
	const uint32_t *pairs;
	size_t npairs;
};

// Pairs of numbers that the callbacks of a request collect: extents, or the
// parts of a read (offset into the request, length) that have arrived.
struct binding_slot {
	struct binding_conn *conn;
	int64_t cookie;
	uint64_t offset;
	uint32_t count;
	uint32_t op;
	uint32_t *pairs;
	size_t npairs, capacity;
};

struct binding_conn {
	struct nbd_handle *nbd;
	int wake; // eventfd
	uint32_t spin; // for how many microseconds a wait does not sleep

	struct binding_request requests[BINDING_DEPTH]; // for binding_turn
	struct binding_done done[BINDING_DEPTH];        // from binding_turn
	uint32_t ndone;

	struct binding_slot slots[BINDING_DEPTH];
	uint32_t finished[BINDING_DEPTH]; // slots whose completion was called
	uint32_t nfinished;

	// Why the connection failed: libnbd keeps that by thread, and a
	// goroutine may come back on another one.
	int error;
	char message[512];
};

enum binding_state {
	BINDING_CONNECTING,
	BINDING_READY,
	BINDING_FAILED, // error and message say why
};

struct binding_info {
	int64_t size;
	int64_t minimum, preferred, maximum; // 0: not told
	bool read_only, flush, fua, zero, multi_conn, extents;
};

// binding_load comes once and first. It returns NULL, or why libnbd cannot be
// used, as the dynamic loader says it.
const char *binding_load(void);

// binding_new returns NULL when there is no memory. wake stays the caller's.
struct binding_conn *binding_new(int wake);

// binding_free closes the connection. No buffer is touched afterwards. It does
// not block.
void binding_free(struct binding_conn *c);

// binding_connect begins to connect. It blocks as long as the resolver does.
enum binding_state binding_connect(struct binding_conn *c, const char *uri, bool extents);

// binding_wait drives a connection that is BINDING_CONNECTING, until it is not,
// or for timeout milliseconds, or until wake is written to.
enum binding_state binding_wait(struct binding_conn *c, int timeout);

void binding_info(struct binding_conn *c, struct binding_info *info);

// binding_socket returns the descriptor of the socket, which stays libnbd's.
int binding_socket(struct binding_conn *c);

// binding_turn sends the first n requests, and returns with done and ndone
// when at least one request is done, after timeout milliseconds, or when wake
// was written to. It reports false if the connection has failed; requests that
// are not in done then, or were before, will never be.
bool binding_turn(struct binding_conn *c, uint32_t n, int timeout);

// binding_disconnect tells the server that no request will follow; binding_turn
// carries it out.
void binding_disconnect(struct binding_conn *c);

// binding_nothing is for measuring what a call costs.
void binding_nothing(void);

#endif
