// Beam search over downsets, see `order/lists.py`.
#pragma once

#include <utility>

#include "problem.h"

namespace memwatch::planner {

constexpr Int kWidestScan = 256;  // ready ops examined per state; a guess

/// One state of a step: a downset and how it was reached.
struct BeamState {
  std::vector<Int> seen;
  std::vector<Int> waiting;
  std::vector<Int> ready;
  Int live = 0;
  Int peak = 0;
  std::uint64_t key = 0;
};

/// A way to go on: a state, and the place of the op that it runs next among its ready ones.
struct Candidate {
  Int state;
  Int slot;
  Int peak;
  Int live;
  std::uint64_t key;
  bool is_out = false;
};

/// A safe op fits under the peak and frees at least the bytes that it takes. A state with a safe op has only this way.
inline void list_candidates(const Problem& problem, const std::vector<BeamState>& beam, Int size, Words bits,
                            std::vector<Candidate>& out) {
  out.clear();
  for (Int at = 0; at < size; ++at) {
    const BeamState& state = beam[at];
    const std::size_t start = out.size();
    const Int num_ready = static_cast<Int>(state.ready.size());
    for (Int slot = std::max(Int{0}, num_ready - kWidestScan); slot < num_ready; ++slot) {
      const Int op = state.ready[slot];
      const Change change = effect_of(problem, state.seen.data(), op);
      const bool is_safe = change.net <= 0 && state.live + change.rise <= state.peak;
      if (is_safe) out.resize(start);
      out.push_back(
          {at, slot, std::max(state.peak, state.live + change.rise), state.live + change.net, state.key ^ bits[op]});
      if (is_safe) break;
    }
  }
}

/// The candidates with the lowest (peak, live), one per downset.
inline std::vector<Candidate> take_best(std::vector<Candidate>& found, Int width) {
  std::vector<Candidate> chosen;
  while (static_cast<Int>(chosen.size()) < width) {
    const Candidate* best = nullptr;
    for (const Candidate& one : found) {
      if (one.is_out) continue;
      if (!best || std::make_pair(one.peak, one.live) < std::make_pair(best->peak, best->live)) best = &one;
    }
    if (!best) break;
    chosen.push_back(*best);
    for (Candidate& one : found) {
      if (one.key == chosen.back().key) one.is_out = true;
    }
  }
  return chosen;
}

/// Copy a state to the next step and run one of its ready ops there; return that op.
inline Int extend_state(const Problem& problem, const BeamState& old, const Candidate& taken, BeamState& target) {
  const Int op = old.ready[taken.slot];
  target.seen = old.seen;
  target.waiting = old.waiting;
  target.ready = old.ready;
  target.ready.erase(target.ready.begin() + taken.slot);
  target.peak = taken.peak;
  target.live = taken.live;
  target.key = taken.key;
  mark_run(problem, target.seen.data(), op);
  for (Int entry = problem.succ_ptr[op]; entry < problem.succ_ptr[op + 1]; ++entry) {
    if (--target.waiting[problem.succ[entry]] == 0) target.ready.push_back(problem.succ[entry]);
  }
  return op;
}

inline void beam_search(const Problem& problem, Int width, Words bits, Ints order) {
  const Int num_ops = problem.num_ops();
  std::vector<BeamState> old(width), next(width);
  old[0].seen.resize(problem.num_buffers());
  old[0].waiting = num_waiting(problem);
  old[0].live = old[0].peak = live_at_start(problem);
  for (Int op = 0; op < num_ops; ++op) {
    if (old[0].waiting[op] == 0) old[0].ready.push_back(op);
  }
  std::vector<Candidate> found;
  std::vector<Int> came_from(num_ops * width), ran(num_ops * width);
  Int size = 1;
  for (Int step = 0; step < num_ops; ++step) {
    list_candidates(problem, old, size, bits, found);
    const std::vector<Candidate> chosen = take_best(found, width);
    size = static_cast<Int>(chosen.size());
    for (Int target = 0; target < size; ++target) {
      came_from[step * width + target] = chosen[target].state;
      ran[step * width + target] = extend_state(problem, old[chosen[target].state], chosen[target], next[target]);
    }
    std::swap(old, next);
  }
  Int state = 0;  // the best one was taken first
  for (Int step = num_ops - 1; step >= 0; --step) {
    order[step] = ran[step * width + state];
    state = came_from[step * width + state];
  }
}

}  // namespace memwatch::planner
