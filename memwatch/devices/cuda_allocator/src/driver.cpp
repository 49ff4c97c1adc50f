// A CUDA driver without a GPU: the functions of libcudart, libcuda and libnvidia-ml that torch's CUDA caching allocator
// calls.
//
// Memory is only counted: addresses are handed out in ascending order and never read. All work is done at once, so
// every event is over and no stream waits. All other functions of CUDA return "not supported".

#include "driver.h"

#include <cstddef>
#include <cstring>
#include <unordered_map>

namespace memwatch {

Device device;

}  // namespace memwatch

namespace {

using memwatch::device;

// results of libcudart, of libcuda and of libnvidia-ml
constexpr int kOk = 0, kOutOfMemory = 2, kNotSupported = 801, kNvmlNotSupported = 3;
constexpr int kDriverVersion = 13000;
constexpr uint64_t kPage = 2 << 20;
// cudaDeviceProp: a name of 256 characters, an id of 16, 8 and 4 bytes, then the size of the memory
constexpr size_t kNameChars = 256, kTotalMemoryAt = 288;

// where cudaMalloc's memory and reserved addresses begin: far from the process's own
uint64_t next_address = uint64_t{1} << 45;
std::unordered_map<uint64_t, uint64_t> sizes;
uint64_t next_handle = 1;
std::unordered_map<uint64_t, uint64_t> handles;
int last_error = kOk;

uint64_t new_address(uint64_t nbytes) {
  const uint64_t address = next_address;
  next_address += (nbytes + kPage - 1) / kPage * kPage;
  return address;
}

bool take(uint64_t nbytes) {
  if (nbytes > device.capacity_bytes - device.used_bytes) {
    ++device.refusals;
    return false;
  }
  device.used_bytes += nbytes;
  if (device.used_bytes > device.most_used_bytes) {
    device.most_used_bytes = device.used_bytes;
  }
  return true;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// libcudart: devices

EXPORTED int cudaGetDeviceCount(int* count) { return *count = 1, kOk; }
EXPORTED int cudaGetDevice(int* index) { return *index = 0, kOk; }
EXPORTED int cudaSetDevice(int) { return kOk; }
EXPORTED int cudaDeviceSynchronize() { return kOk; }
EXPORTED int cudaDriverGetVersion(int* version) { return *version = kDriverVersion, kOk; }
EXPORTED int cudaRuntimeGetVersion(int* version) { return *version = kDriverVersion, kOk; }
EXPORTED int cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, kOk; }
EXPORTED int cudaDeviceEnablePeerAccess(int, int) { return kOk; }
EXPORTED int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, kOk; }
EXPORTED int cudaGetDeviceProperties(void* properties, int) {
  std::memset(properties, 0, kNameChars);
  std::strcpy(static_cast<char*>(properties), "memwatch's stand-in");
  std::memcpy(static_cast<char*>(properties) + kTotalMemoryAt, &device.capacity_bytes, sizeof device.capacity_bytes);
  return kOk;
}
EXPORTED int cudaGetDeviceProperties_v2(void* properties, int index) {
  return cudaGetDeviceProperties(properties, index);
}
EXPORTED const char* cudaGetErrorName(int) { return "cudaError"; }
EXPORTED const char* cudaGetErrorString(int) { return "an error of memwatch's stand-in driver"; }
EXPORTED int cudaGetLastError() {
  const int error = last_error;
  last_error = kOk;
  return error;
}
EXPORTED int cudaPeekAtLastError() { return last_error; }

// libcudart: memory

EXPORTED int cudaMalloc(void** address, size_t nbytes) {
  if (!take(nbytes)) {
    return last_error = kOutOfMemory;
  }
  const uint64_t at = new_address(nbytes);
  sizes[at] = nbytes;
  *address = reinterpret_cast<void*>(at);
  return kOk;
}
EXPORTED int cudaFree(void* address) {
  const auto found = sizes.find(reinterpret_cast<uint64_t>(address));
  if (found != sizes.end()) {
    device.used_bytes -= found->second;
    sizes.erase(found);
  }
  return kOk;
}
EXPORTED int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = device.capacity_bytes - device.used_bytes;
  *total_bytes = device.capacity_bytes;
  return kOk;
}
EXPORTED int cudaMemcpy(void*, const void*, size_t, int) { return kOk; }
EXPORTED int cudaMemcpyAsync(void*, const void*, size_t, int, void*) { return kOk; }
EXPORTED int cudaMemcpyPeerAsync(void*, int, const void*, int, size_t, void*) { return kOk; }

// libcudart: streams and events

EXPORTED int cudaEventCreateWithFlags(void** event, unsigned) { return *event = event, kOk; }
EXPORTED int cudaEventDestroy(void*) { return kOk; }
EXPORTED int cudaEventQuery(void*) { return kOk; }
EXPORTED int cudaEventRecord(void*, void*) { return kOk; }
EXPORTED int cudaEventSynchronize(void*) { return kOk; }
EXPORTED int cudaEventElapsedTime(float* elapsed_ms, void*, void*) { return *elapsed_ms = 0, kOk; }
EXPORTED int cudaStreamCreateWithPriority(void** stream, unsigned, int) {
  return *stream = reinterpret_cast<void*>(next_handle++), kOk;
}
EXPORTED int cudaStreamQuery(void*) { return kOk; }
EXPORTED int cudaStreamSynchronize(void*) { return kOk; }
EXPORTED int cudaStreamWaitEvent(void*, void*, unsigned) { return kOk; }
EXPORTED int cudaStreamIsCapturing(void*, int* status) { return *status = 0, kOk; }
EXPORTED int cudaStreamGetCaptureInfo(void*, int* status, ...) { return *status = 0, kOk; }
EXPORTED int cudaStreamGetCaptureInfo_v2(void*, int* status, ...) { return *status = 0, kOk; }
EXPORTED int cudaStreamGetCaptureInfo_v3(void*, int* status, ...) { return *status = 0, kOk; }
EXPORTED int cudaThreadExchangeStreamCaptureMode(int*) { return kOk; }

// libcudart: parts that the caching allocator of one process does not use

#define NOT_SUPPORTED(name) \
  EXPORTED int name(...) { return kNotSupported; }
NOT_SUPPORTED(cudaDeviceGetDefaultMemPool)
NOT_SUPPORTED(cudaDeviceGetGraphMemAttribute)
NOT_SUPPORTED(cudaDeviceSetGraphMemAttribute)
NOT_SUPPORTED(cudaFreeAsync)
NOT_SUPPORTED(cudaGraphNodeGetDependencies)
NOT_SUPPORTED(cudaIpcCloseMemHandle)
NOT_SUPPORTED(cudaIpcGetMemHandle)
NOT_SUPPORTED(cudaIpcOpenMemHandle)
NOT_SUPPORTED(cudaMallocAsync)
NOT_SUPPORTED(cudaMemPoolGetAttribute)
NOT_SUPPORTED(cudaMemPoolSetAccess)
NOT_SUPPORTED(cudaMemPoolSetAttribute)
NOT_SUPPORTED(cudaMemPoolTrimTo)

// libcuda: expandable segments map memory into addresses that they have reserved

namespace {

int not_supported(...) { return kNotSupported; }

int device_get(int* found, int) { return *found = 0, kOk; }
int attribute(int* value, int, int) { return *value = 0, kOk; }
int error_string(int, const char** text) { return *text = "an error of memwatch's stand-in driver", kOk; }
int granularity(size_t* nbytes, const void*, int) { return *nbytes = kPage, kOk; }
int reserve_address(uint64_t* address, size_t nbytes, size_t, uint64_t, unsigned long long) {
  return *address = new_address(nbytes), kOk;
}
int done(...) { return kOk; }
int create(uint64_t* handle, size_t nbytes, const void*, unsigned long long) {
  if (!take(nbytes)) {
    return kOutOfMemory;
  }
  *handle = next_handle++;
  handles[*handle] = nbytes;
  return kOk;
}
// the allocator unmaps a piece before it releases it
int release(uint64_t handle) {
  const auto found = handles.find(handle);
  if (found != handles.end()) {
    device.used_bytes -= found->second;
    handles.erase(found);
  }
  return kOk;
}

struct Entry {
  const char* name;
  void* function;
};

const Entry kOfDriver[] = {
    {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
    {"cuDeviceGetAttribute", reinterpret_cast<void*>(attribute)},
    {"cuGetErrorString", reinterpret_cast<void*>(error_string)},
    {"cuMemAddressFree", reinterpret_cast<void*>(done)},
    {"cuMemAddressReserve", reinterpret_cast<void*>(reserve_address)},
    {"cuMemCreate", reinterpret_cast<void*>(create)},
    {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(granularity)},
    {"cuMemMap", reinterpret_cast<void*>(done)},
    {"cuMemRelease", reinterpret_cast<void*>(release)},
    {"cuMemSetAccess", reinterpret_cast<void*>(done)},
    {"cuMemUnmap", reinterpret_cast<void*>(done)},
};

}  // namespace

EXPORTED int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* status) {
  *function = reinterpret_cast<void*>(not_supported);
  for (const Entry& entry : kOfDriver) {
    if (std::strcmp(entry.name, name) == 0) {
      *function = entry.function;
    }
  }
  if (status != nullptr) {
    *status = kOk;
  }
  return kOk;
}
EXPORTED int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long flags,
                                              int* status) {
  return cudaGetDriverEntryPoint(name, function, flags, status);
}

// libnvidia-ml: expandable segments need the links between GPUs, and an out-of-memory error lists the processes

EXPORTED int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) { return *count = 0, kOk; }

#define NO_NVML(name) \
  EXPORTED int name(...) { return kNvmlNotSupported; }
EXPORTED int nvmlInit_v2() { return kOk; }
EXPORTED int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** handle) { return *handle = handle, kOk; }
NO_NVML(nvmlDeviceGetNvLinkRemoteDeviceType)
NO_NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NO_NVML(nvmlSystemGetCudaDriverVersion_v2)
NO_NVML(nvmlDeviceGetGpuFabricInfoV)
