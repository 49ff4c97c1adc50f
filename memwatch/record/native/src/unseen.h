// Detaching where no dispatch mode of the program looks.
//
// A mode sees every `detach`: of ours, and of autograd's own. Autograd detaches an output that it saves, and so do our
// packs, so a mode sees the same there with memwatch as without. But it saves an input as it is, and gives it back
// as it is; given the same tensor by a hook, it detaches that (torch/csrc/autograd/saved_variable.cpp, `unpack`), and
// asks the modes first. So for a saved input the hook gives a tensor that is detached without asking them.
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

/// A view of all of another tensor, with its version counter, of which no mode sees copies.
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

/// Return true for a tensor that is nothing but one of torch's own: no subclass, wrapper or other layout.
inline bool is_of_torch_itself(const at::Tensor& tensor) {
  const c10::TensorImpl& implementation = *tensor.unsafeGetTensorImpl();
  return typeid(implementation) == typeid(c10::TensorImpl) && !tensor.key_set().has(c10::DispatchKey::Python);
}

/// Detach a tensor; no mode sees it, unless the tensor's own class wants to.
inline at::Tensor detached_unseen(const at::Tensor& tensor) {
  if (!any_mode() || !is_of_torch_itself(tensor)) {
    return tensor.detach();
  }
  const BelowModes below;
  return tensor.detach();
}

/// Return what autograd may detach without a mode seeing it, in place of a tensor that it must not change.
inline at::Tensor to_be_detached_unseen(const at::Tensor& tensor) {
  if (!any_mode() || !tensor.requires_grad() || !is_of_torch_itself(tensor)) {
    return tensor;
  }
  return at::Tensor(c10::make_intrusive<UnseenImpl>(*tensor.unsafeGetTensorImpl()));
}

}  // namespace memwatch
