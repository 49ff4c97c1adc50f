// Autograd's state of a tensor, read from its fields.
//
// torch's getters may compute. If the base of a view was changed in place, `Tensor::grad_fn()` runs the view's function
// again to rebuild the history. Below autograd, where samples are taken, the rebuilt history is empty, and torch takes
// it for the current one. memwatch/_torch/autograd_state.py says more.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>
#include <mutex>
#include <typeinfo>

#include "python.h"

namespace memwatch {

/// Return true for the node of a function written in Python, and for no other type whose name looks like it.
///
/// libtorch_python does not export the type_info of PyNode, so its name is compared, as the Itanium C++ ABI writes it.
inline bool is_in_python(const torch::autograd::Node& node) {
  return std::strcmp(typeid(node).name(), "N5torch8autograd6PyNodeE") == 0;
}

/// Autograd's state of a tensor, read from the fields of `AutogradMeta`.
class AutogradState {
 public:
  explicit AutogradState(const at::Tensor& tensor)
      : fields_(tensor.defined() ? torch::autograd::impl::get_autograd_meta(tensor) : nullptr) {
    if (fields_ == nullptr) {  // a leaf with requires_grad=False lacks AutogradMeta
      return;
    }
    // torch holds this mutex while it rebuilds a history, and runs ops meanwhile. A sample within such an op must not
    // wait for it, or both would wait for ever.
    const std::unique_lock<std::mutex> lock(fields_->mutex_, std::try_to_lock);
    is_known_ = lock.owns_lock();
    if (is_known_) {
      node_ = fields_->grad_fn_;
    }
  }

  /// The tensor's node. Null for a leaf, or while torch rebuilds the history of a view.
  const auto& node() const { return node_; }
  bool is_leaf() const { return is_known_ && !node_; }
  bool is_view() const { return fields_ != nullptr && fields_->is_view_; }
  bool requires_grad() const { return fields_ != nullptr && fields_->requires_grad(); }
  bool retains_grad() const { return fields_ != nullptr && fields_->retains_grad_; }

 private:
  const torch::autograd::AutogradMeta* fields_;
  decltype(torch::autograd::AutogradMeta::grad_fn_) node_;
  bool is_known_ = true;
};

/// Keeps `__torch_function__` of the program from running in this thread.
class NoTorchFunction {
 public:
  NoTorchFunction() : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunction() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }
  NoTorchFunction(const NoTorchFunction&) = delete;
  NoTorchFunction& operator=(const NoTorchFunction&) = delete;

 private:
  at::impl::TorchFunctionDisabledState before_;
};

/// Return the Python object of a node.
///
/// torch has a function for this, but libtorch_python exports it in new versions only. So the node is attached to a
/// temporary tensor. Its getter computes nothing, because the tensor is no view.
template <typename Node>
py::object python_node(const Node& node) {
  if (!node) {
    return py::none();
  }
  const at::Tensor stand_in(c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>(), c10::Device(c10::kCPU)));
  torch::autograd::impl::set_gradient_edge(stand_in, torch::autograd::Edge(node, 0));
  // the getter of the C class, which no class of the program overrides; it lives as long as the interpreter
  static PyObject* const getter =
      py::object(py::module_::import("torch._C").attr("TensorBase").attr("__dict__")["grad_fn"].attr("__get__"))
          .release()
          .ptr();
  const NoTorchFunction quiet;
  return owned(PyObject_CallOneArg(getter, python_tensor(stand_in).ptr()));
}

/// `(grad_fn, requires_grad, is_leaf, retains_grad)` of a tensor: an `AutogradState` of memwatch/_torch.
///
/// with_node: whether to return the node. torch then keeps a Python object for it.
inline py::tuple autograd_state(const py::object& object, bool with_node) {
  TORCH_CHECK(is_tensor(object.ptr()), "autograd_state takes a tensor");
  const AutogradState state(THPVariable_Unpack(object.ptr()));
  const py::object node = with_node ? python_node(state.node()) : py::none();
  return py::make_tuple(node, state.requires_grad(), state.is_leaf(), state.retains_grad());
}

}  // namespace memwatch
