// A table's rows as one flat run of 64-bit integers: the compiled twin of memwatch/record/tables/rows.py.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include "integers.h"
#include "losses.h"
#include "schema.h"

namespace memwatch {

class Rows {
 public:
  /// Append a row of schema.h; throw `std::bad_alloc` if memory is too short.
  template <typename Row>
  void add(const Row& row) {
    static_assert(std::is_standard_layout_v<Row>);
    if (!values_.append(row)) {
      throw std::bad_alloc();
    }
  }

  /// Make room for some rows, so that `add` cannot fail; throw `std::bad_alloc` if there is none.
  template <typename Row>
  void reserve(size_t count) {
    if (!values_.reserve(count * (sizeof(Row) / sizeof(int64_t)))) {
      throw std::bad_alloc();
    }
  }

  /// Append a row that comes from Python.
  Rows& add_tuple(const py::tuple& row) {
    if (!values_.reserve(row.size())) {  // first: half a row would shift all that follow
      throw std::bad_alloc();
    }
    for (const auto& value : row) {
      values_.append(integer(value.ptr()));
    }
    return *this;
  }

  /// Return all rows as one array and remove them here. If that fails, they stay.
  py::array_t<int64_t> take() {
    Integers fresh;
    static_cast<void>(fresh.reserve(1));                        // ops that run now have reserved their row
    Integers taken = std::exchange(values_, std::move(fresh));  // first: making the array may let others run
    const auto count = static_cast<py::ssize_t>(taken.size());
    try {
      return std::move(taken).as_array({count});
    } catch (...) {
      if (!taken.extend(values_)) {
        count_loss();
      }
      values_ = std::move(taken);
      throw;
    }
  }

  size_t size() const { return values_.size(); }

 private:
  Integers values_;  // touched under the interpreter's lock only
};

}  // namespace memwatch
