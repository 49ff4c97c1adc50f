// The allocator's events, taken from c10's reports as they come: the compiled twin of the kineto windows.
//
// c10 reports to the profiler of the thread that allocates or frees. So each thread has a log in the place of its torch
// profiler. Threads of autograd inherit the log as they would inherit a profiler. The log's configuration is
// "disabled", so torch does not take it for a running profiler.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "compat.h"
#include "integers.h"
#include "storages.h"

namespace memwatch {

/// The events of all threads of a block, in the order of the reports.
///
/// c10 reports a free from a destructor, so nothing here may throw. When memory runs out, a program frees much of its
/// memory at once. The log grows when it is half full, so it always has room for as many more events as it holds. If
/// this is not enough, the log counts the lost events until its rows are taken. Its rows are complete up to the first
/// lost event.
class Events {
 public:
  /// The rows since the last call, and the number of events lost after them.
  struct Taken {
    Integers rows;
    int64_t lost = 0, lost_since = 0;  // number of lost events, and the time of the first
  };

  void add(void* block, int64_t nbytes, c10::Device device, int64_t thread, int64_t reserved) noexcept {
    if (muted_) {  // a forked child may find the mutex held for ever
      return;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    last_ = std::max(last_, ticks());  // the processor may read its counter before it gets the lock
    if (nbytes < 0) {
      newest_free_.store(last_, std::memory_order_relaxed);
    }
    note_high(nbytes, number_of(device));
    const auto address = reinterpret_cast<int64_t>(block);
    if (rows_.size() >= grow_at_) {
      grow();
    }
    const std::array<int64_t, kColumns> row{last_, address, nbytes, number_of(device), thread, reserved};
    if (lost_ != 0 || !rows_.append(row)) {
      lost_since_ = lost_ == 0 ? last_ : lost_since_;
      ++lost_;
    }
  }

  /// Return the events since the last call: ticks, address, signed bytes, device number from `number_of`, thread, and
  /// the bytes that the device's allocator then holds.
  Taken take() noexcept {
    Integers fresh;
    static_cast<void>(fresh.reserve(kFewest));
    const std::lock_guard<std::mutex> guard(mutex_);
    grow_at_ = fresh.capacity() / 2;
    return {std::exchange(rows_, std::move(fresh)), std::exchange(lost_, 0), lost_since_};
  }

  /// Count taken events as lost, because memory was too short to pass them on.
  void lose(const Taken& taken) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto count = static_cast<int64_t>(taken.rows.size()) / kColumns;
    if (count + taken.lost != 0) {
      lost_since_ = count != 0 ? taken.rows[0] : taken.lost_since;
      lost_ += count + taken.lost + static_cast<int64_t>(std::exchange(rows_, {}).size()) / kColumns;
      grow_at_ = 0;
    }
  }

  /// Return whether a thread with a log freed memory since `since`.
  static bool any_free_since(int64_t since) { return newest_free_.load(std::memory_order_relaxed) >= since; }

  /// Return the highest live bytes on a device since `since`, minus the live bytes now.
  int64_t above_now(int64_t since, int64_t device) {
    if (muted_) {
      return 0;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    int64_t more = 0, most = 0;
    for (size_t row = rows_.size(); row != 0 && rows_[row - kColumns] >= since; row -= kColumns) {
      if (rows_[row - kColumns + kDevice] == device) {
        more -= rows_[row - kColumns + kBytes];
        most = std::max(most, more);
      }
    }
    return most;
  }

  /// The most live bytes of a device at one instant, counted from the first event, and when that was.
  struct High {
    int64_t device = 0, live_bytes = 0, high_bytes = 0, at = 0;
  };

  /// Return the highest live bytes of each device so far.
  std::vector<High> highs() {
    if (muted_) {
      return {};
    }
    std::vector<High> found;
    found.reserve(kDevices);
    const std::lock_guard<std::mutex> guard(mutex_);
    found.assign(highs_.begin(), highs_.begin() + static_cast<std::ptrdiff_t>(device_count_));
    return found;
  }

  /// Drop the events that will not be taken. In a forked child the mutex may be locked for ever; then the events stay.
  void clear() {
    const std::unique_lock<std::mutex> guard(mutex_, std::try_to_lock);
    if (guard.owns_lock()) {
      rows_ = {};
      grow_at_ = 0;
    }
  }

  /// Start or stop taking events.
  void mute(bool muted) { muted_ = muted; }
  bool is_muted() const { return muted_; }

  static constexpr int64_t kColumns = 6, kBytes = 2, kDevice = 3;
  static int64_t number_of(c10::Device device) {
    return static_cast<int64_t>(device.type()) << 8 | (device.index() & 0xff);
  }
  static std::string name_of(int64_t number) {
    return c10::Device(static_cast<c10::DeviceType>(number >> 8), static_cast<c10::DeviceIndex>(number)).str();
  }

 private:
  std::atomic<bool> muted_{false};
  static inline std::atomic<int64_t> newest_free_{0};  // time of the last row that frees
  std::mutex mutex_;
  int64_t last_ = 0;  // time of the last row: the rows of all threads are in the order of their times
  Integers rows_;
  size_t grow_at_ = 0;                 // the size at which the log grows
  int64_t lost_ = 0, lost_since_ = 0;  // events after the rows that did not fit

  static constexpr size_t kDevices = 32;  // more than one process uses; further devices have no high
  std::array<High, kDevices> highs_;
  size_t device_count_ = 0;

  /// Add an event to the live bytes of its device. Called with the mutex.
  void note_high(int64_t nbytes, int64_t device) noexcept {
    size_t place = 0;
    while (place < device_count_ && highs_[place].device != device) {
      ++place;
    }
    if (place == device_count_) {
      if (device_count_ == highs_.size()) {
        return;
      }
      highs_[device_count_++] = High{.device = device};
    }
    High& there = highs_[place];
    there.live_bytes += nbytes;
    if (there.live_bytes > there.high_bytes) {
      there.high_bytes = there.live_bytes;
      there.at = last_;
    }
  }

  /// Room for 16,384 events: 768 KiB of addresses. Few of these pages are ever written. A guess.
  static constexpr size_t kFewest = size_t{kColumns} << 14;

  /// Make room for as many events again, and for a minimum.
  void grow() noexcept {
    static_cast<void>(rows_.reserve(std::max(rows_.size(), kFewest)));
    // without memory, try again when half of the rest is used: trying at each event would be slow
    const size_t half = rows_.capacity() / 2;
    grow_at_ =
        rows_.size() < half ? half : rows_.size() + std::max((rows_.capacity() - rows_.size()) / 2, kFewest / 16);
  }
};

/// Receives c10's reports in one thread.
class AllocatorLog final : public torch::profiler::impl::ProfilerStateBase {
 public:
  AllocatorLog(std::shared_ptr<Events> events, int64_t thread)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
        events_(std::move(events)),
        thread_(thread) {}

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  /// c10 calls this at every allocation and free. A log whose block is over removes itself here, because only its own
  /// thread can remove it.
  bool memoryProfilingEnabled() const noexcept override {
    if (events_->is_muted()) {
      const std::shared_ptr<Events> kept = events_;  // this object is destroyed below
      leave(kept);
      return false;
    }
    return true;
  }
  void reportMemoryUsage(void* block, int64_t nbytes, size_t, size_t reserved, c10::Device device) noexcept override {
    events_->add(block, nbytes, device, thread_, static_cast<int64_t>(reserved));
  }

  /// Return the bytes that this thread needed on a device since `since` beyond those live now. 0 if this thread has no
  /// log.
  static int64_t above_now(int64_t since, c10::Device device) {
    if (!Events::any_free_since(since)) {  // true for most ops; it avoids looking for this thread's log
      return 0;
    }
    const auto* log = of_this_thread();
    return log == nullptr ? 0 : log->events_->above_now(since, Events::number_of(device));
  }

  /// Put a log on this thread, unless a profiler is there. Return whether it is on.
  static bool enter(const std::shared_ptr<Events>& events, int64_t thread) {
    const auto* log = of_this_thread();
    if (log != nullptr && log->events_->is_muted()) {  // its block is over, and this thread has not allocated since
      const std::shared_ptr<Events> kept = log->events_;
      leave(kept);
    }
    if (compat::profiler_of_this_thread() != nullptr) {
      return false;
    }
    ProfilerStateBase::push(std::make_shared<AllocatorLog>(events, thread));
    return true;
  }

  /// Take the logs of this block off this thread. Return whether there was one.
  static bool leave(const std::shared_ptr<Events>& events) {
    const auto* log = of_this_thread();
    if (log == nullptr || log->events_ != events) {
      return false;
    }
    try {
      ProfilerStateBase::pop(/*global=*/false);
    } catch (const std::exception&) {  // other state lies above it, and its owner must remove that first
    }
    return true;
  }

 private:
  static AllocatorLog* of_this_thread() { return dynamic_cast<AllocatorLog*>(compat::profiler_of_this_thread()); }

  const std::shared_ptr<Events> events_;
  const int64_t thread_;
};

/// Switches logs on and off, each in its own thread.
class Allocator {
 public:
  /// Put a log on this thread, the block's own, unless a profiler is there. Return whether it is on.
  bool open() {
    events_->mute(false);
    const bool heard = AllocatorLog::enter(events_, kNone);
    events_->mute(!heard);
    return heard;
  }

  /// Stop all logs, and take the log off this thread.
  void close() {
    events_->mute(true);
    AllocatorLog::leave(events_);
  }

  /// Stop all logs and drop the events. Threads may keep this object alive.
  void drop() {
    close();
    events_->clear();
  }

  /// Return by device its number, the most live bytes at one instant since `open`, and when that was.
  std::vector<std::array<int64_t, 3>> highs() {
    std::vector<std::array<int64_t, 3>> found;
    for (const Events::High& high : events_->highs()) {
      found.push_back({high.device, high.high_bytes, high.at});
    }
    return found;
  }

  bool enter_thread(int64_t thread) { return !events_->is_muted() && AllocatorLog::enter(events_, thread); }
  bool leave_thread() { return AllocatorLog::leave(events_); }

  /// Return the events since the last call, the number of events lost after them, and the time of the first lost one.
  py::tuple take() {
    Events::Taken taken = events_->take();
    try {
      const auto count = static_cast<py::ssize_t>(taken.rows.size()) / Events::kColumns;
      py::tuple result(3);
      result[1] = python_integer(taken.lost);
      result[2] = python_integer(taken.lost_since);
      result[0] = std::move(taken.rows).as_array({count, Events::kColumns});  // last: nothing can fail after it
      return result;
    } catch (...) {
      events_->lose(taken);
      throw;
    }
  }

 private:
  std::shared_ptr<Events> events_ = std::make_shared<Events>();
};

}  // namespace memwatch
