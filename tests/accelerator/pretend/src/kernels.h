// Kernels: making and viewing tensors here, copies by the host, and all else on copies that the host computes with.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>

#include "hooks.h"

namespace pretend {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

inline at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, &Allocator::only(), kKeys, c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, &Allocator::only(), kKeys, c10::dtype_or_default(dtype));
}

/// The same memory as a tensor of the host.
inline at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_cpu()
             ? tensor
             : at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

inline at::Scalar local_scalar_dense(const at::Tensor& tensor) { return on_host(tensor).item(); }

inline void record_stream(at::Tensor& tensor, c10::Stream stream) {
  Allocator::only().recordStream(tensor.storage().data_ptr(), stream);
}

/// A copy that needs memory of the device while it runs, as a library's kernel may.
inline at::Tensor copy_with_workspace(const at::Tensor& tensor, int64_t nbytes) {
  const c10::DeviceGuard guard(tensor.device());
  const c10::DataPtr workspace = Allocator::only().allocate(static_cast<size_t>(nbytes));
  return tensor.clone();
}

/// Compute on the host, and draw there with the generator of the device.
inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t number = 0; number < arguments.size(); ++number) {
    if (arguments[number].name() == "generator") {
      c10::IValue& value = torch::jit::peek(*stack, number, arguments.size());
      const auto generator = value.isNone() ? Generator::of_device(current_device) : value.toGenerator();
      if (generator.device().type() == kType) {
        value = at::check_generator<Generator>(generator)->host();
      }
    }
  }
  at::native::cpu_fallback(op, stack);
}

}  // namespace pretend
