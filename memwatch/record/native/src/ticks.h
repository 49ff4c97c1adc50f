// The recorder's clock, as in memwatch/record/clock.py.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <chrono>
#include <cstdint>

namespace memwatch {

/// Whether the clock is torch's counter; else it is `time.perf_counter_ns`. Python and C++ read the same clock.
inline bool ticks_are_torchs = true;

inline int64_t ticks() {
  if (ticks_are_torchs) {
    return static_cast<int64_t>(c10::getApproximateTime());
  }
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace memwatch
