// An order and its live bytes, kept up to date while single ops move; see `order/anneal.py`.
#pragma once

#include <utility>

#include "problem.h"

namespace memwatch::planner {

struct Walk {
  Ints order;
  Ints place;
  Ints rise;
  Ints net;
  Ints level;
  Ints after;
  Ints first;
  Ints last;
};

inline void fill_walk(const Problem& problem, const Walk& walk) {
  std::vector<Int> seen(problem.num_buffers());
  walk.after[0] = live_at_start(problem);
  for (Int position = 0; position < walk.order.size; ++position) {
    const Int op = walk.order[position];
    const Change change = effect_of(problem, seen.data(), op);
    walk.place[op] = position;
    walk.rise[op] = change.rise;
    walk.net[op] = change.net;
    walk.level[position] = walk.after[position] + change.rise;
    walk.after[position + 1] = walk.after[position] + change.net;
    for (Int entry = problem.touch_ptr[op]; entry < problem.touch_ptr[op + 1]; ++entry) {
      if (seen[problem.touch[entry]] == 0) walk.first[problem.touch[entry]] = op;
      walk.last[problem.touch[entry]] = op;
    }
    mark_run(problem, seen.data(), op);
  }
}

/// The first and the last position that an op may move to, while all others keep their order.
inline std::pair<Int, Int> legal_range(const Problem& problem, const Walk& walk, Int op) {
  Int lowest = 0, highest = walk.order.size - 1;
  for (Int entry = problem.pred_ptr[op]; entry < problem.pred_ptr[op + 1]; ++entry) {
    lowest = std::max(lowest, walk.place[problem.pred[entry]] + 1);
  }
  for (Int entry = problem.succ_ptr[op]; entry < problem.succ_ptr[op + 1]; ++entry) {
    highest = std::min(highest, walk.place[problem.succ[entry]] - 1);
  }
  return {lowest, highest};
}

/// The op that touches a buffer first after `op` has moved to position `to`.
inline Int first_user_after_move(const Problem& problem, const Walk& walk, Int buffer, Int op, Int to) {
  Int first = walk.first[buffer];
  if (first != op) return to <= walk.place[first] ? op : first;
  for (Int entry = problem.user_ptr[buffer]; entry < problem.user_ptr[buffer + 1]; ++entry) {
    const Int user = problem.user[entry];
    if (user != op && walk.place[user] <= to && (first == op || walk.place[user] < walk.place[first])) first = user;
  }
  return first;
}

/// The op that touches a buffer last after `op` has moved to position `to`.
inline Int last_user_after_move(const Problem& problem, const Walk& walk, Int buffer, Int op, Int to) {
  Int last = walk.last[buffer];
  if (last != op) return to >= walk.place[last] ? op : last;
  for (Int entry = problem.user_ptr[buffer]; entry < problem.user_ptr[buffer + 1]; ++entry) {
    const Int user = problem.user[entry];
    if (user != op && walk.place[user] >= to && (last == op || walk.place[user] > walk.place[last])) last = user;
  }
  return last;
}

/// Make `first` allocate the buffer and `last` free it.
inline void set_first_and_last(const Problem& problem, const Walk& walk, Int buffer, Int first, Int last) {
  const Int nbytes = problem.nbytes[buffer];
  if (!problem.at_start[buffer]) {
    walk.rise[walk.first[buffer]] -= nbytes;
    walk.net[walk.first[buffer]] -= nbytes;
    walk.rise[first] += nbytes;
    walk.net[first] += nbytes;
  }
  if (!problem.at_end[buffer]) {
    walk.net[walk.last[buffer]] += nbytes;
    walk.net[last] -= nbytes;
  }
  walk.first[buffer] = first;
  walk.last[buffer] = last;
}

/// A buffer, and who touched it first and last before a move.
struct Undo {
  Int buffer;
  Int first;
  Int last;
};

/// Assign allocations and frees to the ops that make them after `op` has moved to `to`.
inline void reassign_users(const Problem& problem, const Walk& walk, Int op, Int to, std::vector<Undo>& undo) {
  undo.clear();
  for (Int entry = problem.touch_ptr[op]; entry < problem.touch_ptr[op + 1]; ++entry) {
    const Int buffer = problem.touch[entry];
    const Int first = first_user_after_move(problem, walk, buffer, op, to),
              last = last_user_after_move(problem, walk, buffer, op, to);
    if (first == walk.first[buffer] && last == walk.last[buffer]) continue;
    undo.push_back({buffer, walk.first[buffer], walk.last[buffer]});
    set_first_and_last(problem, walk, buffer, first, last);
  }
}

/// The changes of (overflow above the target, positions at or above the best peak) by a move.
inline std::pair<double, Int> price(const Walk& walk, Int op, Int to, Int target, Int best) {
  const Int place = walk.place[op], step = to > place ? 1 : -1;
  const Int start = std::min(place, to), stop = std::max(place, to);
  Int overflow = 0, touching = 0;
  for (Int position = start; position <= stop; ++position) {
    overflow -= std::max(Int{0}, walk.level[position] - target);
    touching -= walk.level[position] >= best;
  }
  Int live = walk.after[start];
  for (Int position = start; position <= stop; ++position) {
    const Int runs = position == to ? op : walk.order[position + step];
    const Int level = live + walk.rise[runs];
    live += walk.net[runs];
    overflow += std::max(Int{0}, level - target);
    touching += level >= best;
  }
  return {static_cast<double>(overflow), touching};
}

/// Put an op at position `to` and update everything in between.
inline void move(const Walk& walk, Int op, Int to) {
  const Int place = walk.place[op], step = to > place ? 1 : -1;
  for (Int position = place; position != to; position += step) walk.order[position] = walk.order[position + step];
  walk.order[to] = op;
  for (Int position = std::min(place, to); position <= std::max(place, to); ++position) {
    const Int runs = walk.order[position];
    walk.place[runs] = position;
    walk.level[position] = walk.after[position] + walk.rise[runs];
    walk.after[position + 1] = walk.after[position] + walk.net[runs];
  }
}

}  // namespace memwatch::planner
