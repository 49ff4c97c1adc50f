// The library `_host_count`: wraps the host's allocator and counts its allocations in every thread.
//
// torch's profiler sees only the allocations and frees of the thread that started it. But a thread of gloo may free a
// buffer.

#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <mutex>

namespace {

class Counting final : public c10::Allocator {
 public:
  explicit Counting(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t nbytes) override {
    c10::DataPtr data = inner_->allocate(nbytes);
    void* start = data.get();
    const c10::Device device = data.device();
    count(static_cast<int64_t>(nbytes));
    return {start, new Block{std::move(data), static_cast<int64_t>(nbytes), this}, &free_block, device};
  }

  void copy_data(void* target, const void* source, std::size_t nbytes) const override {
    default_copy_data(target, source, nbytes);
  }

  void begin() {
    const std::lock_guard<std::mutex> guard(lock_);
    at_begin_ = most_ = live_;
  }

  int64_t peak_increase_bytes() {
    const std::lock_guard<std::mutex> guard(lock_);
    return most_ - at_begin_;
  }

 private:
  struct Block {
    c10::DataPtr data;
    int64_t nbytes;
    Counting* counting;
  };

  static void free_block(void* context) {
    Block* block = static_cast<Block*>(context);
    block->counting->count(-block->nbytes);
    delete block;
  }

  void count(int64_t nbytes) {
    const std::lock_guard<std::mutex> guard(lock_);
    live_ += nbytes;
    most_ = std::max(most_, live_);
  }

  c10::Allocator* inner_;
  std::mutex lock_;
  int64_t live_ = 0, most_ = 0, at_begin_ = 0;
};

Counting* counting = nullptr;

}  // namespace

extern "C" {

/// Count from now on, for the rest of the process.
__attribute__((visibility("default"))) void install() {
  counting = new Counting(c10::GetCPUAllocator());
  c10::SetCPUAllocator(counting);
}

/// Begin a new peak with the living bytes.
__attribute__((visibility("default"))) void begin() { counting->begin(); }

/// Return how many bytes more than at the last `begin` were alive at the same instant.
__attribute__((visibility("default"))) int64_t peak_increase_bytes() { return counting->peak_increase_bytes(); }
}
