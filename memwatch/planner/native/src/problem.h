// The ordering problem, and the change of live bytes by one op; see `order/problem.py`.
#pragma once

#include <algorithm>

#include "arrays.h"

namespace memwatch::planner {

struct Problem {
  Ints workspace;
  Ints touch_ptr;
  Ints touch;
  Ints user_ptr;
  Ints user;
  Ints nbytes;
  Ints at_start;
  Ints at_end;
  Ints pred_ptr;
  Ints pred;
  Ints succ_ptr;
  Ints succ;
  Int always;

  Int num_ops() const { return workspace.size; }
  Int num_buffers() const { return nbytes.size; }
};

/// Bytes that an op needs in addition to the live bytes, and the change of live bytes after it.
struct Change {
  Int rise;
  Int net;
};

inline Int live_at_start(const Problem& problem) {
  Int live = problem.always;
  for (Int buffer = 0; buffer < problem.num_buffers(); ++buffer) {
    if (problem.at_start[buffer]) live += problem.nbytes[buffer];
  }
  return live;
}

/// `seen` tells how many users of each buffer have run.
inline Change effect_of(const Problem& problem, const Int* seen, Int op) {
  Int rise = 0, fall = 0;
  for (Int entry = problem.touch_ptr[op]; entry < problem.touch_ptr[op + 1]; ++entry) {
    const Int buffer = problem.touch[entry], users = problem.user_ptr[buffer + 1] - problem.user_ptr[buffer];
    if (seen[buffer] == 0 && !problem.at_start[buffer]) rise += problem.nbytes[buffer];
    if (seen[buffer] + 1 == users && !problem.at_end[buffer]) fall += problem.nbytes[buffer];
  }
  return {rise + problem.workspace[op], rise - fall};
}

/// Count an op as run in `seen`, or take that back with -1.
inline void mark_run(const Problem& problem, Int* seen, Int op, Int by = 1) {
  for (Int entry = problem.touch_ptr[op]; entry < problem.touch_ptr[op + 1]; ++entry) seen[problem.touch[entry]] += by;
}

inline Int peak_of(const Problem& problem, Ints order) {
  std::vector<Int> seen(problem.num_buffers());
  Int live = live_at_start(problem), peak = live;
  for (const Int op : order) {
    const Change change = effect_of(problem, seen.data(), op);
    peak = std::max(peak, live + change.rise);
    live += change.net;
    mark_run(problem, seen.data(), op);
  }
  return peak;
}

inline std::vector<Int> num_waiting(const Problem& problem) {
  std::vector<Int> waiting(problem.num_ops());
  for (Int op = 0; op < problem.num_ops(); ++op) waiting[op] = problem.pred_ptr[op + 1] - problem.pred_ptr[op];
  return waiting;
}

}  // namespace memwatch::planner
