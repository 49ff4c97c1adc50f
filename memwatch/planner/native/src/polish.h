// Undo some cuts, move some steps, repair greedily, keep what is cheaper; see `recompute/search.py`.
#pragma once

#include <limits>
#include <utility>

#include "greedy.h"
#include "prune.h"

namespace memwatch::planner {

constexpr Int kFarthest = 40;  // steps by which one step is moved at most; a guess

struct Effort {
  Int budget;
  Int rounds;
  double warmth;
  Int limit;
  double total_cost;
  Words random;
};

class Polish {
 public:
  Polish(const Model& model, const Draft& draft, const Effort& effort)
      : model_(model),
        draft_(draft),
        effort_(effort),
        random_(effort.random),
        work_(model, draft.room()),
        missing_(model),
        trial_(draft.room()),
        now_(draft.room()),
        then_(draft.room()) {}

  /// Replace the schedule by a cheaper one within the budget or, while none fits, by one closer to it.
  void run() {
    load(now_, draft_.tokens.data, draft_.length());
    auto now_value = value_of(now_);
    auto best_value = now_value;
    for (Int turn = 0; turn < effort_.rounds; ++turn) {
      copy(now_, then_);
      change_randomly();
      const double power = 0.5 + random_unit(random_);
      const double noise = 0.5 * random_unit(random_);
      const Style style{effort_.budget, power, noise, effort_.limit, 8, 4 * model_.num_ops, 0, random_};
      if (Greedy(model_, then_, style).fit() <= effort_.budget) {
        std::vector<Int> rank = permutation(then_->length());
        prune(model_, then_, effort_.budget, view(rank));
      }
      const auto value = value_of(then_);
      const double left = 1.0 - static_cast<double>(turn) / static_cast<double>(effort_.rounds);
      const double allowed = effort_.warmth * effort_.total_cost * left * random_unit(random_);
      const bool is_kept = value.first < now_value.first ||
                           (value.first == now_value.first && value.second <= now_value.second + allowed);
      if (!is_kept) continue;
      copy(then_, now_);
      now_value = value;
      if (value < best_value) {
        best_value = value;
        copy(then_, draft_);
      }
    }
  }

 private:
  Int below(Int limit) { return random_below(random_, limit); }

  std::vector<Int> permutation(Int size) {
    std::vector<Int> order(size);
    for (Int at = 0; at < size; ++at) order[at] = at;
    for (Int at = size - 1; at > 0; --at) std::swap(order[at], order[below(at + 1)]);
    return order;
  }

  /// (bytes above the budget summed over steps, cost); infinite for an invalid schedule.
  std::pair<double, double> value_of(const Draft& draft) {
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    if (sweep(model_, draft, work_) < 0) return {kInfinite, kInfinite};
    return {overflow(model_, draft, work_, effort_.budget), duration(model_, draft)};
  }

  /// Change the schedule at random: by a cut, by moved steps, by undone cuts, or by two of these.
  void change_randomly() {
    const double choice = random_unit(random_);
    if (0.35 <= choice && choice < 0.6) cut_random_gap();
    if (choice >= 0.6) {
      for (Int left = 1 + below(3); left > 0; --left) move_random_step();
    }
    if (choice < 0.5 || (0.6 <= choice && choice < 0.8)) undo_random_cuts();
  }

  /// Move a random step to a random place nearby, if the schedule stays valid.
  void move_random_step() {
    const Int size = then_->length(), source = below(size), token = then_->tokens[source];
    if (model_.is_op(token) && model_.stays[token] == 1) return;
    const Int reach = 1 + below(std::max(Int{2}, std::min(size, kFarthest)));
    Int target = source + (random_unit(random_) < 0.5 ? reach : -reach);
    target = std::min(std::max(target, Int{0}), size - 1);
    copy(then_, trial_);
    const Ints tokens = trial_->tokens;
    const Int step = target > source ? 1 : -1;
    for (Int at = source; at != target; at += step) tokens[at] = tokens[at + step];
    tokens[target] = token;
    if (sweep(model_, trial_, work_) >= 0) copy(trial_, then_);
  }

  /// Take back random recomputes and moves, a few everywhere or most of those in one window.
  void undo_random_cuts() {
    const Draft& draft = then_;
    std::vector<Int> count = computes(model_, draft);
    Int first = 0, last = draft.length();
    double share = 0.05 + 0.3 * random_unit(random_);
    if (random_unit(random_) < 0.5) {
      const double part = static_cast<double>(draft.length()) * 0.5 * random_unit(random_);
      const Int width = std::max(Int{4}, static_cast<Int>(part));
      first = below(draft.length());
      last = std::min(draft.length(), first + width);
      share = 0.7;
    }
    for (Int step = last - 1; step >= first; --step) {
      if (step >= draft.length() || !is_removable(model_, draft, step, count)) continue;
      if (random_unit(random_) >= share) continue;
      remove_step(model_, draft, step);
      count = computes(model_, draft);
    }
    drop_useless(model_, draft, work_);
  }

  /// Cut a random gap at a random step, unless that makes the schedule invalid.
  void cut_random_gap() {
    const Draft& draft = then_;
    if (draft.length() + effort_.limit + 2 >= draft.room()) return;
    const Events events = list_events(model_, draft);
    const std::vector<Cut> gaps = gaps_at(model_, events, draft, below(draft.length()));
    if (gaps.empty()) return;
    Cut cut = gaps[below(static_cast<Int>(gaps.size()))];
    cut.way = below(MOVE);
    if (model_.movable[cut.buffer] == 1 && random_unit(random_) < 0.5) cut.way = MOVE;
    copy(draft, trial_);
    sweep(model_, draft, work_);
    // with -1 no step can hide a copy: both are made at once
    const Int budget = random_unit(random_) < 0.5 ? effort_.budget : -1;
    double price = 0.0;
    const bool done =
        apply_cut(model_, {draft, events, missing_, work_->live, budget}, trial_, cut, effort_.limit, price);
    if (done && sweep(model_, trial_, work_) >= 0) copy(trial_, then_);
  }

  const Model& model_;
  const Draft& draft_;
  const Effort& effort_;
  Words random_;
  OwnWork work_;
  Missing missing_;
  OwnDraft trial_;
  OwnDraft now_;
  OwnDraft then_;
};

}  // namespace memwatch::planner
