// Simulated annealing over orders, see `order/anneal.py`.
#pragma once

#include <cmath>

#include "random.h"
#include "walk.h"

namespace memwatch::planner {

struct Cooling {
  Int num_moves;
  Int target_bytes;
  double hot_bytes;
  double cold_bytes;
  Int farthest;
};

class Annealing {
 public:
  Annealing(const Problem& problem, Ints order, Words random)
      : problem_(problem), order_(order), random_(random), num_ops_(order.size) {
    const Int buffers = problem.num_buffers();
    memory_.resize(6 * num_ops_ + 1 + 2 * buffers);
    Int* at = memory_.data();
    const auto take = [&at](Int size) {
      const Ints taken{at, size};
      at += size;
      return taken;
    };
    walk_ = {take(num_ops_), take(num_ops_),     take(num_ops_), take(num_ops_),
             take(num_ops_), take(num_ops_ + 1), take(buffers),  take(buffers)};
    std::copy(order.begin(), order.end(), walk_.order.data);
    fill_walk(problem, walk_);
  }

  /// Anneal the order; write the best one met to `best` and return its peak (bytes).
  Int run(Ints best, const Cooling& cooling) {
    note_best(best);
    const double cool =
        std::log(cooling.cold_bytes / cooling.hot_bytes) / static_cast<double>(std::max(Int{1}, cooling.num_moves));
    std::vector<Undo> undo;
    for (Int turn = 0; turn < cooling.num_moves; ++turn) {
      if (turn % (num_ops_ + 64) == 0) find_hot(cooling.target_bytes);
      const auto [position, reach] = propose(cooling.farthest);
      const Int op = walk_.order[position];
      auto [lowest, highest] = legal_range(problem_, walk_, op);
      lowest = std::max(lowest, position - reach);
      highest = std::min(highest, position + reach);
      if (lowest >= highest) continue;
      Int to = lowest + random_below(random_, highest - lowest);
      to += to >= position;
      reassign_users(problem_, walk_, op, to, undo);
      const auto [worse, more_touching] = price(walk_, op, to, cooling.target_bytes, best_peak_);
      if (!is_accepted(worse, cooling.hot_bytes * std::exp(cool * static_cast<double>(turn)))) {
        for (const Undo& one : undo) set_first_and_last(problem_, walk_, one.buffer, one.first, one.last);
        continue;
      }
      move(walk_, op, to);
      touching_ += more_touching;
      if (touching_ == 0 && walk_.after[0] < best_peak_) note_best(best);
    }
    std::copy(walk_.order.begin(), walk_.order.end(), order_.data);
    return best_peak_;
  }

 private:
  void note_best(Ints best) {
    best_peak_ = std::max(*std::max_element(walk_.level.begin(), walk_.level.end()),
                          *std::max_element(walk_.after.begin(), walk_.after.end()));
    std::copy(walk_.order.begin(), walk_.order.end(), best.data);
    touching_ = 0;
    for (const Int level : walk_.level) touching_ += level >= best_peak_;
  }

  void find_hot(Int target) {
    hot_.clear();
    for (Int position = 0; position < num_ops_; ++position) {
      if (walk_.level[position] > target) hot_.push_back(position);
    }
  }

  /// A random position, more often near an overflow, and a random distance, more often a short one.
  std::pair<Int, Int> propose(Int farthest) {
    const Int reach = 1 + random_below(random_, 1 + random_below(random_, farthest));
    if (!hot_.empty() && random_below(random_, 4)) {
      const Int centre = hot_[random_below(random_, static_cast<Int>(hot_.size()))];
      const Int near = centre + random_below(random_, 2 * reach + 1) - reach;
      return {std::min(std::max(near, Int{0}), num_ops_ - 1), reach};
    }
    return {random_below(random_, num_ops_), reach};
  }

  /// True for a move that is not worse, and for a worse one the more rarely the colder it is (Metropolis).
  bool is_accepted(double worse, double temperature) {
    constexpr Int kOne = Int{1} << 30;
    if (worse <= 0) return true;
    const double drawn = static_cast<double>(random_below(random_, kOne));
    return drawn < std::exp(-worse / temperature) * static_cast<double>(kOne);
  }

  const Problem& problem_;
  Ints order_;
  Words random_;
  Int num_ops_;
  std::vector<Int> memory_;
  Walk walk_;
  Int best_peak_ = 0;
  Int touching_ = 0;
  std::vector<Int> hot_;
};

}  // namespace memwatch::planner
