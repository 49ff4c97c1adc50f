// Arrays of the caller, and how values arrive: a tuple is a row of words of 8 bytes, an array in it is two of them.
#pragma once

#include <cstdint>
#include <vector>

namespace memwatch::planner {

using Int = std::int64_t;

/// An array of the caller; one of two dimensions lies row after row.
template <class T>
struct Array {
  T* data;
  Int size;

  T& operator[](Int at) const { return data[at]; }
  T* begin() const { return data; }
  T* end() const { return data + size; }
};

using Ints = Array<Int>;
using Reals = Array<double>;
using Words = Array<std::uint64_t>;
using Bytes = Array<std::uint8_t>;

template <class T>
Array<T> view(std::vector<T>& values) {
  return {values.data(), static_cast<Int>(values.size())};
}

}  // namespace memwatch::planner
