// The functions of libnbd, found by dlopen(3) when the first source is opened.
// Were libnbd linked in, each start of the program would load it, with GnuTLS,
// libxml2 and ICU behind it. Measured on 2 processors, libnbd 1.14, Linux 6.18:
// hashfs --version takes 19 ms so, and 31 ms with libnbd linked in.

#ifndef HASHFS_LOAD_H
#define HASHFS_LOAD_H

#include <libnbd.h>

// All that are called, less the nbd_ before their names.
#define LIBNBD_FUNCTIONS(F) \
	F(create) F(close) F(get_error) F(get_errno) \
	F(get_strict_mode) F(set_strict_mode) F(set_pread_initialize) \
	F(set_uri_allow_local_file) F(add_meta_context) F(aio_connect_uri) \
	F(get_size) F(get_block_size) F(is_read_only) F(can_flush) F(can_fua) \
	F(can_zero) F(can_multi_conn) F(can_meta_context) \
	F(aio_pread_structured) F(aio_pwrite) F(aio_zero) F(aio_flush) \
	F(aio_block_status) F(aio_command_completed) F(aio_disconnect) \
	F(aio_get_fd) F(aio_get_direction) F(aio_notify_read) F(aio_notify_write) \
	F(aio_is_connecting) F(aio_is_ready) F(aio_is_closed) F(aio_is_dead)

// libnbd.create is nbd_create, and so on, with the types that libnbd.h declares.
extern struct libnbd {
#define LIBNBD_MEMBER(name) __typeof__(nbd_##name) *name;
	LIBNBD_FUNCTIONS(LIBNBD_MEMBER)
#undef LIBNBD_MEMBER
} libnbd;

#endif
