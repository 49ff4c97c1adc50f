// Random numbers: xorshift64*, with the state in an array of the caller.
#pragma once

#include "arrays.h"

namespace memwatch::planner {

inline std::uint64_t next_word(Words state) {
  std::uint64_t word = state[0];
  word ^= word >> 12;
  word ^= word << 25;
  word ^= word >> 27;
  state[0] = word;
  return word * 2685821657736338717ULL;
}

inline Int random_below(Words state, Int limit) { return static_cast<Int>(next_word(state) >> 33) % limit; }

inline double random_unit(Words state) { return static_cast<double>(next_word(state) >> 11) / 9007199254740992.0; }

}  // namespace memwatch::planner
