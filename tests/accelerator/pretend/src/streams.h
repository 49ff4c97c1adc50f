// Two devices with two streams each. Ops run as they are called. A test can hold a stream: then its later work counts
// as not done until the test lets the stream go or waits for it. So a test decides when a stream still uses a block.
#pragma once

#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <mutex>

namespace pretend {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr c10::StreamId kStreams = 2;

inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local std::array<c10::StreamId, kDevices> current_stream{};

/// A point in the work of a stream, as an event records it.
struct Marker {
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
  int64_t ticket = 0;
};

class Streams {
 public:
  static Streams& all() {
    static auto* streams = new Streams();
    return *streams;
  }

  Marker mark(c10::DeviceIndex device, c10::StreamId stream) {
    const std::lock_guard<std::mutex> guard(mutex_);
    Queue& queue = at(device, stream);
    ++queue.given;
    if (!queue.held) {
      queue.done = queue.given;
    }
    return {device, stream, queue.given};
  }

  bool has_passed(const Marker& marker) {
    const std::lock_guard<std::mutex> guard(mutex_);
    return at(marker.device, marker.stream).done >= marker.ticket;
  }

  bool is_idle(c10::DeviceIndex device, c10::StreamId stream) {
    const std::lock_guard<std::mutex> guard(mutex_);
    return at(device, stream).done == at(device, stream).given;
  }

  void hold(c10::DeviceIndex device, c10::StreamId stream, bool held) {
    const std::lock_guard<std::mutex> guard(mutex_);
    Queue& queue = at(device, stream);
    queue.held = held;
    if (!held) {
      queue.done = queue.given;
    }
  }

  /// Do all work of the stream. A wait for a stream does this.
  void finish(c10::DeviceIndex device, c10::StreamId stream) {
    const std::lock_guard<std::mutex> guard(mutex_);
    at(device, stream).done = at(device, stream).given;
  }

  void finish(c10::DeviceIndex device) {
    for (c10::StreamId stream = 0; stream < kStreams; ++stream) {
      finish(device, stream);
    }
  }

 private:
  struct Queue {
    int64_t given = 0, done = 0;
    bool held = false;
  };

  Queue& at(c10::DeviceIndex device, c10::StreamId stream) { return queues_.at(device).at(stream); }

  std::mutex mutex_;
  std::array<std::array<Queue, kStreams>, kDevices> queues_;
};

}  // namespace pretend
