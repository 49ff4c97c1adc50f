// A table's rows as one flat run of 64-bit integers: the compiled twin of memwatch/record/tables/rows.py.
#pragma once

#include <type_traits>
#include <utility>

#include "integers.h"
#include "schema.h"

namespace memwatch {

class Rows {
 public:
  /// Append a row of schema.h.
  template <typename Row>
  void add(const Row& row) {
    static_assert(std::is_standard_layout_v<Row>);
    values_.append(row);
  }

  /// Append a row that Python gives.
  Rows& add_tuple(const py::tuple& row) {
    for (const auto& value : row) {
      values_.append(integer(value.ptr()));
    }
    return *this;
  }

  /// Give all rows as one array, and forget them.
  py::array_t<int64_t> take() {
    Integers taken = std::exchange(values_, {});  // first: making the array may let others run
    const auto count = static_cast<py::ssize_t>(taken.size());
    return std::move(taken).as_array({count});
  }

  size_t size() const { return values_.size(); }

 private:
  Integers values_;  // touched under the interpreter's lock only
};

}  // namespace memwatch
