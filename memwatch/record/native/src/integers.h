// A growing run of 64-bit integers. Every op appends to it. When it grows, the C library moves its pages if it can.
#pragma once

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
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

  /// Append the integers of a struct or an array. Return false if memory is too short.
  template <typename Row>
  bool append(const Row& row) noexcept {
    constexpr size_t kCount = sizeof(Row) / sizeof(int64_t);
    static_assert(sizeof(Row) % sizeof(int64_t) == 0 && kCount <= kLeast);
    if (!reserve(kCount)) {
      return false;
    }
    std::memcpy(values_.get() + size_, &row, sizeof(Row));  // of constant size: a few instructions
    size_ += kCount;
    return true;
  }

  /// Append another run; return false if memory is too short.
  bool extend(const Integers& other) noexcept {
    if (!reserve(other.size_)) {
      return false;
    }
    if (other.size_ != 0) {
      std::memcpy(values_.get() + size_, other.values_.get(), other.size_ * sizeof(int64_t));
    }
    size_ += other.size_;
    return true;
  }

  /// Make room for some more integers; return false if memory has run out.
  bool reserve(size_t more) noexcept {
    const size_t wanted = size_ + more;
    return wanted <= capacity_ || resize(std::max({2 * capacity_, wanted, kLeast})) || resize(wanted);
  }

  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }
  int64_t operator[](size_t place) const { return values_[place]; }

  /// Return the integers as an array that owns them, without a copy. They stay here if that fails.
  py::array_t<int64_t> as_array(std::vector<py::ssize_t> shape) && {
    if (size_ != 0) {
      static_cast<void>(resize(size_));  // if that fails, the array keeps the room
    }
    auto owner = std::make_unique<Integers>();
    const py::capsule kept(owner.get(), [](void* given) { delete static_cast<Integers*>(given); });
    Integers& owned = *owner.release();
    owned = std::move(*this);
    try {
      return py::array_t<int64_t>(std::move(shape), owned.values_.get(), kept);
    } catch (...) {
      *this = std::move(owned);
      throw;
    }
  }

 private:
  static constexpr size_t kLeast = 512;

  bool resize(size_t capacity) noexcept {
    void* moved = std::realloc(values_.get(), capacity * sizeof(int64_t));
    if (moved == nullptr) {
      return false;
    }
    static_cast<void>(values_.release());
    values_.reset(static_cast<int64_t*>(moved));
    capacity_ = capacity;
    return true;
  }

  struct Free {
    void operator()(int64_t* values) const { std::free(values); }
  };
  std::unique_ptr<int64_t[], Free> values_;
  size_t size_ = 0, capacity_ = 0;
};

}  // namespace memwatch
