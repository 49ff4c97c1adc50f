// Pinned memory of the host: malloc's memory, with a list of the blocks. As with CUDA, the profiler gets no report.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace pretend {

class Pinned final : public c10::Allocator {
 public:
  static Pinned& only() {
    static auto* pinned = new Pinned();
    return *pinned;
  }

  c10::DataPtr allocate(size_t nbytes) override {
    void* address = nbytes == 0 ? nullptr : std::malloc(nbytes);
    const std::lock_guard<std::mutex> guard(mutex_);
    sizes_[static_cast<const char*>(address)] = nbytes;
    return {address, address, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }

  bool holds(const void* address) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto after = sizes_.upper_bound(static_cast<const char*>(address));
    return after != sizes_.begin() && address < std::prev(after)->first + std::prev(after)->second;
  }
  size_t nbytes() {
    const std::lock_guard<std::mutex> guard(mutex_);
    size_t sum = 0;
    for (const auto& [_, nbytes] : sizes_) {
      sum += nbytes;
    }
    return sum;
  }

 private:
  static void give_back(void* address) {
    {
      const std::lock_guard<std::mutex> guard(only().mutex_);
      only().sizes_.erase(static_cast<const char*>(address));
    }
    std::free(address);
  }

  std::mutex mutex_;
  std::map<const char*, size_t> sizes_;
};

}  // namespace pretend
