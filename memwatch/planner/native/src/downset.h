// One downset, and the runs of ops that are safe from there; see `order/exact.py`.
#pragma once

#include "problem.h"

namespace memwatch::planner {

constexpr Int kLongestRun = 16;  // ops
constexpr Int kMostTries = 48;   // ops tried per safe run; a limit on the work where chains fork

struct Downset {
  explicit Downset(const Problem& problem, Int num_words)
      : words(num_words), seen(problem.num_buffers()), waiting(problem.num_ops()) {}

  bool has(Int op) const { return words[op >> 6] >> (op & 63) & 1; }
  void flip(Int op) { words[op >> 6] ^= std::uint64_t{1} << (op & 63); }

  std::vector<std::uint64_t> words;  // bits of the ops that have run
  std::vector<Int> seen;             // buffer -> how many of its users have run
  std::vector<Int> waiting;          // op -> how many ops it waits for, -1 once it has run
};

inline void run_op(const Problem& problem, Downset& now, Int op) {
  mark_run(problem, now.seen.data(), op);
  now.waiting[op] = -1;
  for (Int entry = problem.succ_ptr[op]; entry < problem.succ_ptr[op + 1]; ++entry) --now.waiting[problem.succ[entry]];
}

inline void unrun_op(const Problem& problem, Downset& now, Int op) {
  mark_run(problem, now.seen.data(), op, -1);
  now.waiting[op] = 0;
  for (Int entry = problem.succ_ptr[op]; entry < problem.succ_ptr[op + 1]; ++entry) ++now.waiting[problem.succ[entry]];
}

/// Compute the rest of a downset from its words; return how many ops have not run.
inline Int load(const Problem& problem, Downset& now) {
  std::fill(now.seen.begin(), now.seen.end(), Int{0});
  now.waiting = num_waiting(problem);
  Int left = 0;
  for (Int op = 0; op < problem.num_ops(); ++op) {
    if (now.has(op)) {
      run_op(problem, now, op);
    } else {
      ++left;
    }
  }
  return left;
}

/// Write a safe chain of ops from `first` to `run`: it fits in `room` and leaves no more live bytes than before.
/// Running such a chain at once is never worse. Live bytes are submodular in the set of ops that have run. Every
/// shorter prefix of the chain leaves more live bytes, so moving the chain forward lowers every later level.
/// Returns the length of the chain, 0 if there is none. The downset is unchanged.
inline Int safe_run(const Problem& problem, Downset& now, Int first, Int room, Int* run) {
  Int live[kLongestRun + 1] = {}, cursor[kLongestRun + 1] = {};
  Int depth = 0, tries = 0, found = 0, candidate = first;
  while (true) {
    if (candidate >= 0 && tries < kMostTries) {
      ++tries;
      const Change change = effect_of(problem, now.seen.data(), candidate);
      if (live[depth] + change.rise <= room) {
        run[depth] = candidate;
        live[depth + 1] = live[depth] + change.net;
        run_op(problem, now, candidate);
        cursor[++depth] = problem.succ_ptr[candidate];
        if (live[depth] <= 0) {
          found = depth;
          break;
        }
      }
    }
    if (depth == 0) break;
    candidate = -1;
    if (depth < kLongestRun && tries < kMostTries) {
      while (candidate < 0 && cursor[depth] < problem.succ_ptr[run[depth - 1] + 1]) {
        const Int after = problem.succ[cursor[depth]++];
        if (now.waiting[after] == 0) candidate = after;
      }
    }
    if (candidate < 0) {
      unrun_op(problem, now, run[--depth]);
      if (depth == 0) break;
    }
  }
  while (depth) unrun_op(problem, now, run[--depth]);
  return found;
}

}  // namespace memwatch::planner
