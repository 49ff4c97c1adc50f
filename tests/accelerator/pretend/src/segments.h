// The memory of one device: segments of malloc's memory, cut into blocks by the rules of CUDA's allocator.
#pragma once

#include <c10/util/Exception.h>

#include <cstdlib>
#include <map>
#include <vector>

#include "streams.h"

namespace pretend {

constexpr size_t kRounding = 512;
constexpr size_t kLargestSmall = 1 << 20;
constexpr size_t kSmallSegment = 2 << 20;
constexpr size_t kLargeSegment = 20 << 20;
constexpr size_t kLeastOwnSegment = 10 << 20;

inline size_t rounded(size_t nbytes, size_t to) { return nbytes == 0 ? to : (nbytes + to - 1) / to * to; }
inline bool is_small(size_t block_bytes) { return block_bytes <= kLargestSmall; }
inline size_t segment_bytes(size_t block_bytes) {
  if (is_small(block_bytes)) {
    return kSmallSegment;
  }
  return block_bytes < kLeastOwnSegment ? kLargeSegment : rounded(block_bytes, kSmallSegment);
}

enum class State { kFree, kAllocated, kWaiting };  // waiting: freed, while a stream may still use it

struct Block {
  size_t nbytes = 0;
  size_t requested = 0;
  State state = State::kFree;
  std::vector<c10::StreamId> used_by;  // streams beside the segment's own
  std::vector<Marker> waits_for;
};

struct Segment {
  size_t nbytes = 0;
  c10::StreamId stream = 0;
  c10::MempoolId_t pool = {0, 0};
  bool small = false;
  std::map<char*, Block> blocks;

  bool is_unused() const { return blocks.size() == 1 && blocks.begin()->second.state == State::kFree; }
};

class Segments {
 public:
  struct Place {
    Segment* segment = nullptr;
    char* address = nullptr;

    explicit operator bool() const { return segment != nullptr; }
    Block& block() const { return segment->blocks.at(address); }
  };

  /// The smallest free block of a stream and a pool that is large enough, the lowest of these.
  Place best_fit(c10::StreamId stream, c10::MempoolId_t pool, size_t nbytes) {
    Place best;
    for (auto& [_, segment] : segments_) {
      if (segment.stream != stream || segment.pool != pool || segment.small != is_small(nbytes)) {
        continue;
      }
      for (auto& [address, block] : segment.blocks) {
        const bool fits = block.state == State::kFree && block.nbytes >= nbytes;
        if (fits && (!best || block.nbytes < best.block().nbytes)) {
          best = {&segment, address};
        }
      }
    }
    return best;
  }

  Place add(c10::StreamId stream, c10::MempoolId_t pool, size_t block_bytes) {
    const size_t nbytes = segment_bytes(block_bytes);
    auto* address = static_cast<char*>(std::aligned_alloc(kRounding, nbytes));
    TORCH_CHECK(address != nullptr, "the host has no memory for the pretend accelerator");
    Segment& segment = segments_[address];
    segment.nbytes = nbytes;
    segment.stream = stream;
    segment.pool = pool;
    segment.small = is_small(block_bytes);
    segment.blocks[address].nbytes = nbytes;
    return {&segment, address};
  }

  /// Cut off the end of a block beyond some bytes, if other requests can use it.
  static void split(const Place& place, size_t nbytes) {
    Block& block = place.block();
    const size_t rest = block.nbytes - nbytes;
    if (place.segment->small ? rest >= kRounding : rest > kLargestSmall) {
      place.segment->blocks[place.address + nbytes].nbytes = rest;
      block.nbytes = nbytes;
    }
  }

  /// Make a block free, and join it with its free neighbours.
  static void merge(const Place& place) {
    auto& blocks = place.segment->blocks;
    auto at = blocks.find(place.address);
    at->second = Block{at->second.nbytes};
    const auto next = std::next(at);
    if (next != blocks.end() && next->second.state == State::kFree) {
      at->second.nbytes += next->second.nbytes;
      blocks.erase(next);
    }
    if (at != blocks.begin() && std::prev(at)->second.state == State::kFree) {
      std::prev(at)->second.nbytes += at->second.nbytes;
      blocks.erase(at);
    }
  }

  Place find(char* address) {
    const auto after = segments_.upper_bound(address);
    TORCH_INTERNAL_ASSERT(after != segments_.begin(), "no block of the pretend accelerator");
    return {&std::prev(after)->second, address};
  }

  /// Give unused segments back; call `gone` with each.
  template <typename F>
  void release_unused(F gone) {
    for (auto each = segments_.begin(); each != segments_.end();) {
      if (each->second.is_unused()) {
        gone(each->first, each->second);
        std::free(each->first);
        each = segments_.erase(each);
      } else {
        ++each;
      }
    }
  }

  template <typename F>
  void each_block(F visit) {
    for (auto& [_, segment] : segments_) {
      std::vector<char*> addresses;  // the visit may merge blocks
      for (auto& [address, block] : segment.blocks) {
        addresses.push_back(address);
      }
      for (char* address : addresses) {
        if (segment.blocks.count(address) != 0) {
          visit(Place{&segment, address});
        }
      }
    }
  }

  const std::map<char*, Segment>& all() const { return segments_; }

 private:
  std::map<char*, Segment> segments_;
};

}  // namespace pretend
