// The kinds of the ops that have run. Each is described once, and again after a library with ops was unloaded.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kind.h"

namespace memwatch {

/// Counts the ops that torch removes, as long as the process lives.
struct OpsGone final : c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle&) override { ++count(); }

  static std::atomic<int64_t>& count() {
    static std::atomic<int64_t> gone{0};
    return gone;
  }
  static int64_t listen() {
    static const auto* listening = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<OpsGone>()));
    static_cast<void>(listening);
    return count();
  }
};

class Kinds {
 public:
  /// Number the names of ops by a function.
  explicit Kinds(py::object string_id) : string_id_(std::move(string_id)) {}

  /// The kind of an op that the dispatch key sees.
  const Kind& of(const c10::OperatorHandle& op) {
    if (const int64_t gone = OpsGone::listen();
        gone != gone_) {  // another schema may have the address of a removed one
      gone_ = gone;
      recent_ = {};
      for (auto& [schema, kind] : std::exchange(seen_, {})) {
        retired_.push_back(std::move(kind));  // somebody may be using it
      }
    }
    const c10::FunctionSchema* schema = &op.schema();
    auto& [recent, recent_kind] = recent_[reinterpret_cast<uintptr_t>(schema) / alignof(std::max_align_t) % kRecent];
    if (recent == schema) {
      return *recent_kind;
    }
    auto found = seen_.find(schema);
    if (found == seen_.end()) {
      auto kind = std::make_unique<Kind>(describe(*schema, string_id_));
      found = seen_.try_emplace(schema, std::move(kind)).first;  // the first one stays, if another thread was faster
    }
    recent = schema;
    recent_kind = found->second.get();
    return *recent_kind;
  }

  /// The kind of an op that Python passes on.
  const Kind& of(const PythonKind& python_kind) {
    const auto found = handed_on_.find(python_kind.address());
    if (found != handed_on_.end()) {
      return *found->second.second;
    }
    auto kind = std::make_unique<Kind>(describe(python_kind, string_id_));
    return *handed_on_.try_emplace(python_kind.address(), python_kind, std::move(kind)).first->second.second;
  }

  void clear() {
    recent_ = {};
    seen_.clear();
    retired_.clear();
    handed_on_.clear();
    string_id_ = py::none();
  }

 private:
  py::object string_id_;
  int64_t gone_ = 0;
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<Kind>> seen_;
  static constexpr size_t kRecent = 256;
  std::array<std::pair<const c10::FunctionSchema*, const Kind*>, kRecent> recent_{};  // each where its address says
  std::vector<std::unique_ptr<Kind>> retired_;
  std::unordered_map<PyObject*, std::pair<PythonKind, std::unique_ptr<Kind>>> handed_on_;
};

}  // namespace memwatch
