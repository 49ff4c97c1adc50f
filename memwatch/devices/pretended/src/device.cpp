// A CUDA device for fake tensors, in a torch that is built for the host alone.
//
// Such a torch lacks a device guard for CUDA, which every op on a device needs. It also lacks the hooks of an
// accelerator, which give autograd the streams of gradients. An estimate registers both, and removes them at its end.
// Nothing here touches memory, because fake tensors have none.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

// autograd keeps a stream for each, by its index
constexpr DeviceIndex kDevices = 127;

thread_local DeviceIndex current = 0;

Stream stream_of(Device device) {
  return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, device.has_index() ? device.index() : current));
}

// The guard of a device with a single queue, which does all work at once.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  Device getDevice() const override { return Device(DeviceType::CUDA, current); }
  void setDevice(Device device) const override { current = device.index(); }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    current = device.index();
    return before;
  }
  Stream getStream(Device device) const noexcept override { return stream_of(device); }
  Stream getDefaultStream(Device device) const override { return stream_of(device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return stream_of(device); }
  Stream getNewStream(Device device, int) const override { return stream_of(device); }
  Stream exchangeStream(Stream stream) const noexcept override { return stream_of(stream.device()); }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  double elapsedTime(void*, void*, const DeviceIndex) const override { return 0; }
};

// Random numbers come from the host's generator: fake tensors have no values.
struct Hooks final : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex getCurrentDevice() const override { return current; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  Device getDeviceFromPtr(void*) const override { return Device(DeviceType::CPU); }
};

// torch keeps the object as long as the process lives. So its functions are exchanged, which works because it has no
// members.
const void*& behaviour_of(const at::CUDAHooksInterface& hooks) {
  return *reinterpret_cast<const void**>(const_cast<at::CUDAHooksInterface*>(&hooks));
}

const void* behaviour_before = nullptr;

// Choose the attention kernel of a recent GPU. Without a choice, torch runs the kernel that makes all scores.
int64_t choose_attention(const at::Tensor& query, const at::Tensor&, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double, bool, std::optional<double>, bool is_grouped) {
  constexpr int64_t kMath = 0, kFlash = 1, kEfficient = 2;  // of sdp::SDPBackend
  constexpr int64_t kMostOfFlash = 256;
  if (query.dim() != 4) {
    return kMath;
  }
  const bool is_half = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  const bool fits_flash =
      is_half && !mask.has_value() && query.sym_size(3) == value.sym_size(3) && query.sym_size(3) <= kMostOfFlash;
  if (fits_flash && at::globalContext().userEnabledFlashSDP()) {
    return kFlash;
  }
  return !is_grouped && at::globalContext().userEnabledMemEfficientSDP() ? kEfficient : kMath;
}

void set_attention(at::native::fused_sdp_choice_fn choose) {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(choose);
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Return whether the device is pretended now: not where this torch knows CUDA by itself.
EXPORTED int memwatch_begin() {
  if (behaviour_before != nullptr || c10::impl::hasDeviceGuardImpl(DeviceType::CUDA)) {
    return 0;
  }
  static const auto* const guard = new Guard;
  static const auto* const hooks = new Hooks;
  const void*& behaviour = behaviour_of(at::detail::getCUDAHooks());
  behaviour_before = behaviour;
  behaviour = behaviour_of(*hooks);
  c10::impl::registerDeviceGuard(DeviceType::CUDA, guard);
  set_attention(choose_attention);
  return 1;
}

EXPORTED void memwatch_end() {
  set_attention(nullptr);
  c10::impl::registerDeviceGuard(DeviceType::CUDA, nullptr);
  behaviour_of(at::detail::getCUDAHooks()) = behaviour_before;
  behaviour_before = nullptr;
  current = 0;
}

EXPORTED void memwatch_set_device(int index) { current = static_cast<DeviceIndex>(index); }

EXPORTED int memwatch_device() { return current; }
