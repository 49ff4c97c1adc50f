// A run of 64-bit integers that is appended to at every op: its growth moves pages where the C library can.
#pragma once

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "python.h"

namespace memwatch {

class Integers {
 public:
  Integers() = default;
  Integers(Integers&& other) noexcept
      : values_(std::move(other.values_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Integers& operator=(Integers&& other) noexcept {
    values_ = std::move(other.values_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  /// Append the integers that an object consists of, as a struct or an array of them.
  template <typename Row>
  void append(const Row& row) {
    constexpr size_t kCount = sizeof(Row) / sizeof(int64_t);
    static_assert(sizeof(Row) % sizeof(int64_t) == 0 && kCount <= kLeast);
    if (size_ + kCount > capacity_) {
      resize(std::max(2 * capacity_, kLeast));
    }
    std::memcpy(values_.get() + size_, &row, sizeof(Row));  // of constant size: a few instructions
    size_ += kCount;
  }

  size_t size() const { return size_; }
  int64_t operator[](size_t place) const { return values_[place]; }

  /// Give the integers as an array that owns them, without a copy.
  py::array_t<int64_t> as_array(std::vector<py::ssize_t> shape) && {
    if (size_ != 0) {
      resize(size_);
    }
    auto owner = std::make_unique<Integers>(std::move(*this));
    const int64_t* values = owner->values_.get();
    const py::capsule kept(owner.get(), [](void* given) { delete static_cast<Integers*>(given); });
    owner.release();
    return py::array_t<int64_t>(std::move(shape), values, kept);
  }

 private:
  static constexpr size_t kLeast = 512;

  void resize(size_t capacity) {
    void* moved = std::realloc(values_.get(), capacity * sizeof(int64_t));
    if (moved == nullptr) {
      throw std::bad_alloc();
    }
    static_cast<void>(values_.release());
    values_.reset(static_cast<int64_t*>(moved));
    capacity_ = capacity;
  }

  struct Free {
    void operator()(int64_t* values) const { std::free(values); }
  };
  std::unique_ptr<int64_t[], Free> values_;
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace memwatch
