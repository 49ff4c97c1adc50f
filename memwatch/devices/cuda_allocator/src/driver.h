// The simulated device of the stand-in driver: a number of bytes, and how many of them are taken.

#pragma once

#include <cstdint>

namespace memwatch {

struct Device {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t most_used_bytes = 0;
  // requests that the device refused because it was full
  int64_t refusals = 0;
};

extern Device device;

}  // namespace memwatch
