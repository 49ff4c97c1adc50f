// Weak references that died, each with its time: `Storages.dead` of memwatch/record/tables/storages.py.
//
// A callback runs in the thread that dropped the last reference, at once; the rows are written at the next op of the
// block's own thread, which may come long after. Another thread may allocate in between.
#pragma once

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "losses.h"
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

  /// Note a death. Python calls this from a callback that must not fail. Without memory the death is missed.
  void append(PyObject* reference) noexcept {
    try {
      noted_.emplace_back(reference, ticks());
      Py_INCREF(reference);
    } catch (const std::exception&) {
      missed_ = true;
      count_loss();
    }
  }

  bool empty() const { return first_ == noted_.size(); }
  size_t size() const { return noted_.size() - first_; }
  /// Return true if a death was missed.
  bool any_missed() const { return missed_; }
  /// Forget that a death was missed: all storages were searched.
  void none_missed() { missed_ = false; }

  /// Remove and return the first reference, with the time of its death.
  std::pair<py::object, int64_t> take() {
    const auto [reference, at] = noted_[first_++];
    if (empty()) {  // nearly always: few die between two ops
      noted_.clear();
      first_ = 0;
    }
    return {py::reinterpret_steal<py::object>(reference), at};
  }

  void clear() {
    missed_ = false;
    while (!empty()) {
      take();
    }
  }

  /// Return the noted references, oldest death first.
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
  bool missed_ = false;
};

}  // namespace memwatch
