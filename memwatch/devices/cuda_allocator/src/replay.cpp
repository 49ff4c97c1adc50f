// Feed a trace of allocations and frees to torch's own CUDA caching allocator, which takes its memory from the stand-in
// driver.
//
// The file needs no header of torch, so one library serves every torch. The few classes of torch whose layout it uses
// are declared again, and the places of virtual functions are arguments:
// `memwatch/devices/cuda_allocator/torchs_own.py` counts them in the headers of the user's torch.

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "driver.h"

namespace c10 {

// torch's device is a type and an index, one byte each
struct Device {
  int8_t type;
  int8_t index;
};

struct DebugInfoBase {
  virtual ~DebugInfoBase() = default;
};

// torch's profilers implement this class, and the allocator reports each allocation to it
struct MemoryReportingInfoBase : DebugInfoBase {
  virtual void reportMemoryUsage(void* address, int64_t nbytes, size_t allocated_bytes, size_t reserved_bytes,
                                 Device) = 0;
  virtual void reportOutOfMemory(int64_t, size_t, size_t, Device) {}
  virtual bool memoryProfilingEnabled() const = 0;
};

namespace cuda {

struct CUDAStream {
  Device device;
  int64_t id;
};

}  // namespace cuda
}  // namespace c10

namespace {

struct Books final : c10::MemoryReportingInfoBase {
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  void reportMemoryUsage(void*, int64_t, size_t allocated, size_t reserved, c10::Device) override {
    allocated_bytes = static_cast<int64_t>(allocated);
    reserved_bytes = static_cast<int64_t>(reserved);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

// torch's DataPtr, as it is returned in memory, with a destructor that this program takes over
struct DataPtr {
  void* data;
  void* deleter;
  void* context;
  c10::Device device;
  ~DataPtr() {}
};

using Allocate = DataPtr (*)(void* self, size_t nbytes);
using Free = void (*)(void* address);
using RawDeleter = Free (*)(const void* self);
using Init = void (*)(void* self, int devices);
using SetStream = void (*)(c10::cuda::CUDAStream);
using DefaultStream = c10::cuda::CUDAStream (*)(int8_t device);
using ExternalStream = c10::cuda::CUDAStream (*)(void* stream, int8_t device);
using InitPeers = void (*)(int64_t devices);
using PushInfo = void (*)(uint64_t kind, std::shared_ptr<c10::DebugInfoBase>);

constexpr uint64_t kProfilerStateBefore214 = 2;  // there DebugInfoKind is an enum

// torch treats a stream as foreign if the lowest bits of its address are 0
constexpr int64_t kStreamStep = 4096;

// the trace, as `child.py` reads it
constexpr int64_t kFree = -1;

// Keep an error's sentence, without torch's list of C++ frames.
void keep(const char* text, char* message, size_t chars) {
  const char* end = std::strstr(text, "\nException raised from");
  const size_t length = end == nullptr ? std::strlen(text) : static_cast<size_t>(end - text);
  std::snprintf(message, chars, "%.*s", static_cast<int>(length), text);
}

// Return a symbol of a library, and note the first that is missing.
template <typename Function>
void find(void* library, const char* name, Function& function, const char*& missing) {
  void* found = dlsym(library, name);
  if (found == nullptr && missing == nullptr) {
    missing = name;
  }
  function = reinterpret_cast<Function>(found);
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

struct Places {
  int64_t allocate, raw_deleter, init;
};

struct Outcome {
  int64_t most_reserved_bytes, retries, refused_event, device_bytes;
};

// Run a trace. Return 0, 1 where the allocator could not be loaded, 2 where it rejects its settings. An allocation that
// does not fit ends the trace: `refused_event` is its number, -1 if there is none.
EXPORTED int memwatch_replay(const char* c10_path, const char* cuda_path, const Places* places, int64_t capacity_bytes,
                             int64_t count, const int64_t* blocks, const int64_t* sizes, const int64_t* streams,
                             int64_t* reserved, int64_t* allocated, Outcome* outcome, char* message,
                             int64_t message_chars) {
  const size_t chars = static_cast<size_t>(message_chars);
  memwatch::device.capacity_bytes = static_cast<uint64_t>(capacity_bytes);
  *outcome = {0, 0, -1, 0};
  void* c10_library = nullptr;
  void* cuda_library = nullptr;
  try {
    c10_library = dlopen(c10_path, RTLD_LAZY | RTLD_GLOBAL);
    cuda_library = c10_library == nullptr ? nullptr : dlopen(cuda_path, RTLD_LAZY | RTLD_GLOBAL);
  } catch (const std::exception& error) {  // torch parses its settings as it is loaded
    keep(error.what(), message, chars);
    return 2;
  }
  if (cuda_library == nullptr) {
    keep(dlerror(), message, chars);
    return 1;
  }
  void** current = nullptr;
  SetStream set_stream = nullptr;
  DefaultStream default_stream = nullptr;
  ExternalStream external_stream = nullptr;
  PushInfo push_info = nullptr;
  const char* missing = nullptr;
  find(cuda_library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE", current, missing);
  find(cuda_library, "_ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE", set_stream, missing);
  find(cuda_library, "_ZN3c104cuda20getDefaultCUDAStreamEa", default_stream, missing);
  find(cuda_library, "_ZN3c104cuda21getStreamFromExternalEP11CUstream_sta", external_stream, missing);
  find(c10_library, "_ZN3c1020ThreadLocalDebugInfo5_pushENS_13DebugInfoKindESt10shared_ptrINS_13DebugInfoBaseEE",
       push_info, missing);
  if (missing != nullptr) {
    std::snprintf(message, chars, "it has no %s", missing);
    return 1;
  }
  // expandable segments read in this cache whether devices share memory; older versions lack the cache
  const auto init_peers =
      reinterpret_cast<InitPeers>(dlsym(cuda_library, "_ZN3c104cuda6detail21init_p2p_access_cacheEl"));
  const auto* kind = static_cast<const uint64_t*>(dlsym(c10_library, "_ZN3c1013DebugInfoKind14PROFILER_STATEE"));
  const auto books = std::make_shared<Books>();
  std::vector<void*> addresses(static_cast<size_t>(count), nullptr);
  int64_t event = 0;
  try {
    void* self = *current;
    void* const* functions = *static_cast<void* const* const*>(self);
    const auto allocate = reinterpret_cast<Allocate>(functions[places->allocate]);
    reinterpret_cast<Init>(functions[places->init])(self, 1);
    const Free free_block = reinterpret_cast<RawDeleter>(functions[places->raw_deleter])(self);
    if (init_peers != nullptr) {
      init_peers(1);
    }
    push_info(kind == nullptr ? kProfilerStateBefore214 : *kind, books);
    int64_t stream = 0;
    for (; event < count; ++event) {
      void*& address = addresses[static_cast<size_t>(blocks[event])];
      const int64_t nbytes = sizes[event];
      if (nbytes == kFree) {
        if (address != nullptr) {
          free_block(address);
          address = nullptr;
        }
      } else {
        if (streams[event] != stream) {
          stream = streams[event];
          set_stream(stream == 0 ? default_stream(0)
                                 : external_stream(reinterpret_cast<void*>(stream * kStreamStep), 0));
        }
        const int64_t refusals = memwatch::device.refusals;
        outcome->refused_event = event;
        address = allocate(self, static_cast<size_t>(nbytes)).data;
        outcome->refused_event = -1;
        outcome->retries += memwatch::device.refusals > refusals;
      }
      reserved[event] = static_cast<int64_t>(memwatch::device.used_bytes);
      allocated[event] = books->allocated_bytes;
    }
  } catch (const std::exception& error) {
    keep(error.what(), message, chars);
    if (outcome->refused_event < 0 || std::strstr(error.what(), "out of memory") == nullptr) {
      return 2;
    }
    for (; event < count; ++event) {
      reserved[event] = static_cast<int64_t>(memwatch::device.used_bytes);
      allocated[event] = books->allocated_bytes;
    }
  }
  outcome->most_reserved_bytes = static_cast<int64_t>(memwatch::device.most_used_bytes);
  outcome->device_bytes = static_cast<int64_t>(memwatch::device.used_bytes);
  return 0;
}
