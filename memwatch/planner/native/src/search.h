// The containers of the exact search, see `order/exact.py`.
#pragma once

#include "arrays.h"

namespace memwatch::planner {

enum Tally : Int { STATES, NODES, STACKED, HEAPED, LEVEL, EXPANDED };
constexpr Int kExpandedMark = -1;

struct Search {
  Words words;
  Ints live;
  Ints lowest_peak;
  Ints node;
  Ints parent;
  Ints op;
  Ints table;
  Ints stack;
  Ints heap_key;
  Ints heap_state;
  Ints tally;

  Int num_words() const { return words.size / live.size; }
  std::uint64_t* words_of(Int state) const { return words.data + state * num_words(); }

  /// Queue the empty downset, which no path leads to.
  void begin(Int live_bytes) const {
    const Int start = remember(words.data, -1 - find(words.data), live_bytes);
    node[start] = -1;
    stack[0] = start;
    tally[STACKED] = 1;
  }

  /// The state of a downset or, if it is new, -1 - slot with its slot in the table.
  Int find(const std::uint64_t* downset) const {
    std::uint64_t mixed = 1469598103934665603ULL;
    for (Int at = 0; at < num_words(); ++at) {
      mixed = (mixed ^ downset[at]) * 0x9E3779B97F4A7C15ULL;
      mixed ^= mixed >> 29;
    }
    const std::uint64_t mask = static_cast<std::uint64_t>(table.size) - 1;
    for (std::uint64_t slot = mixed & mask;; slot = (slot + 1) & mask) {
      const Int state = table[static_cast<Int>(slot)] - 1;
      if (state < 0) return -1 - static_cast<Int>(slot);
      if (std::equal(downset, downset + num_words(), words_of(state))) return state;
    }
  }

  Int remember(const std::uint64_t* downset, Int slot, Int live_bytes) const {
    const Int state = tally[STATES]++;
    std::copy_n(downset, num_words(), words_of(state));
    live[state] = live_bytes;
    table[slot] = state + 1;
    return state;
  }

  Int new_node(Int before, Int last) const {
    const Int made = tally[NODES]++;
    parent[made] = before;
    op[made] = last;
    return made;
  }

  void push(Int key, Int state) const {
    Int hole = tally[HEAPED]++;
    while (hole) {
      const Int above = (hole - 1) / 2;
      if (heap_key[above] <= key) break;
      heap_key[hole] = heap_key[above];
      heap_state[hole] = heap_state[above];
      hole = above;
    }
    heap_key[hole] = key;
    heap_state[hole] = state;
  }

  Int pop() const {
    const Int result = heap_state[0], size = --tally[HEAPED], key = heap_key[size], state = heap_state[size];
    Int hole = 0;
    while (2 * hole + 1 < size) {
      Int below = 2 * hole + 1;
      if (below + 1 < size && heap_key[below + 1] < heap_key[below]) ++below;
      if (heap_key[below] >= key) break;
      heap_key[hole] = heap_key[below];
      heap_state[hole] = heap_state[below];
      hole = below;
    }
    heap_key[hole] = key;
    heap_state[hole] = state;
    return result;
  }
};

}  // namespace memwatch::planner
