//go:build cgo

#include "load.h"
#include "binding.h"

#include <dlfcn.h>
#include <stdio.h>

struct libnbd libnbd;

const char *binding_load(void)
{
	void *library = dlopen("libnbd.so.0", RTLD_NOW | RTLD_LOCAL);
#define FOUND(name) && (libnbd.name = dlsym(library, "nbd_" #name)) != NULL
	if (library != NULL LIBNBD_FUNCTIONS(FOUND))
		return NULL;
#undef FOUND

	// dlerror's text is this thread's, and goes with its next call; Go may
	// come back on another thread.
	static char why[512];
	snprintf(why, sizeof why, "%s", dlerror());
	return why;
}
