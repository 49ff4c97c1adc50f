// Detach tensors so that no dispatch mode of the program sees it.
//
// A mode sees every `detach`, by memwatch or by autograd. Autograd detaches each output that it saves. Our packs do the
// same, so a mode sees no difference there. Autograd saves an input as it is and returns it as it is. But if a hook
// returns the input, autograd detaches it (torch/csrc/autograd/saved_variable.cpp, `unpack`), and calls the modes
// first. So for a saved input, memwatch's hook returns a tensor whose `detach` does not call the modes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <typeinfo>

namespace memwatch {

/// Keeps the dispatch modes of this thread from seeing ops.
class BelowModes {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

/// A view of all of another tensor, with its version counter. No mode sees it being copied.
class UnseenImpl final : public c10::TensorImpl {
 public:
  explicit UnseenImpl(const c10::TensorImpl& source) : TensorImpl(source.key_set(), source.dtype(), source.device()) {
    copy_tensor_metadata(&source, this, source.version_counter(), /*allow_tensor_metadata_change=*/false);
  }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override {
    const BelowModes below;
    return TensorImpl::shallow_copy_and_detach(version_counter, allow_tensor_metadata_change);
  }

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override {
    const BelowModes below;
    return TensorImpl::shallow_copy_and_detach(std::move(version_counter), allow_tensor_metadata_change);
  }
};

inline bool any_mode() { return c10::impl::TorchDispatchModeTLS::stack_len() > 0; }

/// Return true for a strided tensor of torch's own class; false for subclasses and wrappers.
inline bool is_of_torch_itself(const at::Tensor& tensor) {
  const c10::TensorImpl& implementation = *tensor.unsafeGetTensorImpl();
  return typeid(implementation) == typeid(c10::TensorImpl) && !tensor.key_set().has(c10::DispatchKey::Python);
}

/// Detach a tensor. Modes see this only if the tensor's own class has a `__torch_dispatch__`.
inline at::Tensor detached_unseen(const at::Tensor& tensor) {
  if (!any_mode() || !is_of_torch_itself(tensor)) {
    return tensor.detach();
  }
  const BelowModes below;
  return tensor.detach();
}

/// Return a tensor in place of another one, so that autograd can detach it without calling a mode.
inline at::Tensor to_be_detached_unseen(const at::Tensor& tensor) {
  if (!any_mode() || !is_of_torch_itself(tensor)) {
    return tensor;
  }
  return at::Tensor(c10::make_intrusive<UnseenImpl>(*tensor.unsafeGetTensorImpl()));
}

}  // namespace memwatch
