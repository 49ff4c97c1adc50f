// Counts the records that were dropped, nearly always because memory had run out.
//
// Torch and Python call the recorder from places that must not throw: a destructor, the callback of a weak reference.
// There the recorder counts the lost rows and goes on. The session writes the count into the report.
#pragma once

#include <atomic>
#include <cstdint>

namespace memwatch {

/// How many records the open block has dropped: rows, frees of storages, texts of notes.
inline std::atomic<int64_t> losses{0};

inline void count_loss() noexcept { losses.fetch_add(1, std::memory_order_relaxed); }

}  // namespace memwatch
