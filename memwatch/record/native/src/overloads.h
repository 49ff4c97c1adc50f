// The overloads that a dispatch mode has seen: looked into once, and found again when ops were taken away.
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
  py::object func;  // keeps its address its own
  py::object call;
  py::object python_kind;                 // None for one that is not recorded
  const Kind* kind = nullptr;             // null for such a one
  std::optional<c10::OperatorName> name;  // of one that C++ can call
  std::optional<c10::OperatorHandle> op;
  bool takes_numbers = false;  // where its schema wants tensors
};

class Overloads {
 public:
  /// Have Python tell which kind an overload is.
  void set_kind_of(py::object kind_of) { kind_of_ = std::move(kind_of); }

  const Overload& of(const py::object& func, Kinds& kinds) {
    if (const int64_t gone = OpsGone::listen(); gone != gone_) {  // others may have come in their place
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
    return *overloads_.try_emplace(func.ptr(), std::move(overload)).first->second;  // the first stays, if others came
  }

  void clear() {
    overloads_.clear();
    kind_of_ = py::none();
  }

 private:
  std::unique_ptr<Overload> look_into(const py::object& func, Kinds& kinds) const {
    auto overload = std::make_unique<Overload>();
    overload->func = func;
    overload->call = py::getattr(func, "_op", func);
    overload->python_kind = kind_of_(func);
    overload->kind = overload->python_kind.is_none() ? nullptr : &kinds.of(overload->python_kind);
    if (py::type::of(func).is(py::module_::import("torch._ops").attr("OpOverload"))) {
      overload->name = func.attr("_schema").cast<c10::FunctionSchema>().operator_name();
      const py::object allows = py::module_::import("torch._C").attr("_should_allow_numbers_as_tensors");
      overload->takes_numbers = py::bool_(allows(func.attr("_opname")));
      find(*overload);
    }
    return overload;
  }

  static void find(Overload& overload) {
    if (overload.name) {
      overload.op = c10::Dispatcher::singleton().findSchema(*overload.name);
    }
  }

  py::object kind_of_;
  int64_t gone_ = OpsGone::listen();
  std::unordered_map<PyObject*, std::unique_ptr<Overload>> overloads_;
};

}  // namespace memwatch
