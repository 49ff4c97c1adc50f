// The rotor dynamic program, see `recompute/seeds.py`.
#pragma once

#include <limits>

#include "arrays.h"

namespace memwatch::planner {

/// A chain, and the tables (first, last, memory) that are filled for it.
struct Chain {
  Reals costs;
  Ints checkpoint;
  Ints saved;
  Int slots;
  Reals best;
  Ints choice;

  Int at(Int first, Int last, Int memory) const { return (first * costs.size + last) * (slots + 1) + memory; }
};

inline void fill_part(const Chain& chain, Int first, Int last, Int memory) {
  double value = std::numeric_limits<double>::infinity();
  Int chosen = -1;
  if (chain.saved[first] <= memory) {
    value = last > first ? chain.best[chain.at(first + 1, last, memory - chain.saved[first])] : 0.0;
    chosen = first;
  }
  double forward = 0.0;
  for (Int split = first + 1; split <= last; ++split) {
    forward += chain.costs[split - 1];
    if (chain.checkpoint[split - 1] > memory) continue;
    // the stages up to the split run again when their turn comes
    const double price = forward + chain.best[chain.at(split, last, memory - chain.checkpoint[split - 1])] +
                         chain.best[chain.at(first, split - 1, memory)];
    if (price < value) {
      value = price;
      chosen = split;
    }
  }
  chain.best[chain.at(first, last, memory)] = value;
  chain.choice[chain.at(first, last, memory)] = chosen;
}

inline void fill_chain(const Chain& chain) {
  for (Int span = 0; span < chain.costs.size; ++span) {
    for (Int first = 0; first + span < chain.costs.size; ++first) {
      for (Int memory = 0; memory <= chain.slots; ++memory) fill_part(chain, first, first + span, memory);
    }
  }
}

}  // namespace memwatch::planner
