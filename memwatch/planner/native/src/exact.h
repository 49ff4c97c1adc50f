// Minimax search over downsets, lowest peak first; see `order/exact.py`.
#pragma once

#include "downset.h"
#include "needs.h"
#include "search.h"

namespace memwatch::planner {

enum Status : Int { RUNNING, FOUND, EXHAUSTED, FULL };

class ExactSearch {
 public:
  ExactSearch(const Problem& problem, const Needs& needs, const Search& search, Int below)
      : problem_(problem), needs_(needs), search_(search), below_(below), now_(problem, search.num_words()) {}

  /// Expand downsets; on FOUND, `path` leads to an optimal order.
  Status advance(Int max_expansions, Int& path) {
    path = -1;
    for (Int expansion = 0; expansion < max_expansions; ++expansion) {
      if (is_full()) return FULL;
      Int state = next_state();
      if (state < 0) return EXHAUSTED;
      search_.lowest_peak[state] = kExpandedMark;
      ++search_.tally[EXPANDED];
      std::copy_n(search_.words_of(state), search_.num_words(), now_.words.data());
      const Int left = load(problem_, now_);
      live_ = search_.live[state];
      node_ = search_.node[state];
      const Int ran = run_safe_ops();
      if (ran == left) {
        path = node_;
        return FOUND;
      }
      if (ran) {
        state = search_.find(now_.words.data());
        if (state < 0) {
          state = search_.remember(now_.words.data(), -1 - state, live_);
        } else if (search_.lowest_peak[state] == kExpandedMark) {
          continue;
        }
      }
      const Int bound = bound_of();
      if (bound <= search_.tally[LEVEL]) {
        search_.lowest_peak[state] = kExpandedMark;
        expand();
      } else if (bound < below_) {
        search_.lowest_peak[state] = bound;
        search_.node[state] = node_;
        search_.push(bound, state);
      }
    }
    return RUNNING;
  }

 private:
  /// True when one more expansion may exceed the memory of the search.
  bool is_full() const {
    const Int num_ops = problem_.num_ops();
    return search_.tally[STATES] + num_ops >= search_.live.size ||
           search_.tally[NODES] + 2 * num_ops >= search_.parent.size ||
           std::max(search_.tally[STACKED], search_.tally[HEAPED]) + num_ops >= search_.stack.size;
  }

  /// The next state from the stack or, with a higher level, from the heap; -1 when there is none.
  Int next_state() const {
    const Ints tally = search_.tally;
    while (tally[STACKED] || tally[HEAPED]) {
      Int state;
      if (tally[STACKED]) {
        state = search_.stack[--tally[STACKED]];
      } else {
        tally[LEVEL] = std::max(tally[LEVEL], search_.heap_key[0]);
        state = search_.pop();
      }
      if (search_.lowest_peak[state] != kExpandedMark) return state;
    }
    return -1;
  }

  /// Run all chains of ops that are safe below the level; return how many ops they are.
  Int run_safe_ops() {
    Int run[kLongestRun + 1], done = 0;
    for (bool again = true; again;) {
      again = false;
      for (Int op = 0; op < problem_.num_ops(); ++op) {
        if (now_.waiting[op] != 0) continue;
        const Int length = safe_run(problem_, now_, op, search_.tally[LEVEL] - live_, run);
        for (Int at = 0; at < length; ++at) {
          live_ += effect_of(problem_, now_.seen.data(), run[at]).net;
          run_op(problem_, now_, run[at]);
          now_.flip(run[at]);
          node_ = search_.new_node(node_, run[at]);
        }
        done += length;
        again = again || length > 0;
      }
    }
    return done;
  }

  /// A peak (bytes) that no order which goes on from this downset can go below.
  Int bound_of() {
    const Int num_ops = problem_.num_ops();
    total_.assign(needs_.certain.begin(), needs_.certain.end());
    for (Int buffer = 0; buffer < problem_.num_buffers(); ++buffer) {
      const Int seen = now_.seen[buffer], users = problem_.user_ptr[buffer + 1] - problem_.user_ptr[buffer];
      if (!((0 < seen && seen < users) || (seen && problem_.at_end[buffer]))) continue;
      const Int* pending = needs_.pending.data + buffer * num_ops;
      for (Int op = 0; op < num_ops; ++op) total_[op] += pending[op];
    }
    Int bound = 0;
    for (Int op = 0; op < num_ops; ++op) {
      if (now_.waiting[op] >= 0) bound = std::max(bound, total_[op]);
    }
    return bound;
  }

  /// Queue every downset that is one op larger, if its peak is under `below_`.
  void expand() {
    for (Int op = 0; op < problem_.num_ops(); ++op) {
      if (now_.waiting[op] != 0) continue;
      const Change change = effect_of(problem_, now_.seen.data(), op);
      const Int key = std::max(search_.tally[LEVEL], live_ + change.rise);
      if (key >= below_) continue;
      now_.flip(op);
      Int state = search_.find(now_.words.data());
      if (state < 0) {
        state = search_.remember(now_.words.data(), -1 - state, live_ + change.net);
        search_.lowest_peak[state] = key + 1;
      }
      now_.flip(op);
      if (search_.lowest_peak[state] == kExpandedMark || search_.lowest_peak[state] <= key) continue;
      search_.lowest_peak[state] = key;
      search_.node[state] = search_.new_node(node_, op);
      if (key <= search_.tally[LEVEL]) {
        search_.stack[search_.tally[STACKED]++] = state;
      } else {
        search_.push(key, state);
      }
    }
  }

  const Problem& problem_;
  const Needs& needs_;
  const Search& search_;
  Int below_;
  Downset now_;
  Int live_ = 0;
  Int node_ = -1;
  std::vector<Int> total_;
};

}  // namespace memwatch::planner
