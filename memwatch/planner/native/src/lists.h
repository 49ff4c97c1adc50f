// List schedules, see `order/lists.py`.
#pragma once

#include <tuple>

#include "problem.h"

namespace memwatch::planner {

inline void breadth_first(const Problem& problem, Ints order) {
  std::vector<Int> waiting = num_waiting(problem);
  Int count = 0;
  for (Int op = 0; op < problem.num_ops(); ++op) {
    if (waiting[op] == 0) order[count++] = op;
  }
  for (Int position = 0; position < count; ++position) {
    const Int op = order[position];
    for (Int entry = problem.succ_ptr[op]; entry < problem.succ_ptr[op + 1]; ++entry) {
      if (--waiting[problem.succ[entry]] == 0) order[count++] = problem.succ[entry];
    }
  }
}

inline void depth_first(const Problem& problem, Ints by_size, Ints below, Ints order) {
  enum : char { NEW, STACKED, PLACED };
  std::vector<char> state(problem.num_ops(), NEW);
  std::vector<Int> stack;
  Int count = 0;
  for (const Int root : by_size) {
    if (problem.succ_ptr[root + 1] > problem.succ_ptr[root]) continue;
    stack.push_back(root);
    while (!stack.empty()) {
      const Int op = stack.back();
      if (state[op] == NEW) {
        state[op] = STACKED;
        for (Int entry = problem.pred_ptr[op]; entry < problem.pred_ptr[op + 1]; ++entry) {
          if (state[below[entry]] == NEW) stack.push_back(below[entry]);  // the smallest ends on top
        }
        continue;
      }
      stack.pop_back();
      if (state[op] == STACKED) {
        state[op] = PLACED;
        order[count++] = op;
      }
    }
  }
}

/// The highest rise and the net change of live bytes of the chain from an op to its lowest point.
inline Change run_ahead(const Problem& problem, Int* seen, Int* waiting, Int op, std::vector<Int>& ran, Int longest) {
  Int live = 0, top = 0, valley = 0, top_at_valley = 0;
  ran.clear();
  while (op >= 0 && static_cast<Int>(ran.size()) < longest) {
    const Change change = effect_of(problem, seen, op);
    top = std::max(top, live + change.rise);
    live += change.net;
    if (ran.empty() || live < valley) {
      valley = live;
      top_at_valley = top;
    }
    mark_run(problem, seen, op);
    ran.push_back(op);
    Int best = 0, following = -1;
    for (Int entry = problem.succ_ptr[op]; entry < problem.succ_ptr[op + 1]; ++entry) {
      const Int after = problem.succ[entry];
      if (--waiting[after] != 0) continue;
      const Int growth = effect_of(problem, seen, after).net;
      if (following < 0 || growth < best) {
        best = growth;
        following = after;
      }
    }
    op = following;
  }
  for (const Int back : ran) {
    mark_run(problem, seen, back, -1);
    for (Int entry = problem.succ_ptr[back]; entry < problem.succ_ptr[back + 1]; ++entry)
      ++waiting[problem.succ[entry]];
  }
  return {top_at_valley, valley};
}

/// Choose a ready op: of the ops that fit under the peak, the op that grows least; else the op that needs least.
inline Int choose_ready(const Problem& problem, const std::vector<Int>& ready, Int widest, Int room, Int* seen,
                        Int* waiting, std::vector<Int>& ran, Int longest) {
  Int chosen = -1;
  Change best{0, 0};
  bool best_fits = false;
  const Int size = static_cast<Int>(ready.size());
  for (Int slot = std::max(Int{0}, size - widest); slot < size; ++slot) {
    const Change now = run_ahead(problem, seen, waiting, ready[slot], ran, longest);
    const bool fits = now.rise <= room;
    bool is_better = fits && !best_fits;
    if (fits == best_fits) {
      is_better = fits ? std::tie(now.net, now.rise) < std::tie(best.net, best.rise)
                       : std::tie(now.rise, now.net) < std::tie(best.rise, best.net);
    }
    if (chosen >= 0 && !is_better) continue;
    chosen = slot;
    best = now;
    best_fits = fits;
  }
  return chosen;
}

inline void least_growth(const Problem& problem, Int longest, Int widest, Ints order) {
  std::vector<Int> waiting = num_waiting(problem), seen(problem.num_buffers()), ready, ran;
  for (Int op = 0; op < problem.num_ops(); ++op) {
    if (waiting[op] == 0) ready.push_back(op);
  }
  Int live = live_at_start(problem), peak = live;
  for (Int& place : order) {
    const Int chosen = choose_ready(problem, ready, widest, peak - live, seen.data(), waiting.data(), ran, longest);
    const Int op = ready[chosen];
    ready.erase(ready.begin() + chosen);
    const Change change = effect_of(problem, seen.data(), op);
    peak = std::max(peak, live + change.rise);
    live += change.net;
    mark_run(problem, seen.data(), op);
    place = op;
    for (Int entry = problem.succ_ptr[op]; entry < problem.succ_ptr[op + 1]; ++entry) {
      if (--waiting[problem.succ[entry]] == 0) ready.push_back(problem.succ[entry]);
    }
  }
}

}  // namespace memwatch::planner
