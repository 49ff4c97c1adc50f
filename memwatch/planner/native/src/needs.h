// Bytes that must be live while an op runs, whatever the order; see `order/exact.py` and `order/bounds.py`.
#pragma once

#include "problem.h"

namespace memwatch::planner {

struct Needs {
  Ints certain;
  Ints pending;
};

inline void ancestors(const Problem& problem, Ints order, Bytes before) {
  const Int num_ops = order.size;
  for (const Int op : order) {
    std::uint8_t* row = before.data + op * num_ops;
    row[op] = 1;
    for (Int entry = problem.pred_ptr[op]; entry < problem.pred_ptr[op + 1]; ++entry) {
      const std::uint8_t* other = before.data + problem.pred[entry] * num_ops;
      for (Int at = 0; at < num_ops; ++at) row[at] |= other[at];
    }
  }
}

inline void needs_matrix(const Problem& problem, Bytes before, const Needs& needs) {
  const Int num_ops = problem.num_ops();
  for (Int op = 0; op < num_ops; ++op) needs.certain[op] = problem.workspace[op] + problem.always;
  for (Int buffer = 0; buffer < problem.num_buffers(); ++buffer) {
    for (Int op = 0; op < num_ops; ++op) {
      bool born = problem.at_start[buffer] == 1, needed = problem.at_end[buffer] == 1;
      for (Int entry = problem.user_ptr[buffer]; entry < problem.user_ptr[buffer + 1]; ++entry) {
        const Int user = problem.user[entry];
        born = born || before[op * num_ops + user];
        needed = needed || before[user * num_ops + op];
      }
      if (!needed) continue;
      if (born) {
        needs.certain[op] += problem.nbytes[buffer];
      } else {
        needs.pending[buffer * num_ops + op] = problem.nbytes[buffer];
      }
    }
  }
}

/// Bytes that must be live while each chosen op runs, at most 64 of them: one per bit of a word.
inline void must_live(const Problem& problem, Ints order, Ints chosen, Ints total) {
  std::vector<std::uint64_t> above(order.size), below(order.size);
  for (Int at = 0; at < chosen.size; ++at) {
    above[chosen[at]] = below[chosen[at]] = std::uint64_t{1} << at;
    total[at] = problem.workspace[chosen[at]] + problem.always;
  }
  for (const Int op : order) {
    for (Int entry = problem.pred_ptr[op]; entry < problem.pred_ptr[op + 1]; ++entry) {
      above[op] |= above[problem.pred[entry]];
    }
  }
  for (Int position = order.size - 1; position >= 0; --position) {
    const Int op = order[position];
    for (Int entry = problem.succ_ptr[op]; entry < problem.succ_ptr[op + 1]; ++entry) {
      below[op] |= below[problem.succ[entry]];
    }
  }
  for (Int buffer = 0; buffer < problem.num_buffers(); ++buffer) {
    std::uint64_t born = problem.at_start[buffer] ? ~std::uint64_t{0} : 0;
    std::uint64_t needed = problem.at_end[buffer] ? ~std::uint64_t{0} : 0;
    for (Int entry = problem.user_ptr[buffer]; entry < problem.user_ptr[buffer + 1]; ++entry) {
      born |= below[problem.user[entry]];
      needed |= above[problem.user[entry]];
    }
    std::uint64_t both = born & needed;
    for (Int at = 0; both && at < chosen.size; ++at, both >>= 1) {
      if (both & 1) total[at] += problem.nbytes[buffer];
    }
  }
}

}  // namespace memwatch::planner
