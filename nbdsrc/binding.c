//go:build cgo

#include "binding.h"
#include "load.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct binding_conn *binding_new(int wake)
{
	struct binding_conn *c = calloc(1, sizeof *c);
	if (c == NULL)
		return NULL;
	c->nbd = libnbd.create();
	if (c->nbd == NULL) {
		free(c);
		return NULL;
	}
	c->wake = wake;
	for (size_t i = 0; i < BINDING_DEPTH; i++)
		c->slots[i].conn = c;
	return c;
}

void binding_free(struct binding_conn *c)
{
	libnbd.close(c->nbd);
	for (size_t i = 0; i < BINDING_DEPTH; i++)
		free(c->slots[i].pairs);
	free(c);
}

void binding_nothing(void)
{
}

// fail_as notes why the connection failed; the first cause is the one that
// counts.
static void fail_as(struct binding_conn *c, int error, const char *message)
{
	if (c->message[0] != 0)
		return;
	c->error = error;
	snprintf(c->message, sizeof c->message, "%s", message);
}

// fail does so with the error of the libnbd call before, which had one.
static void fail(struct binding_conn *c)
{
	const char *message = libnbd.get_error();
	if (message == NULL || message[0] == 0)
		message = "libnbd gave no reason";
	fail_as(c, libnbd.get_errno(), message);
}

static const char closed[] = "the server closed the connection";

static enum binding_state state(struct binding_conn *c)
{
	if (c->message[0] != 0)
		return BINDING_FAILED;
	if (libnbd.aio_is_ready(c->nbd) == 1)
		return BINDING_READY;
	if (libnbd.aio_is_connecting(c->nbd) == 1)
		return BINDING_CONNECTING;
	fail_as(c, 0, closed);
	return BINDING_FAILED;
}

enum binding_state binding_connect(struct binding_conn *c, const char *uri, bool extents)
{
	struct nbd_handle *nbd = c->nbd;

	// Bytes are never taken from a buffer that a reply did not fill, which
	// on_chunk and retire see to, so they need not be cleared first. The
	// end of an export of odd size cannot be read in aligned requests.
	int strict = libnbd.get_strict_mode(nbd) & ~LIBNBD_STRICT_ALIGN;
	if (libnbd.set_pread_initialize(nbd, false) == -1 ||
	    libnbd.set_strict_mode(nbd, strict) == -1 ||
	    libnbd.set_uri_allow_local_file(nbd, true) == -1 ||
	    (extents && libnbd.add_meta_context(nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) == -1) ||
	    libnbd.aio_connect_uri(nbd, uri) == -1)
		fail(c);
	return state(c);
}

int binding_socket(struct binding_conn *c)
{
	return libnbd.aio_get_fd(c->nbd);
}

void binding_info(struct binding_conn *c, struct binding_info *info)
{
	struct nbd_handle *nbd = c->nbd;
	info->size = libnbd.get_size(nbd);
	info->minimum = libnbd.get_block_size(nbd, LIBNBD_SIZE_MINIMUM);
	info->preferred = libnbd.get_block_size(nbd, LIBNBD_SIZE_PREFERRED);
	info->maximum = libnbd.get_block_size(nbd, LIBNBD_SIZE_MAXIMUM);
	info->read_only = libnbd.is_read_only(nbd) != 0;
	info->flush = libnbd.can_flush(nbd) == 1;
	info->fua = libnbd.can_fua(nbd) == 1;
	info->zero = libnbd.can_zero(nbd) == 1;
	info->multi_conn = libnbd.can_multi_conn(nbd) == 1;
	info->extents = libnbd.can_meta_context(nbd, LIBNBD_CONTEXT_BASE_ALLOCATION) == 1;
}

// keep appends pairs to those of a slot.
static int keep(struct binding_slot *s, const uint32_t *pairs, size_t npairs)
{
	size_t need = s->npairs + npairs;
	if (need > s->capacity) {
		size_t capacity = need + s->capacity;
		uint32_t *p = realloc(s->pairs, capacity * 2 * sizeof *p);
		if (p == NULL)
			return ENOMEM;
		s->pairs = p;
		s->capacity = capacity;
	}
	memcpy(s->pairs + 2 * s->npairs, pairs, npairs * 2 * sizeof *pairs);
	s->npairs = need;
	return 0;
}

// on_chunk notes which part of a read has arrived. Nearly always that is all
// of it, or continues the part before.
static int on_chunk(void *user, const void *buf, size_t count, uint64_t offset, unsigned status, int *error)
{
	struct binding_slot *s = user;
	if (status == LIBNBD_READ_ERROR || count == 0)
		return 0;
	uint32_t pair[2] = { (uint32_t)(offset - s->offset), (uint32_t)count };
	if (s->npairs > 0) {
		uint32_t *last = s->pairs + 2 * (s->npairs - 1);
		if (last[0] + last[1] == pair[0]) {
			last[1] += pair[1];
			return 0;
		}
	}
	if (s->npairs >= s->count)
		return 0; // more parts than bytes: some overlap
	if ((*error = keep(s, pair, 1)) != 0)
		return -1;
	return 0;
}

// on_extent keeps the extents of a block status reply.
static int on_extent(void *user, const char *context, uint64_t offset, uint32_t *entries, size_t n, int *error)
{
	struct binding_slot *s = user;
	if (strcmp(context, LIBNBD_CONTEXT_BASE_ALLOCATION) != 0)
		return 0;
	if (s->npairs > 0) { // one reply is all that there may be
		*error = EPROTO;
		return -1;
	}
	if ((*error = keep(s, entries, n / 2)) != 0)
		return -1;
	return 0;
}

// on_completion must not retire the request by itself: libnbd checks that a
// read got all of its bytes only in nbd_aio_command_completed.
static int on_completion(void *user, int *error)
{
	struct binding_slot *s = user;
	struct binding_conn *c = s->conn;
	c->finished[c->nfinished++] = (uint32_t)(s - c->slots);
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

// complete reports whether the parts of a read are the whole, each byte once.
static bool complete(struct binding_slot *s)
{
	if (s->npairs > 1)
		qsort(s->pairs, s->npairs, 2 * sizeof *s->pairs, by_offset);
	uint64_t at = 0;
	for (size_t i = 0; i < s->npairs; i++) {
		if (s->pairs[2 * i] != at)
			return false;
		at += s->pairs[2 * i + 1];
	}
	return at == s->count;
}

static void finish(struct binding_conn *c, uint32_t slot, int err)
{
	struct binding_slot *s = &c->slots[slot];
	struct binding_done *d = &c->done[c->ndone++];
	if (err == 0 && s->op == BINDING_READ && !complete(s))
		err = EPROTO;
	if (err == 0 && s->op == BINDING_STATUS && s->npairs == 0)
		err = EPROTO;
	d->slot = slot;
	d->err = err;
	d->pairs = s->pairs;
	d->npairs = s->op == BINDING_STATUS ? s->npairs : 0;
}

// retire collects the results of the requests whose completion was called.
static void retire(struct binding_conn *c)
{
	for (uint32_t i = 0; i < c->nfinished; i++) {
		uint32_t slot = c->finished[i];
		int err = 0;
		if (libnbd.aio_command_completed(c->nbd, c->slots[slot].cookie) != 1) {
			err = libnbd.get_errno();
			if (err == 0)
				err = EIO;
		}
		finish(c, slot, err);
	}
	c->nfinished = 0;
}

static void issue(struct binding_conn *c, const struct binding_request *r)
{
	struct binding_slot *s = &c->slots[r->slot];
	nbd_completion_callback completion = { .callback = on_completion, .user_data = s };
	nbd_chunk_callback chunk = { .callback = on_chunk, .user_data = s };
	nbd_extent_callback extent = { .callback = on_extent, .user_data = s };
	uint32_t flags = (r->fua ? LIBNBD_CMD_FLAG_FUA : 0) | (r->no_hole ? LIBNBD_CMD_FLAG_NO_HOLE : 0);

	s->op = r->op;
	s->offset = r->offset;
	s->count = r->count;
	s->npairs = 0;
	switch (r->op) {
	case BINDING_READ:
		s->cookie = libnbd.aio_pread_structured(c->nbd, (void *)r->buf, r->count, r->offset, chunk, completion, 0);
		break;
	case BINDING_WRITE:
		s->cookie = libnbd.aio_pwrite(c->nbd, (void *)r->buf, r->count, r->offset, completion, flags);
		break;
	case BINDING_ZERO:
		s->cookie = libnbd.aio_zero(c->nbd, r->count, r->offset, completion, flags);
		break;
	case BINDING_FLUSH:
		s->cookie = libnbd.aio_flush(c->nbd, completion, 0);
		break;
	case BINDING_STATUS:
		s->cookie = libnbd.aio_block_status(c->nbd, r->count, r->offset, extent, completion, 0);
		break;
	}
	int err = libnbd.get_errno();
	if (libnbd.aio_is_dead(c->nbd) == 1) {
		fail(c);
		err = ENOTCONN;
	} else if (libnbd.aio_is_closed(c->nbd) == 1) {
		fail_as(c, 0, closed);
		err = ENOTCONN;
	}
	if (s->cookie == -1)
		finish(c, r->slot, err != 0 ? err : EIO);
}

static uint64_t microseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * UINT64_C(1000000) + t.tv_nsec / 1000;
}

// await is poll(2) that goes to sleep only after spin microseconds. Until then
// it lets others run, the server perhaps, and asks again.
static int await(struct pollfd *fds, nfds_t n, uint32_t spin, int timeout)
{
	if (spin > 0 && timeout != 0) {
		uint64_t end = microseconds() + spin;
		do {
			int ready = poll(fds, n, 0);
			if (ready != 0)
				return ready;
			sched_yield();
		} while (microseconds() < end);
	}
	return poll(fds, n, timeout);
}

// step waits for the socket and lets libnbd go on. It reports false when the
// caller should look around: at a timeout, a wake-up, or a failure.
static bool step(struct binding_conn *c, int timeout)
{
	struct pollfd fds[2] = { { .fd = libnbd.aio_get_fd(c->nbd) }, { .fd = c->wake, .events = POLLIN } };
	unsigned direction = libnbd.aio_get_direction(c->nbd);
	if (direction & LIBNBD_AIO_DIRECTION_READ)
		fds[0].events |= POLLIN;
	if (direction & LIBNBD_AIO_DIRECTION_WRITE)
		fds[0].events |= POLLOUT;
	if (await(fds, 2, c->spin, timeout) <= 0)
		return false; // also when interrupted: the timeout must be found anew

	// Only what libnbd waits for, and one of the two: the first may change
	// what it waits for next. A failed connect shows in both.
	const short trouble = POLLERR | POLLHUP;
	int r = 0;
	if ((fds[0].events & POLLIN) && (fds[0].revents & (POLLIN | trouble)))
		r = libnbd.aio_notify_read(c->nbd);
	else if (fds[0].revents & (POLLOUT | trouble))
		r = libnbd.aio_notify_write(c->nbd);
	if (r == -1) {
		fail(c);
		return false;
	}
	if (fds[1].revents != 0) {
		uint64_t count;
		if (read(c->wake, &count, sizeof count) == -1) {
			// Taken already, which is as good.
		}
		return false;
	}
	return true;
}

enum binding_state binding_wait(struct binding_conn *c, int timeout)
{
	while (state(c) == BINDING_CONNECTING && step(c, timeout))
		;
	return state(c);
}

bool binding_turn(struct binding_conn *c, uint32_t n, int timeout)
{
	c->ndone = 0;
	for (uint32_t i = 0; i < n; i++)
		issue(c, &c->requests[i]);
	do {
		if (libnbd.aio_is_closed(c->nbd) == 1)
			fail_as(c, 0, closed);
		retire(c);
	} while (c->ndone == 0 && c->message[0] == 0 && step(c, timeout));
	retire(c);
	return c->message[0] == 0;
}

void binding_disconnect(struct binding_conn *c)
{
	if (libnbd.aio_disconnect(c->nbd, 0) == -1)
		fail(c);
}
