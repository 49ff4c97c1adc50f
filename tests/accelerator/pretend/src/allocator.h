// The caching allocator. It counts, reports to the profiler, and writes a history in the same way as CUDA's.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "segments.h"

namespace pretend {

using c10::CachingDeviceAllocator::DeviceStats;

/// One entry of the memory history.
struct Entry {
  std::string action;
  size_t address = 0;  // of "oom" the bytes that the device had left
  size_t nbytes = 0;
  c10::StreamId stream = 0;
  int64_t time_us = 0;
};

class Allocator final : public c10::DeviceAllocator {
 public:
  static Allocator& only() {
    static auto* allocator = new Allocator();
    return *allocator;
  }

  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device device(kType, current_device);
    void* address = nbytes == 0 ? nullptr : take(device.index(), current_stream.at(device.index()), nbytes);
    return {address, address, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { std::memcpy(to, from, nbytes); }

  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const std::lock_guard<std::recursive_mutex> guard(mutex_);
    if (data.get() != nullptr) {
      const auto place = of(data.device().index()).segments.find(static_cast<char*>(data.get()));
      if (stream.id() != place.segment->stream) {
        place.block().used_by.push_back(stream.id());
      }
    }
  }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    const std::lock_guard<std::recursive_mutex> guard(mutex_);
    for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
      empty(device);
    }
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard<std::recursive_mutex> guard(mutex_);
    return of(device).stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each_stat(device, [](c10::CachingAllocator::Stat& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    each_stat(device, [](c10::CachingAllocator::Stat& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::lock_guard<std::recursive_mutex> guard(mutex_);
    const size_t limit = of(device).limit;
    return {limit - taken(device), limit};
  }

  void set_limit(c10::DeviceIndex device, size_t nbytes) { of(device).limit = nbytes; }
  /// Let others have so many bytes of a device: another process, or a library without this allocator.
  void set_outside(c10::DeviceIndex device, size_t nbytes) { of(device).outside = nbytes; }
  /// Give the next blocks of a device memory of a pool.
  void set_pool(c10::DeviceIndex device, c10::MempoolId_t pool) { of(device).pool = pool; }
  /// Begin a history, or end it.
  void record_history(bool recorded) {
    const std::lock_guard<std::recursive_mutex> guard(mutex_);
    for (OfDevice& device : devices_) {
      device.history.clear();
    }
    recorded_ = recorded;
  }

  /// Give read access to the segments and the history of a device.
  template <typename F>
  void look(c10::DeviceIndex device, F visit) {
    const std::lock_guard<std::recursive_mutex> guard(mutex_);
    visit(of(device).segments.all(), of(device).history);
  }

 private:
  struct OfDevice {
    Segments segments;
    DeviceStats stats;
    size_t limit = std::numeric_limits<int64_t>::max();
    size_t outside = 0;
    c10::MempoolId_t pool = {0, 0};
    std::vector<Entry> history;
  };

  static void give_back(void* address) {
    if (address != nullptr) {
      only().release(static_cast<char*>(address));
    }
  }

  void* take(c10::DeviceIndex device, c10::StreamId stream, size_t requested) {
    const std::lock_guard<std::recursive_mutex> guard(mutex_);
    const size_t nbytes = rounded(requested, kRounding);
    complete_frees(device);
    auto place = of(device).segments.best_fit(stream, of(device).pool, nbytes);
    if (!place) {
      make_room(device, stream, segment_bytes(nbytes), requested);
      place = of(device).segments.add(stream, of(device).pool, nbytes);
      count(device, &DeviceStats::segment, place.segment->small, 1);
      count(device, &DeviceStats::reserved_bytes, place.segment->small, place.segment->nbytes);
      note(device, {"segment_alloc", reinterpret_cast<size_t>(place.address), place.segment->nbytes, stream});
    }
    Segments::split(place, nbytes);
    Block& block = place.block();
    block.state = State::kAllocated;
    block.requested = requested;
    const bool small = place.segment->small;
    count(device, &DeviceStats::allocation, small, 1);
    count(device, &DeviceStats::allocated_bytes, small, block.nbytes);
    count(device, &DeviceStats::active, small, 1);
    count(device, &DeviceStats::active_bytes, small, block.nbytes);
    count(device, &DeviceStats::requested_bytes, small, requested);
    note(device, {"alloc", reinterpret_cast<size_t>(place.address), requested, stream});
    report(device, place.address, static_cast<int64_t>(block.nbytes));
    return place.address;
  }

  /// Free a block at once, or when the streams that use it have come so far; as allocated it no longer counts.
  void release(char* address) {
    const std::lock_guard<std::recursive_mutex> guard(mutex_);
    const auto device = device_of(address);
    const auto place = of(device).segments.find(address);
    Block& block = place.block();
    const bool small = place.segment->small;
    const auto nbytes = static_cast<int64_t>(block.nbytes);
    count(device, &DeviceStats::allocation, small, -1);
    count(device, &DeviceStats::allocated_bytes, small, -nbytes);
    note(device, {"free_requested", reinterpret_cast<size_t>(address), block.requested, place.segment->stream});
    block.state = State::kWaiting;
    for (const auto stream : block.used_by) {
      block.waits_for.push_back(Streams::all().mark(device, stream));
    }
    if (block.waits_for.empty()) {
      complete(device, place);
    }
    report(device, address, -nbytes);
  }

  void complete(c10::DeviceIndex device, const Segments::Place& place) {
    const Block& block = place.block();
    const bool small = place.segment->small;
    count(device, &DeviceStats::active, small, -1);
    count(device, &DeviceStats::active_bytes, small, -static_cast<int64_t>(block.nbytes));
    count(device, &DeviceStats::requested_bytes, small, -static_cast<int64_t>(block.requested));
    const auto address = reinterpret_cast<size_t>(place.address);
    note(device, {"free_completed", address, block.requested, place.segment->stream});
    Segments::merge(place);
  }

  void complete_frees(c10::DeviceIndex device) {
    of(device).segments.each_block([&](const Segments::Place& place) {
      const Block& block = place.block();
      if (block.state != State::kWaiting) {
        return;
      }
      for (const Marker& marker : block.waits_for) {
        if (!Streams::all().has_passed(marker)) {
          return;
        }
      }
      complete(device, place);
    });
  }

  /// See that the device has so many bytes for another segment.
  void make_room(c10::DeviceIndex device, c10::StreamId stream, size_t nbytes, size_t requested) {
    if (taken(device) + nbytes <= of(device).limit) {
      return;
    }
    ++of(device).stats.num_alloc_retries;
    empty(device);
    if (taken(device) + nbytes <= of(device).limit) {
      return;
    }
    ++of(device).stats.num_ooms;
    const size_t left = of(device).limit - std::min(of(device).limit, taken(device));
    note(device, {"oom", left, requested, stream});
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(requested), allocated(device), reserved(device),
                                     c10::Device(kType, device));
    TORCH_CHECK_WITH(OutOfMemoryError, false, "pretend out of memory. Tried to allocate ", requested,
                     " bytes on device ", static_cast<int>(device), ", which has ", left, " bytes left; ",
                     allocated(device), " of ", reserved(device), " reserved bytes are allocated.");
  }

  void empty(c10::DeviceIndex device) {
    Streams::all().finish(device);
    complete_frees(device);
    of(device).segments.release_unused([&](char* address, const Segment& segment) {
      count(device, &DeviceStats::segment, segment.small, -1);
      count(device, &DeviceStats::reserved_bytes, segment.small, -static_cast<int64_t>(segment.nbytes));
      note(device, {"segment_free", reinterpret_cast<size_t>(address), segment.nbytes, segment.stream});
    });
  }

  void count(c10::DeviceIndex device, c10::CachingAllocator::StatArray DeviceStats::* stats, bool small, int64_t by) {
    using c10::CachingAllocator::StatType;
    for (const auto type : {StatType::AGGREGATE, small ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
      auto& stat = (of(device).stats.*stats)[static_cast<size_t>(type)];
      by >= 0 ? stat.increase(static_cast<size_t>(by)) : stat.decrease(static_cast<size_t>(-by));
    }
  }

  template <typename F>
  void each_stat(c10::DeviceIndex device, F change) {
    const std::lock_guard<std::recursive_mutex> guard(mutex_);
    DeviceStats& stats = of(device).stats;
    for (auto* array : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes, &stats.reserved_bytes,
                        &stats.active_bytes, &stats.requested_bytes}) {
      for (auto& stat : *array) {
        change(stat);
      }
    }
  }

  void report(c10::DeviceIndex device, char* address, int64_t nbytes) {
    c10::reportMemoryUsageToProfiler(address, nbytes, allocated(device), reserved(device), c10::Device(kType, device));
  }

  void note(c10::DeviceIndex device, Entry entry) {
    if (recorded_) {
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      entry.time_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
      of(device).history.push_back(std::move(entry));
    }
  }

  c10::DeviceIndex device_of(const char* address) {
    for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
      for (const auto& [start, segment] : of(device).segments.all()) {
        if (start <= address && address < start + segment.nbytes) {
          return device;
        }
      }
    }
    TORCH_INTERNAL_ASSERT(false, "no memory of the pretend accelerator");
  }

  size_t allocated(c10::DeviceIndex device) { return of(device).stats.allocated_bytes[0].current; }
  size_t reserved(c10::DeviceIndex device) { return of(device).stats.reserved_bytes[0].current; }
  size_t taken(c10::DeviceIndex device) { return reserved(device) + of(device).outside; }
  OfDevice& of(c10::DeviceIndex device) { return devices_.at(device); }

  std::recursive_mutex mutex_;
  std::array<OfDevice, kDevices> devices_;
  bool recorded_ = false;
};

}  // namespace pretend
