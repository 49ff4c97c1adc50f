// Births and deaths of storages: the compiled twin of `Storages.born` and `Storages.bury`.
//
// The table itself stays the Python object of memwatch/record/tables/storages.py, which others read: this drives it, and
// keeps its counts.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include <limits>
#include <memory>

#include "rows.h"
#include "stacks.h"

namespace memwatch {

enum Origin : int64_t { kByOp, kBaseline };  // as memwatch.capture.schema.ORIGINS

inline int64_t ticks() { return static_cast<int64_t>(c10::getApproximateTime()); }

/// Tell whether a tensor shows the one storage that holds its bytes, and sizes to look up.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_nested() &&
         !tensor.key_set().has(c10::DispatchKey::Python) && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

inline int64_t key_of(const at::Tensor& tensor) {
  return reinterpret_cast<int64_t>(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

class Storages {
 public:
  /// Drive a `memwatch.record.tables.storages.Storages`, which keeps this object.
  void drive(const py::object& storages) {
    self_ = storages.ptr();
    live_ = storages.attr("live");
    roles_ = storages.attr("roles");
    dead_ = storages.attr("dead");
    bury_later_ = dead_.attr("append");
    take_dead_ = dead_.attr("popleft");
    births_rows_ = storages.attr("births");
    deaths_rows_ = storages.attr("deaths");
    births_ = births_rows_.cast<Rows*>();
    deaths_ = deaths_rows_.cast<Rows*>();
    estimate_ = storages.attr("estimate").cast<bool>();
    const py::module_ types = py::module_::import("memwatch.record.tables.storages");
    alive_ = types.attr("Alive");
    passing_ = types.attr("Passing");
    const py::object known = types.attr("Known");
    number_.find(known, "number");
    key_.find(known, "key");
    nbytes_.find(known, "nbytes");
    address_.find(passing_, "address");
  }

  int64_t count = 0, live_bytes = 0, entry_count = 0, entry_gone_bytes = 0;
  int64_t watch_bytes = std::numeric_limits<int64_t>::max();
  bool hold = true;

  /// Let go of every Python object, once no look at a tensor is under way.
  void close() {
    closed_ = true;
    if (looks_ > 0) {
      return;
    }
    live_ = roles_ = dead_ = bury_later_ = take_dead_ = alive_ = passing_ = py::none();
    self_ = py::none();
  }

  /// Keeps what a look at a tensor needs while it lasts: Python code that it calls may end the block.
  class Look {
   public:
    explicit Look(std::shared_ptr<Storages> storages) : storages_(std::move(storages)) { ++storages_->looks_; }
    ~Look() {
      if (--storages_->looks_ == 0 && storages_->closed_) {
        storages_->close();
      }
    }

   private:
    std::shared_ptr<Storages> storages_;
  };

  bool any_dead() const { return !dead_.is_none() && PyObject_Size(dead_.ptr()) > 0; }
  bool is_passing(PyObject* known) const { return reinterpret_cast<PyObject*>(Py_TYPE(known)) == passing_.ptr(); }
  bool is_alive(PyObject* known) const { return reinterpret_cast<PyObject*>(Py_TYPE(known)) == alive_.ptr(); }

  /// Give what is known of the storage at an address (borrowed), or null; one that is dead was another one.
  PyObject* find(int64_t key) const {
    PyObject* known = PyDict_GetItemWithError(live_.ptr(), owned(PyLong_FromLongLong(key)).ptr());
    if (known == nullptr && PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    const bool dead = known != nullptr && is_alive(known) && PyWeakref_GetObject(known) == Py_None;
    return dead ? nullptr : known;
  }

  int64_t number_of(PyObject* known) const { return number_.of(known); }

  /// Return the number of the storage of a plain tensor, at first sight as one that was there before.
  int64_t number_of(const at::Tensor& tensor, const py::object& object, int64_t op) {
    bury(op);
    const int64_t key = key_of(tensor);
    PyObject* known = find(key);
    const bool passing = known != nullptr && is_passing(known);
    if (known == nullptr || (passing && address_.of(known) != address_of(tensor))) {
      return born(tensor, key, NONE, kBaseline, ticks());
    }
    const int64_t number = number_of(known);
    if (passing && hold) {
      self_.attr("hold_one")(object, key, number);
    }
    return number;
  }

  /// Append the birth of the storage of a plain tensor; return its number.
  int64_t born(const at::Tensor& tensor, int64_t key, int64_t op, Origin origin, int64_t at) {
    const int64_t address = address_of(tensor);
    const int64_t shape = shape_of(tensor), device = device_of(tensor);
    int64_t nbytes = 0;
    py::object reference;
    if (!tensor.is_cpu() || hold) {
      const c10::Storage& storage = tensor.storage();
      nbytes = static_cast<int64_t>(storage.nbytes());
      reference = weakly(alive_, owned(THPStorage_Wrap(storage)));
    } else {
      nbytes = static_cast<int64_t>(tensor.nbytes());
      reference = weakly(passing_, owned(THPVariable_Wrap(tensor)));
      address_.set(reference.ptr(), address);
    }
    const int64_t number = count;
    number_.set(reference.ptr(), number);
    key_.set(reference.ptr(), key);
    const int64_t weight = address != 0 || estimate_ ? nbytes : 0;
    nbytes_.set(reference.ptr(), weight);
    count = number + 1;
    if (PyDict_SetItem(live_.ptr(), owned(PyLong_FromLongLong(key)).ptr(), reference.ptr()) != 0) {
      throw py::error_already_set();
    }
    live_bytes += weight;
    births_->add({number, op, at, address, nbytes, device, origin, shape});
    if (live_bytes > watch_bytes) {
      self_.attr("high")(weight);
    }
    return number;
  }

  /// Append the deaths since the last time, as of now.
  void bury(int64_t op) {
    if (!any_dead()) {
      return;
    }
    const int64_t at = ticks();
    while (any_dead()) {
      const py::object gone = owned(PyObject_CallNoArgs(take_dead_.ptr()));
      if (is_alive(gone.ptr())) {
        bury_one(gone.ptr(), op, at);
      } else if (is_passing(gone.ptr())) {  // it stays known, for another tensor may show its storage still
        shrink(gone.ptr());
      } else {
        self_.attr("on_release")(gone, op, at);
      }
    }
  }

  static int64_t address_of(const at::Tensor& tensor) {
    try {
      return reinterpret_cast<int64_t>(tensor.const_data_ptr());
    } catch (const c10::Error&) {
      return 0;
    }
  }

  /// Return the string id of dtype and shape.
  int64_t shape_of(const at::Tensor& tensor) {
    shape_.assign(1, static_cast<int64_t>(tensor.scalar_type()));
    shape_.insert(shape_.end(), tensor.sizes().begin(), tensor.sizes().end());
    const auto known = shapes_.find(shape_);
    if (known != shapes_.end()) {
      return known->second;
    }
    const Key mine = shape_;  // other threads may come by while Python runs
    const int64_t id = integer(self_.attr("shape_id")(owned(THPVariable_Wrap(tensor))).ptr());
    shapes_.emplace(mine, id);
    return id;
  }

 private:
  int64_t device_of(const at::Tensor& tensor) {
    const int64_t device = static_cast<int64_t>(tensor.device().type()) << 8 | (tensor.device().index() & 0xff);
    const auto known = devices_.find(device);
    if (known != devices_.end()) {
      return known->second;
    }
    const int64_t id = integer(self_.attr("device_id")(owned(THPVariable_Wrap(tensor))).ptr());
    devices_.emplace(device, id);
    return id;
  }

  py::object weakly(const py::object& type, const py::object& referent) const {
    PyObject* arguments[] = {referent.ptr(), bury_later_.ptr()};
    return owned(PyObject_Vectorcall(type.ptr(), arguments, 2, nullptr));
  }

  void bury_one(PyObject* gone, int64_t op, int64_t at) {
    const int64_t key = key_.of(gone), number = number_of(gone);
    const py::object address = owned(PyLong_FromLongLong(key));
    if (PyDict_GetItemWithError(live_.ptr(), address.ptr()) == gone) {
      PyDict_DelItem(live_.ptr(), address.ptr());
    }
    shrink(gone);
    if (number < entry_count) {
      entry_gone_bytes += nbytes_.of(gone);
      watch_bytes -= nbytes_.of(gone);
    }
    deaths_->add({number, op, at});
    const py::object role = owned(PyLong_FromLongLong(number));
    if (PyDict_Contains(roles_.ptr(), role.ptr()) == 1) {
      PyDict_DelItem(roles_.ptr(), role.ptr());
    }
  }

  void shrink(PyObject* gone) { live_bytes -= nbytes_.of(gone); }

  Slot number_, key_, nbytes_, address_;
  int64_t looks_ = 0;
  bool closed_ = false, estimate_ = false;
  py::handle self_;
  py::object live_, roles_, dead_, bury_later_, take_dead_, alive_, passing_;
  py::object births_rows_, deaths_rows_;
  Rows *births_ = nullptr, *deaths_ = nullptr;
  std::unordered_map<Key, int64_t, HashOfKey> shapes_;
  std::unordered_map<int64_t, int64_t> devices_;
  Key shape_;
};

}  // namespace memwatch
