// What autograd keeps for backward: the compiled twin of memwatch/record/python/saved.py, which says why it is as it is.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "storages.h"

namespace memwatch {

/// The rows of packs, and the packs that live; outlives the recorder, as autograd's graph may.
struct SavedLog {
  SavedLog(py::object packs, py::object unpacks, py::list started) : packs(packs), unpacks(unpacks), started(started) {}

  void unpack(int64_t number, bool released) {
    if (!closed) {
      unpacks.cast<Rows*>()->add({number, ops_started(), ticks(), static_cast<int64_t>(released)});
    }
  }
  int64_t ops_started() const { return integer(PyList_GET_ITEM(started.ptr(), 0)); }

  py::object packs, unpacks;
  py::list started;
  std::map<int64_t, std::pair<int64_t, int64_t>> living;  // by pack: sequence number of the node, storage
  int64_t count = 0;
  bool closed = false;
};

/// What autograd holds in place of a saved tensor: it or an alias, and what the check at unpack needs.
struct Pack {
  explicit Pack(std::shared_ptr<SavedLog> log) : log(std::move(log)) {}
  ~Pack() {
    if (number != NONE) {
      log->unpack(number, true);
      log->living.erase(number);
    }
  }
  Pack(const Pack&) = delete;
  Pack& operator=(const Pack&) = delete;

  /// The saved tensor if it lives; none for an output of its own node.
  at::Tensor original() const { return is_original ? packed : at::Tensor(weak_original.lock()); }

  std::shared_ptr<SavedLog> log;
  at::Tensor packed;
  py::object packed_by_program, unpack_by_program, keeper;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak_original{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  bool is_original = false;
  int64_t number = NONE, version = 0, output_nr = 0;
  std::string node_name;
};

class SavedTensors {
 public:
  /// Append to the rows that are given.
  ///
  /// look: gives the storage, the string id of the shape and the bytes of a tensor of parts.
  /// error: words autograd's error for a pack whose tensor was modified.
  SavedTensors(py::object packs, py::object unpacks, py::object look, py::object error,
               std::shared_ptr<Storages> storages, py::object context, py::list started);

  /// Have every pack hold an object; None for none.
  void set_keeper(py::object keeper) { keeper_ = std::move(keeper); }
  /// Have the hooks (pack, unpack) that the program pushed before do the packing; None for none.
  void set_outer(py::object outer) { outer_ = std::move(outer); }
  void close();
  /// Have hooks of the program pack what a pack holds, as SavedVariable::register_hooks does; false if it holds
  /// nothing.
  ///
  /// modifying: the words of the error if its hook writes what it is given.
  static bool hook(Pack& pack, const std::string& modifying, const py::object& pack_hook, py::object unpack_hook);
  std::unique_ptr<Pack> pack(const py::object& tensor);
  py::object unpack(Pack& pack);
  py::dict living_by_sequence() const;

 private:
  void hold(Pack& pack, const at::Tensor& tensor) const;
  void append(Pack& pack, const at::Tensor& tensor, const py::object& object);

  const Name top_{"top"};
  std::shared_ptr<SavedLog> log_;
  py::object look_, error_, context_, outer_ = py::none(), keeper_ = py::none();
  std::shared_ptr<Storages> storages_;
};

}  // namespace memwatch
