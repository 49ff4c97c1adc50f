// Samples the blocks of malloc, to name the libraries that allocate the memory of a process.
//
// The dynamic linker loads this library before the others (LD_PRELOAD), so every call of malloc and free arrives here
// and goes on to glibc. About one block for each `interval` bytes is written down, with the addresses of its callers,
// until it is freed. `memwatch/monitor/malloc_sampler.py` reads these samples.
//
// Three rules keep this safe. It never allocates: the samples lie in a table of a fixed size. It has no lock: a fork
// may happen at any time, and the child goes on. It needs no other library than libc: libraries that are loaded before
// the program's own could be older than the program needs.

#include <errno.h>
#include <execinfo.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <atomic>

#define EXPORTED extern "C" __attribute__((visibility("default")))
// without this model, the first use of such a variable in a thread calls malloc
#define PER_THREAD static __thread __attribute__((tls_model("initial-exec")))

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

constexpr int kCallers = 6;
constexpr size_t kBuckets = 4096;
constexpr size_t kSlots = 8;  // of a bucket: their keys fill one cache line
constexpr uintptr_t kEmpty = 0;
constexpr uintptr_t kBeingWritten = 1;  // malloc returns no such address

struct Sample {
  uintptr_t address;
  uint64_t nbytes;
  uintptr_t callers[kCallers];
};

alignas(64) std::atomic<uintptr_t> keys[kBuckets][kSlots];
Sample samples[kBuckets][kSlots];
std::atomic<uint64_t> interval_bytes{0};  // 0: off
std::atomic<uint64_t> lost{0};

PER_THREAD int64_t bytes_until_sample;
PER_THREAD uint64_t random_state;
PER_THREAD bool is_sampling;

size_t bucket_of(uintptr_t address) {
  return (address >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 52;  // 12 bits
}

// Return the natural logarithm of a number above 0; libm would be one more library.
double logarithm(double value) {
  uint64_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & UINT64_C(0xFFFFFFFFFFFFF)) | UINT64_C(0x3FF0000000000000);
  double mantissa;  // in [1, 2)
  __builtin_memcpy(&mantissa, &bits, sizeof mantissa);
  const double t = (mantissa - 1) / (mantissa + 1), tt = t * t;
  return exponent * 0.6931471805599453 + 2 * t * (1 + tt * (1.0 / 3 + tt * (1.0 / 5 + tt * (1.0 / 7 + tt / 9))));
}

// Return the bytes up to the next sample, from an exponential distribution: then a block of n bytes is sampled with the
// probability 1 - exp(-n / interval), whatever was allocated before it.
int64_t next_distance(uint64_t interval) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  const double uniform = (static_cast<double>(random_state >> 11) + 1) * (1.0 / 9007199254740992.0);
  return static_cast<int64_t>(-logarithm(uniform) * static_cast<double>(interval)) + 1;
}

void put(const Sample& sample) {
  const size_t bucket = bucket_of(sample.address);
  for (size_t slot = 0; slot < kSlots; ++slot) {
    uintptr_t expected = kEmpty;
    if (keys[bucket][slot].compare_exchange_strong(expected, kBeingWritten)) {
      samples[bucket][slot] = sample;
      keys[bucket][slot].store(sample.address, std::memory_order_release);
      return;
    }
  }
  lost.fetch_add(1, std::memory_order_relaxed);
}

// Remove the sample of a block; return whether there was one, and copy it if `taken` is given.
inline bool forget(void* block, Sample* taken = nullptr) {
  if (block == nullptr || interval_bytes.load(std::memory_order_relaxed) == 0) return false;
  const uintptr_t address = reinterpret_cast<uintptr_t>(block);
  const size_t bucket = bucket_of(address);
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (keys[bucket][slot].load(std::memory_order_relaxed) == address) {
      if (taken != nullptr) *taken = samples[bucket][slot];
      keys[bucket][slot].store(kEmpty, std::memory_order_release);
      return true;
    }
  }
  return false;
}

__attribute__((noinline)) void take_sample(void* block, size_t nbytes, uint64_t interval) {
  if (is_sampling) return;  // the unwinder allocates
  if (random_state == 0) {  // the first block of this thread
    random_state = (reinterpret_cast<uintptr_t>(&random_state) ^ (static_cast<uint64_t>(getpid()) << 40)) | 1;
    for (int round = 0; round < 8; ++round) next_distance(interval);
    bytes_until_sample = next_distance(interval) - static_cast<int64_t>(nbytes);
    if (bytes_until_sample >= 0) return;
  }
  bytes_until_sample = next_distance(interval);
  is_sampling = true;
  const int error = errno;
  Sample sample = {reinterpret_cast<uintptr_t>(block), nbytes, {}};
  void* callers[kCallers + 1];  // the first is this function
  const int found = backtrace(callers, kCallers + 1);
  for (int at = 1; at < found; ++at) sample.callers[at - 1] = reinterpret_cast<uintptr_t>(callers[at]);
  put(sample);
  errno = error;
  is_sampling = false;
}

inline void count(void* block, size_t nbytes) {
  const uint64_t interval = interval_bytes.load(std::memory_order_relaxed);
  if (interval == 0 || block == nullptr) return;
  bytes_until_sample -= static_cast<int64_t>(nbytes);
  if (__builtin_expect(bytes_until_sample < 0, 0)) take_sample(block, nbytes, interval);
}

}  // namespace

EXPORTED void* malloc(size_t nbytes) {
  void* block = __libc_malloc(nbytes);
  count(block, nbytes);
  return block;
}

EXPORTED void* calloc(size_t number, size_t nbytes) {
  void* block = __libc_calloc(number, nbytes);
  count(block, number * nbytes);  // the product overflows only where glibc returns no block
  return block;
}

EXPORTED void* realloc(void* old, size_t nbytes) {
  Sample taken;
  const bool was_sampled = forget(old, &taken);
  void* block = __libc_realloc(old, nbytes);
  if (block == nullptr && nbytes != 0) {
    if (was_sampled) put(taken);  // the old block stays
  } else {
    count(block, nbytes);
  }
  return block;
}

EXPORTED void free(void* block) {
  forget(block);
  __libc_free(block);
}

EXPORTED void* memalign(size_t alignment, size_t nbytes) {
  void* block = __libc_memalign(alignment, nbytes);
  count(block, nbytes);
  return block;
}

EXPORTED void* aligned_alloc(size_t alignment, size_t nbytes) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    errno = EINVAL;
    return nullptr;
  }
  return memalign(alignment, nbytes);
}

EXPORTED int posix_memalign(void** result, size_t alignment, size_t nbytes) {
  if (alignment % sizeof(void*) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  const int error = errno;  // this function must not change it
  void* block = memalign(alignment, nbytes);
  errno = error;
  if (block == nullptr) return ENOMEM;
  *result = block;
  return 0;
}

// Begin to sample, from an empty table. All of it is written, so that it does not grow in memory later.
EXPORTED void memwatch_malloc_start(uint64_t interval) {
  void* callers[kCallers];
  backtrace(callers, kCallers);  // the first call loads the unwinder
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    for (size_t slot = 0; slot < kSlots; ++slot) {
      keys[bucket][slot].store(kEmpty, std::memory_order_relaxed);
      *static_cast<volatile uintptr_t*>(&samples[bucket][slot].address) = 0;
    }
  }
  lost.store(0, std::memory_order_relaxed);
  interval_bytes.store(interval, std::memory_order_release);
}

EXPORTED void memwatch_malloc_stop() { interval_bytes.store(0, std::memory_order_release); }

EXPORTED uint64_t memwatch_malloc_lost() { return lost.load(std::memory_order_relaxed); }

// Copy the samples of the blocks that are alive; return how many were copied.
EXPORTED size_t memwatch_malloc_samples(Sample* copies, size_t most) {
  size_t number = 0;
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    for (size_t slot = 0; slot < kSlots && number < most; ++slot) {
      const uintptr_t address = keys[bucket][slot].load(std::memory_order_acquire);
      if (address == kEmpty || address == kBeingWritten) continue;
      copies[number] = samples[bucket][slot];
      std::atomic_thread_fence(std::memory_order_acquire);
      if (keys[bucket][slot].load(std::memory_order_relaxed) == address && copies[number].address == address) ++number;
    }
  }
  return number;
}
