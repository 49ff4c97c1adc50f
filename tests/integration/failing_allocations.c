/* Let the n-th allocation of a kind fail: see failing_allocations.py, which has this library loaded before others. */
#define _GNU_SOURCE
#include <Python.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <stdint.h>
#include <stdlib.h>

enum { NONE, TORCH, NATIVE, OBJECTS };
enum { MOST_FRAMES = 8 };

void* __libc_malloc(size_t size);
void* __libc_realloc(void* block, size_t size);

static int kind = NONE;
static long number, count;
static uintptr_t low, high;
static PyMemAllocatorEx objects, memory;

static int is_of_recorder(const void* address) { return (uintptr_t)address >= low && (uintptr_t)address < high; }

static int fails(void) { return ++count == number; }

/* Return true if the recorder, and no other Python code below it, makes this call. */
static int is_called_by_recorder(void) {
  void* frames[MOST_FRAMES];
  const int depth = backtrace(frames, MOST_FRAMES);
  for (int place = 0; place < depth; ++place) {
    if (is_of_recorder(frames[place])) {
      return 1;
    }
  }
  return 0;
}

void* malloc(size_t size) {
  if (kind == NATIVE && is_of_recorder(__builtin_return_address(0)) && fails()) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_malloc(size);
}

void* realloc(void* block, size_t size) {
  if (kind == NATIVE && is_of_recorder(__builtin_return_address(0)) && fails()) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_realloc(block, size);
}

int posix_memalign(void** block, size_t alignment, size_t size) {
  static int (*next)(void**, size_t, size_t) = NULL;
  if (next == NULL) {
    next = (int (*)(void**, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  }
  if (kind == TORCH && fails()) {
    return ENOMEM;
  }
  return next(block, alignment, size);
}

static void throw_bad_alloc(void) {
  void* library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  ((void (*)(void))dlsym(library, "_ZSt17__throw_bad_allocv"))();
}

/* operator new(size_t) */
void* _Znwm(size_t size) {
  if (kind == NATIVE && is_of_recorder(__builtin_return_address(0)) && fails()) {
    throw_bad_alloc();
  }
  void* block = __libc_malloc(size == 0 ? 1 : size);
  if (block == NULL) {
    throw_bad_alloc();
  }
  return block;
}

static void* object_malloc(void* from, size_t size) {
  PyMemAllocatorEx* next = from;
  return is_called_by_recorder() && fails() ? NULL : next->malloc(next->ctx, size);
}

static void* object_calloc(void* from, size_t many, size_t size) {
  PyMemAllocatorEx* next = from;
  return is_called_by_recorder() && fails() ? NULL : next->calloc(next->ctx, many, size);
}

static void* object_realloc(void* from, void* block, size_t size) {
  PyMemAllocatorEx* next = from;
  return is_called_by_recorder() && fails() ? NULL : next->realloc(next->ctx, block, size);
}

static void object_free(void* from, void* block) {
  PyMemAllocatorEx* next = from;
  next->free(next->ctx, block);
}

static void put(PyMemAllocatorDomain domain, PyMemAllocatorEx* next) {
  PyMem_GetAllocator(domain, next);
  PyMemAllocatorEx ours = {next, object_malloc, object_calloc, object_realloc, object_free};
  PyMem_SetAllocator(domain, &ours);
}

/* Count allocations of a kind from now on, and let one of them fail; the recorder's code lies between two addresses. */
void failing_start(int which, long which_number, void* from, void* until) {
  low = (uintptr_t)from;
  high = (uintptr_t)until;
  count = 0;
  number = which_number;
  if (which == OBJECTS) {
    void* frames[1];
    backtrace(frames, 1); /* loads what it needs */
    put(PYMEM_DOMAIN_OBJ, &objects);
    put(PYMEM_DOMAIN_MEM, &memory);
  }
  kind = which;
}

/* Let none fail any more; return how many were counted. */
long failing_stop(void) {
  if (kind == OBJECTS) {
    PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &objects);
    PyMem_SetAllocator(PYMEM_DOMAIN_MEM, &memory);
  }
  kind = NONE;
  return count;
}
