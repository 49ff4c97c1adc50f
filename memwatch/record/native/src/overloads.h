// The overloads that a dispatch mode has seen. Each is examined once, and again after torch removed ops.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "kinds.h"

namespace memwatch {

/// An overload as a dispatch mode sees it.
struct Overload {
  py::object func;  // keeps the object alive, so that no other object gets its address
  py::object call;
  PythonKind python_kind{py::none()};     // None for an overload that is ignored
  const Kind* kind = nullptr;             // null for such an overload
  std::optional<c10::OperatorName> name;  // of an overload that C++ can call
  std::optional<c10::OperatorHandle> op;
  bool takes_numbers = false;  // in place of tensors
};

class Overloads {
 public:
  /// Call `overload_of` of binding.py for the facts about an overload.
  explicit Overloads(py::object overload_of) : overload_of_(std::move(overload_of)) {}

  const Overload& of(const py::object& func, Kinds& kinds) {
    if (const int64_t gone = OpsGone::listen(); gone != gone_) {  // other ops may have the same names now
      gone_ = gone;
      for (const auto& [address, overload] : overloads_) {
        find(*overload);
      }
    }
    const auto known = overloads_.find(func.ptr());
    if (known != overloads_.end()) {
      return *known->second;
    }
    auto overload = look_into(func, kinds);
    return *overloads_.try_emplace(func.ptr(), std::move(overload))
                .first->second;  // the first stays, if another thread was faster
  }

  void clear() {
    overloads_.clear();
    overload_of_ = py::none();
  }

 private:
  std::unique_ptr<Overload> look_into(const py::object& func, Kinds& kinds) const {
    const py::tuple facts = overload_of_(func);  // kind, call, schema, whether numbers are allowed in place of tensors
    auto overload = std::make_unique<Overload>();
    overload->func = func;
    overload->python_kind = PythonKind(facts[0]);
    overload->kind = overload->python_kind.is_none() ? nullptr : &kinds.of(overload->python_kind);
    overload->call = facts[1];
    if (const py::object schema = facts[2]; !schema.is_none()) {
      overload->name = schema.cast<c10::FunctionSchema>().operator_name();
      overload->takes_numbers = py::object(facts[3]).cast<bool>();
      find(*overload);
    }
    return overload;
  }

  static void find(Overload& overload) {
    if (overload.name) {
      overload.op = c10::Dispatcher::singleton().findSchema(*overload.name);
    }
  }

  py::object overload_of_;
  int64_t gone_ = OpsGone::listen();
  std::unordered_map<PyObject*, std::unique_ptr<Overload>> overloads_;
};

}  // namespace memwatch
