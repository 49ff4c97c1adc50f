// Convert the arguments of an op from Python to C++.
//
// An overload that is called from Python checks the class of every argument, because a subclass may want to run the op
// itself. It also looks up every name of its schema among the keyword arguments. Most calls have plain tensors by
// position and need neither.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <optional>

#include "callbacks.h"

namespace memwatch {

template <typename Visit>
void each_item(PyObject* sequence, Visit&& visit) {
  // Python may run inside the loop: another thread or a finalizer of the program may remove items from the list
  for (Py_ssize_t index = 0; index < PySequence_Fast_GET_SIZE(sequence); ++index) {
    const py::object item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(sequence, index));
    visit(item.ptr());
  }
}

inline bool is_list(PyObject* value) { return PyList_CheckExact(value) || PyTuple_CheckExact(value); }

/// Return whether no tensor in a Python value has a class that may want to run the op itself.
inline bool of_exact_class(PyObject* value) {
  if (is_list(value)) {
    bool exact = true;
    each_item(value, [&](PyObject* item) { exact = exact && of_exact_class(item); });
    return exact;
  }
  return THPVariable_CheckExact(value) || !is_tensor(value);
}

/// Return the arguments by position, with defaults for the rest; or nothing if the schema refuses them.
inline std::optional<torch::jit::Stack> by_position(const c10::FunctionSchema& schema, const py::tuple& args) {
  const auto& wanted = schema.arguments();
  torch::jit::Stack stack;
  stack.reserve(wanted.size());
  for (size_t position = 0; position < wanted.size(); ++position) {
    if (position < args.size()) {
      if (wanted[position].kwarg_only()) {
        return std::nullopt;
      }
      PyObject* value = PyTuple_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(position));
      stack.push_back(torch::jit::toIValue(value, wanted[position].real_type(), wanted[position].N()));
    } else if (wanted[position].default_value()) {
      stack.push_back(*wanted[position].default_value());
    } else {
      return std::nullopt;
    }
  }
  return args.size() <= wanted.size() ? std::make_optional(std::move(stack)) : std::nullopt;
}

/// Return the arguments for C++. Returns nothing if a Python class may run the op, or if Python must raise the error.
inline std::optional<torch::jit::Stack> boxed(const c10::OperatorHandle& op, bool takes_numbers, const py::tuple& args,
                                              const py::dict& kwargs, const OpCallbacks& callbacks) {
  bool exact = !at::impl::torch_function_mode_enabled() && of_exact_class(args.ptr());
  for (const auto& [name, value] : kwargs) {
    exact = exact && of_exact_class(value.ptr());
  }
  if (!exact) {
    return std::nullopt;
  }
  const torch::jit::ToIValueAllowNumbersAsTensors allow(takes_numbers);
  try {
    if (!kwargs.empty()) {
      return torch::jit::createStackForSchema(op.schema(), torch::jit::tuple_slice(args),
                                              py::reinterpret_borrow<py::kwargs>(kwargs), std::nullopt);
    }
    return by_position(op.schema(), args);
  } catch (py::error_already_set& error) {
    if (callbacks.is_by_handler(error)) {
      throw;
    }
    return std::nullopt;
  } catch (const std::exception&) {
    if (PyErr_Occurred() != nullptr) {  // some conversions of torch leave an error set
      const py::error_already_set error;
      if (callbacks.is_by_handler(error)) {
        throw py::error_already_set(error);
      }
    }
    return std::nullopt;
  }
}

}  // namespace memwatch
