// Weak references that died, each with the time: what stands in `Storages.dead` of memwatch/record/tables/storages.py.
//
// A callback runs in the thread that dropped the last reference, at once; the rows are written at the next op of the
// block's own thread, which may come long after. Another thread may allocate in between.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "python.h"
#include "ticks.h"

namespace memwatch {

/// A queue; touched under the interpreter's lock only.
class Deaths {
 public:
  Deaths() = default;
  ~Deaths() { clear(); }
  Deaths(const Deaths&) = delete;
  Deaths& operator=(const Deaths&) = delete;

  void append(PyObject* reference) { noted_.emplace_back(Py_NewRef(reference), ticks()); }

  bool empty() const { return first_ == noted_.size(); }
  size_t size() const { return noted_.size() - first_; }

  /// Take off the first one, and when it died.
  std::pair<py::object, int64_t> take() {
    const auto [reference, at] = noted_[first_++];
    if (empty()) {  // nearly always: few die between two ops
      noted_.clear();
      first_ = 0;
    }
    return {py::reinterpret_steal<py::object>(reference), at};
  }

  void clear() {
    while (!empty()) {
      take();
    }
  }

  /// Give those that are noted, the first one first.
  py::list listed() const {
    py::list references;
    for (size_t place = first_; place != noted_.size(); ++place) {
      references.append(py::handle(noted_[place].first));
    }
    return references;
  }

 private:
  std::vector<std::pair<PyObject*, int64_t>> noted_;
  size_t first_ = 0;
};

}  // namespace memwatch
