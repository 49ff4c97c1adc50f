// The allocator's own account, taken from c10's reports as they come: the compiled twin of the kineto windows.
//
// It stands where a torch profiler of the thread would stand, so the threads of autograd inherit it as they would
// one. It is no profiler for who asks, its configuration says "disabled".
#pragma once

#include <atomic>
#include <mutex>

#include "compat.h"
#include "storages.h"

namespace memwatch {

class AllocatorLog final : public torch::profiler::impl::ProfilerStateBase {
 public:
  AllocatorLog()
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)) {}

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  bool memoryProfilingEnabled() const override { return !muted_; }
  void reportMemoryUsage(void* block, int64_t nbytes, size_t, size_t, c10::Device device) override {
    const int64_t at = ticks();
    if (muted_) {  // a forked child may find the mutex held for ever
      return;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    events_.insert(events_.end(), {at, reinterpret_cast<int64_t>(block), nbytes, number_of(device)});
  }

  /// Give the events since the last time: ticks, address, signed bytes, device as `number_of` tells it.
  std::vector<int64_t> take() {
    const std::lock_guard<std::mutex> guard(mutex_);
    return std::exchange(events_, {});
  }

  /// Take events, or no more.
  void mute(bool muted) { muted_ = muted; }

  static int64_t number_of(c10::Device device) {
    return static_cast<int64_t>(device.type()) << 8 | (device.index() & 0xff);
  }
  static std::string name_of(int64_t number) {
    return c10::Device(static_cast<c10::DeviceType>(number >> 8), static_cast<c10::DeviceIndex>(number)).str();
  }

 private:
  std::atomic<bool> muted_{false};
  std::mutex mutex_;
  std::vector<int64_t> events_;
};

/// Switches a log on and off in the thread that owns it.
class Allocator {
 public:
  void open() {
    log_->mute(false);
    torch::profiler::impl::ProfilerStateBase::push(log_);
  }

  /// Be quiet wherever it is still known, and leave this thread.
  void close() {
    log_->mute(true);
    if (compat::profiler_of_this_thread() == log_.get()) {
      torch::profiler::impl::ProfilerStateBase::pop(/*global=*/false);
    }
  }

  py::array_t<int64_t> take() {
    const std::vector<int64_t> events = log_->take();
    return py::array_t<int64_t>({static_cast<py::ssize_t>(events.size() / 4), py::ssize_t{4}}, events.data());
  }

 private:
  std::shared_ptr<AllocatorLog> log_ = std::make_shared<AllocatorLog>();
};

}  // namespace memwatch
