// Everything that C++ reads or calls of memwatch's Python objects. No other C++ file names one of their attributes.
//
// memwatch/record/native/binding.py declares the same attributes and explains them. Methods are looked up once and kept
// bound. The Python objects refer to C++ objects in turn, and Python's garbage collector cannot see such a cycle. So
// every owner of a callback object releases it when the block ends.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "deaths.h"
#include "python.h"
#include "rows.h"

namespace memwatch {

/// The table of storages. C++ fills it and Python reads it. The table owns this C++ object, so this object holds no
/// reference to the table.
class StorageTable {
 public:
  StorageTable() = default;
  explicit StorageTable(const py::object& table)
      : live(table.attr("live")),
        roles(table.attr("roles")),
        dead(table.attr("dead").cast<std::shared_ptr<Deaths>>()),
        note_death(table.attr("dead").attr("append")),
        births(table.attr("births").cast<std::shared_ptr<Rows>>()),
        deaths(table.attr("deaths").cast<std::shared_ptr<Rows>>()),
        is_estimate(table.attr("estimate").cast<bool>()),
        self_(table.ptr()) {}

  int64_t shape_id(const py::object& tensor) const { return integer(self_.attr("shape_id")(tensor).ptr()); }
  int64_t device_id(const py::object& tensor) const { return integer(self_.attr("device_id")(tensor).ptr()); }
  void above_watched(int64_t device, int64_t nbytes, int64_t workspace_bytes) const {
    self_.attr("above_watched")(device, nbytes, workspace_bytes);
  }

  py::object live = py::none(), roles = py::none();
  std::shared_ptr<Deaths> dead;
  py::object note_death;
  std::shared_ptr<Rows> births, deaths;
  bool is_estimate = false;

 private:
  py::handle self_ = Py_None;
};

/// The two classes of weak references in `live`, and the slots with the facts about a storage.
struct WatchedClasses {
  WatchedClasses(py::object storage_class, py::object tensor_class)
      : storage(std::move(storage_class)),
        tensor(std::move(tensor_class)),
        number(storage, "number"),
        key(storage, "key"),
        nbytes(storage, "nbytes"),
        device(storage, "device"),
        address(tensor, "address") {}

  py::object storage, tensor;
  Slot number, key, nbytes, device, address;
};

/// The table of call stacks. The table owns the object that walks the frames, so that object holds no reference to the
/// table.
class StackTable {
 public:
  explicit StackTable(const py::object& table)
      : enabled(table.attr("enabled").cast<bool>()), engine(integer(table.attr("engine").ptr())), self_(table.ptr()) {
    for (const auto& bound : table.attr("bounds")) {
      bounds_.push_back(integer(bound.ptr()));
    }
  }

  int64_t intern(const py::tuple& key, const py::handle& frame) const {
    return integer(self_.attr("intern")(key, frame).ptr());
  }

  bool is_bound(int64_t code) const { return std::find(bounds_.begin(), bounds_.end(), code) != bounds_.end(); }

  bool enabled;
  int64_t engine;

 private:
  std::vector<int64_t> bounds_;  // few items: comparing them is faster than hashing them
  py::handle self_;
};

/// The running module, stack and phase of the program. It is read for every op, so its attributes are slots.
class CallContext {
 public:
  explicit CallContext(py::object context)
      : type_(py::type::of(context)),
        top_(type_, "top"),
        graph_task_(type_, "graph_task"),
        optimizing_(type_, "optimizing"),
        recomputing_(type_, "recomputing"),
        thread_(type_, "thread"),
        saves_inputs_(type_, "saves_inputs"),
        context_(std::move(context)) {}

  /// Return the innermost running module and the stack above its call.
  std::pair<int64_t, int64_t> top() const {
    PyObject* pair = top_.object_of(context_.ptr());
    return {integer(PyTuple_GET_ITEM(pair, 0)), integer(PyTuple_GET_ITEM(pair, 1))};
  }
  bool is_optimizing() const { return optimizing_.object_of(context_.ptr()) == Py_True; }
  /// Return the graph task of the last op, or the number that means none.
  int64_t graph_task() const { return graph_task_.of(context_.ptr()); }
  /// Return the graph task that runs a checkpointed region again in `thread`, or the number that means none.
  int64_t recomputing() const { return recomputing_.of(context_.ptr()); }
  int64_t thread() const { return thread_.of(context_.ptr()); }
  bool recomputes_by_hand() const { return context_.attr("recomputes_by_hand")().cast<bool>(); }
  bool saves_inputs() const { return saves_inputs_.object_of(context_.ptr()) == Py_True; }
  void enter_backward(int64_t task) const { graph_task_.set(context_.ptr(), task); }
  void leave_backward() const { context_.attr("backward_ended")(); }
  void clear() { context_ = py::none(); }
  bool is_cleared() const { return context_.is_none(); }

 private:
  const py::object type_;
  const Slot top_, graph_task_, optimizing_, recomputing_, thread_, saves_inputs_;
  py::object context_;
};

/// Return whether a signal handler of the program raised an exception while code of memwatch ran.
inline bool is_by_handler(const py::object& raised_by_handler, const py::error_already_set& error) {
  if (error.trace()) {  // before Python 3.12 an exception has its traceback only once Python has caught it
    PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
  }
  try {
    return raised_by_handler(error.value()).cast<bool>();
  } catch (py::error_already_set& own) {
    if (own.matches(PyExc_MemoryError)) {  // memory has run out, so the answer is not known
      return false;
    }
    throw;
  }
}

/// The functions that the op recorder calls: the session's, and Python code for tensors that are not plain.
struct OpCallbacks {
  OpCallbacks() = default;
  explicit OpCallbacks(const py::object& callbacks)
      : string_id(callbacks.attr("string_id")),
        flush_due(callbacks.attr("flush_due")),
        op_failed(callbacks.attr("op_failed")),
        backward_begins(callbacks.attr("backward_begins")),
        could_not_record(callbacks.attr("could_not_record")),
        storages_of(callbacks.attr("storages_of")),
        made(callbacks.attr("made")),
        resized(callbacks.attr("resized")),
        overload_of(callbacks.attr("overload_of")),
        hand_on(callbacks.attr("hand_on")),
        frame_callback(callbacks.attr("frame_callback")),
        passed_on(callbacks.attr("passed_on")),
        raised_by_handler(callbacks.attr("raised_by_handler")) {}

  bool is_by_handler(const py::error_already_set& error) const {
    return memwatch::is_by_handler(raised_by_handler, error);
  }

  py::object string_id, flush_due, op_failed, backward_begins, could_not_record, storages_of, made, resized,
      overload_of;
  py::object hand_on, frame_callback, passed_on, raised_by_handler;
};

/// The functions that packs call: Python code for tensors that are not plain, and for the text of an error.
struct PackCallbacks {
  PackCallbacks() = default;
  explicit PackCallbacks(const py::object& callbacks)
      : describe(callbacks.attr("describe")),
        inplace_error(callbacks.attr("inplace_error")),
        detached_error(callbacks.attr("detached_error")),
        could_not_record(callbacks.attr("could_not_record")),
        passed_on(callbacks.attr("passed_on")),
        raised_by_handler(callbacks.attr("raised_by_handler")) {}

  bool is_by_handler(const py::error_already_set& error) const {
    return memwatch::is_by_handler(raised_by_handler, error);
  }

  py::object describe, inplace_error, detached_error, could_not_record, passed_on, raised_by_handler;
};

/// The kind of an op that Python passes to C++.
class PythonKind {
 public:
  explicit PythonKind(py::object kind) : kind_(std::move(kind)) {}

  /// Return the function that runs the op. The next run may have another function.
  py::object call() const {
    static const Name name("call");
    return name.of(kind_.ptr());
  }
  /// Return the arguments with tensors in place of numbers, or None.
  py::object numbers_as_tensors(const py::tuple& args) const { return kind_.attr("numbers_as_tensors")(args); }

  std::string name() const { return py::str(kind_.attr("name")); }
  bool is_view() const { return kind_.attr("is_view").cast<bool>(); }
  bool is_lift() const { return kind_.attr("is_lift").cast<bool>(); }
  bool resizes() const { return kind_.attr("resizes").cast<bool>(); }
  py::object write_names() const { return kind_.attr("write_names"); }
  py::object accesses() const { return kind_.attr("accesses"); }
  py::object numbers() const { return kind_.attr("numbers"); }
  /// Return rows of the table `numbers` without their first column.
  py::object numbers_in(const py::tuple& args, const py::dict& kwargs) const {
    return kind_.attr("numbers_in")(args, kwargs);
  }

  PyObject* address() const { return kind_.ptr(); }
  bool is_none() const { return kind_.is_none(); }

 private:
  py::object kind_;
};

}  // namespace memwatch
