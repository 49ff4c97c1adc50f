// The tensors that autograd saves for backward: the compiled twin of memwatch/record/python/packs.py, which explains
// the reasons.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "storages.h"

namespace memwatch {

/// The rows of packs, and the packs that live; outlives the recorder, as autograd's graph may.
struct SavedLog {
  explicit SavedLog(py::list op_counter) : started(std::move(op_counter)) {}

  /// Note that a pack is read, or that autograd freed it. In the second case a destructor calls, which must not throw.
  ///
  /// A failure here loses a row.
  void unpack(int64_t number, bool released) noexcept {
    if (closed || number == kNone) {
      return;
    }
    const py::error_scope keep;  // a pack may die while Python unwinds
    try {
      unpacks->add(UnpacksRow{.pack = number, .op = ops_started(), .time_ticks = ticks(), .released = released});
    } catch (const std::exception&) {
      count_loss();
      PyErr_Clear();
    }
  }

  void release(int64_t number) noexcept {
    living.erase(number);
    unpack(number, /*released=*/true);
  }

  int64_t ops_started() const { return integer(PyList_GET_ITEM(started.ptr(), 0)); }

  const std::shared_ptr<Rows> packs = std::make_shared<Rows>(), unpacks = std::make_shared<Rows>();
  const py::list started;
  std::map<int64_t, std::pair<int64_t, int64_t>> living;  // by pack: sequence number of the node, storage
  int64_t count = 0;
  bool closed = false;
};

/// The object that autograd holds in place of a saved tensor: the tensor or an alias, and facts for the check at
/// unpack.
struct Pack {
  explicit Pack(std::shared_ptr<SavedLog> log) : log(std::move(log)) {}
  ~Pack() {
    if (number != kNone) {
      log->release(number);
    }
  }
  Pack(const Pack&) = delete;
  Pack& operator=(const Pack&) = delete;

  /// The saved tensor, if it lives. None for an output of its own node.
  at::Tensor original() const { return holds == kOriginal ? packed : at::Tensor(weak_original.lock()); }

  /// The kinds of `packed`.
  enum Holds {
    kNothing,         // hooks of the program packed it
    kOriginal,        // the saved tensor itself: it is an input of the node
    kAliasOfOutput,   // an alias: keeping an output would leak it
    kAliasOfUnknown,  // an alias: whether it is an input or an output is not known
  };

  std::shared_ptr<SavedLog> log;
  at::Tensor packed;
  py::object packed_by_program, unpack_by_program, keeper;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak_original{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  Holds holds = kNothing;
  int64_t number = kNone, version = 0, output_nr = 0;
  std::string node_name;
};

class SavedTensors {
 public:
  /// callbacks: a `PackCallbacks` of binding.py. started: the op counter.
  SavedTensors(const py::object& callbacks, std::shared_ptr<Storages> storages, py::object context, py::list started);

  const std::shared_ptr<Rows>& packs() const { return log_->packs; }
  const std::shared_ptr<Rows>& unpacks() const { return log_->unpacks; }
  /// Set the object that every pack holds, or None.
  void set_keeper(py::object keeper) { keeper_ = std::move(keeper); }
  /// Set the hooks (pack, unpack) of the program that do the packing, or None.
  void set_outer(py::object outer) { outer_ = std::move(outer); }
  void close();
  /// Let hooks of the program pack the object in a pack, as SavedVariable::register_hooks does. Returns false if the
  /// pack holds nothing.
  ///
  /// modifying: the text of the error if the hook writes into the tensor that it is given.
  static bool hook(Pack& pack, const std::string& modifying, const py::object& pack_hook, py::object unpack_hook);
  std::unique_ptr<Pack> new_pack() const { return std::make_unique<Pack>(log_); }
  void pack(Pack& pack, const py::object& tensor);
  py::object unpack(Pack& pack);
  /// Return a stand-in for the tensor if memory is too short for a pack. It gets no row.
  py::object pack_without_record(const py::object& tensor);
  py::object unpack_without_record(const py::object& packed) const;
  py::dict living_by_sequence() const;

 private:
  void hold(Pack& pack, const at::Tensor& tensor) const;
  py::object call_outer(Py_ssize_t hook, const py::object& argument) const;
  [[noreturn]] void raise_inplace_error(Pack& pack) const;
  void hold_or_alias(Pack& pack, const at::Tensor& tensor) const;
  void append(Pack& pack, const at::Tensor& tensor, const py::object& object);
  void append_if_possible(Pack& pack, const at::Tensor& tensor, const py::object& object);

  std::shared_ptr<SavedLog> log_;
  PackCallbacks callbacks_;
  CallContext context_;
  py::object outer_ = py::none(), keeper_ = py::none();
  std::shared_ptr<Storages> storages_;
};

}  // namespace memwatch
