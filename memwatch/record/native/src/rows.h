// A table's rows as one flat run of 64-bit integers: the compiled twin of memwatch/record/tables/rows.py.
#pragma once

#include <pybind11/numpy.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "python.h"
#include "schema.h"

namespace memwatch {

class Rows {
 public:
  /// Append a row of schema.h.
  template <typename Row>
  void add(const Row& row) {
    static_assert(std::is_standard_layout_v<Row> && sizeof(Row) % sizeof(int64_t) == 0);
    const auto* values = reinterpret_cast<const int64_t*>(&row);
    values_.insert(values_.end(), values, values + sizeof(Row) / sizeof(int64_t));
  }

  /// Append a row that Python gives.
  Rows& add_tuple(const py::tuple& row) {
    for (const auto& value : row) {
      values_.push_back(integer(value.ptr()));
    }
    return *this;
  }

  /// Give all rows as one array, and forget them.
  py::array_t<int64_t> take() {
    const std::vector<int64_t> taken = std::exchange(values_, {});  // first: making the array may let others run
    return py::array_t<int64_t>(static_cast<py::ssize_t>(taken.size()), taken.data());
  }

  size_t size() const { return values_.size(); }

 private:
  std::vector<int64_t> values_;  // touched under the interpreter's lock only
};

}  // namespace memwatch
