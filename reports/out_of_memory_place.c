/* Find the block of torch at which a program runs out of memory, and let a second run of the program fail at the same one.

   `python reports/out_of_memory.py` has this library loaded before others. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long count = -1; /* of torch's blocks since `place_start`; -1 before it */
static long failing;    /* the number of the first block that fails here; 0 for none */
static size_t least_bytes;

static int is_of_torch(const void* caller) {
  Dl_info info;
  return dladdr(caller, &info) != 0 && info.dli_fname != NULL && strstr(info.dli_fname, "libc10.so") != NULL;
}

/* Append the number of a block that failed by itself to a file. */
static void note_failure(void) {
  const char* path = getenv("FAILING_PLACE");
  FILE* file = path == NULL ? NULL : fopen(path, "a");
  if (file != NULL) {
    fprintf(file, "%ld\n", count);
    fclose(file);
  }
}

int posix_memalign(void** block, size_t alignment, size_t size) {
  static int (*next)(void**, size_t, size_t) = NULL;
  if (next == NULL) {
    next = (int (*)(void**, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  }
  if (count < 0 || !is_of_torch(__builtin_return_address(0))) {
    return next(block, alignment, size);
  }
  ++count;
  if (count == failing) {
    least_bytes = size;
  }
  /* from then on no block of that size finds room, as at a limit */
  if (failing > 0 && count >= failing && size >= least_bytes) {
    return ENOMEM;
  }
  const int error = next(block, alignment, size);
  if (error != 0 && failing == 0) {
    note_failure();
  }
  return error;
}

/* Count torch's blocks from now on. Let the one with a number fail, and from then on all that are as large. */
void place_start(long number) {
  count = 0;
  failing = number;
}
