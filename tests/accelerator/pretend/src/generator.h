// Generators: each draws as a generator of the host does that has the same seed.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <array>

#include "streams.h"

namespace pretend {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device, at::Generator host = at::detail::createCPUGenerator())
      : GeneratorImpl(c10::Device(kType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  static c10::DeviceType device_type() { return kType; }

  /// The generator that draws for it.
  const at::Generator& host() const { return host_; }

  void set_current_seed(uint64_t seed) override { host_.set_current_seed(seed); }
  uint64_t current_seed() const override { return host_.current_seed(); }
  uint64_t seed() override { return host_.seed(); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "a pretend generator has no offset"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "a pretend generator has no offset"); }
  void set_state(const c10::TensorImpl& state) override { host_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host_.unsafeGetGeneratorImpl()->get_state(); }

  static const at::Generator& of_device(c10::DeviceIndex device) {
    static auto* defaults = new std::array<at::Generator, kDevices>{at::make_generator<Generator>(c10::DeviceIndex{0}),
                                                                    at::make_generator<Generator>(c10::DeviceIndex{1})};
    return defaults->at(device < 0 ? current_device : device);
  }

 private:
  Generator* clone_impl() const override { return new Generator(device().index(), host_.clone()); }

  at::Generator host_;
};

}  // namespace pretend
