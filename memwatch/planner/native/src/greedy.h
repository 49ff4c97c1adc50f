// Cut gaps at the peak, one after the other, until the schedule fits, see `recompute/search.py`.
#pragma once

#include <cmath>
#include <numeric>

#include "cuts.h"
#include "random.h"
#include "sweep.h"

namespace memwatch::planner {

constexpr double kTiny = 1e-9;  // keeps a free cut from dividing by zero
// The constants below are guesses.
constexpr Int kManyGaps = 256;     // with more gaps at a step, only the widest gaps of each class of ops are examined
constexpr Int kKeptPerClass = 16;  // gaps per class that are examined then
constexpr Int kMostMisses = 6;     // steps in a row at which no cut helps, before the search gives up
constexpr double kAsGood = 0.8;    // a cut in all blocks at once scores at least this share of the best single cut

struct Style {
  Int budget;
  double area_power;
  double noise;
  Int limit;
  Int shortlist;
  Int max_cuts;
  Int spread;
  Words random;
};

/// Sort positions by their values, ascending. Equal values keep their order.
template <class Value>
std::vector<Int> ascending(const std::vector<Value>& values) {
  std::vector<Int> order(values.size());
  std::iota(order.begin(), order.end(), Int{0});
  std::stable_sort(order.begin(), order.end(), [&](Int one, Int other) { return values[one] < values[other]; });
  return order;
}

/// Running sums over the steps: bytes above the budget, and the number of steps above it.
struct Area {
  Area(const Draft& draft, const Work& work, Int budget) : nbytes(draft.length() + 1), steps(draft.length() + 1) {
    for (Int step = 0; step < draft.length(); ++step) {
      const Int above = std::max(work.live[step] - budget, Int{0});
      nbytes[step + 1] = nbytes[step] + above;
      steps[step + 1] = steps[step] + (above > 0);
    }
  }

  /// A bound on the bytes above the budget, summed over steps, that a gap is responsible for.
  double covered(const Model& model, Int buffer, Int since, Int until) const {
    const Int count = steps[until] - steps[since + 1];
    return static_cast<double>(std::min(model.nbytes[buffer] * count, nbytes[until] - nbytes[since + 1]));
  }

  std::vector<Int> nbytes;
  std::vector<Int> steps;
};

/// Cuts that would lower the peak, the score of each, and the cuts by score.
struct Ranking {
  std::vector<Cut> rows;
  std::vector<double> score;
  std::vector<Int> ranked;
};

class Greedy {
 public:
  Greedy(const Model& model, const Draft& draft, const Style& style)
      : model_(model),
        draft_(draft),
        style_(style),
        work_(model, draft.room()),
        trial_work_(model, draft.room()),
        missing_(model),
        trial_(draft.room()),
        best_(draft.room()),
        barred_(draft.room()) {}

  /// Cut until the schedule fits the budget or no cut helps; return the peak (bytes).
  Int fit() {
    Int peak = sweep(model_, draft_, work_);
    Int cuts = 0, misses = 0;
    while (peak > style_.budget && cuts < style_.max_cuts && misses < kMostMisses) {
      const Int peak_step = highest_step();
      if (peak_step < 0 || work_->live[peak_step] <= style_.budget) break;
      if (!best_cut(peak_step)) {
        barred_[peak_step] = 1;
        ++misses;
        continue;
      }
      std::fill(barred_.begin(), barred_.end(), char{0});
      misses = 0;
      ++cuts;
      copy(best_, draft_);
      peak = sweep(model_, draft_, work_);
    }
    return peak;
  }

 private:
  /// The first step with the most live bytes. Barred steps are skipped.
  Int highest_step() const {
    Int best = -1;
    for (Int step = 0; step < draft_.length(); ++step) {
      if (!barred_[step] && (best < 0 || work_->live[step] > work_->live[best])) best = step;
    }
    return best;
  }

  /// Of very many gaps, only the widest ones of every class of ops.
  std::vector<Cut> gaps_to_examine(const Area& area, std::vector<Cut> gaps) const {
    if (static_cast<Int>(gaps.size()) <= kManyGaps) return gaps;
    std::vector<double> width;
    for (const Cut& gap : gaps) width.push_back(-area.covered(model_, gap.buffer, gap.since, gap.until));
    const Int most = std::max(kKeptPerClass, model_.num_ops / 500);
    std::vector<Int> taken(model_.num_ops + 1);
    std::vector<Cut> kept;
    for (const Int at : ascending(width)) {
      const Int producer = model_.producer[gaps[at].buffer];
      const Int kind = producer >= 0 ? model_.kind[producer] : model_.num_ops;
      if (taken[kind]++ < most) kept.push_back(gaps[at]);
    }
    return kept;
  }

  /// The overflow that a cut is estimated to remove; its missing ops were just found, or it is a move.
  double estimate(const Scene& scene, const Cut& cut, const Area& area, double& price) const {
    double net = area.covered(model_, cut.buffer, cut.since, cut.until);
    if (cut.way == MOVE) {
      price = move_points(model_, scene, cut).stall;
      return net;
    }
    for (const auto& [buffer, since] : missing_.kept) net -= area.covered(model_, buffer, since, cut.until);
    price = missing_.price();
    return net;
  }

  Ranking rank_cuts(const Scene& scene, Int peak_step) {
    const Area area(draft_, work_, style_.budget);
    Ranking ranking;
    std::vector<double> falling;
    for (Cut cut : gaps_to_examine(area, gaps_at(model_, scene.events, draft_, peak_step))) {
      Int before = -1;
      for (cut.way = RECOMPUTE; cut.way <= MOVE; ++cut.way) {
        if (cut.way == MOVE) {
          if (model_.movable[cut.buffer] == 0) continue;
        } else {
          if (!missing_.find(scene.events, cut, style_.limit)) continue;
          const Int found = static_cast<Int>(missing_.ops.size());
          if (found == before) continue;
          before = found;
        }
        double price = 0.0;
        const double net = estimate(scene, cut, area, price);
        if (net <= 0) continue;
        ranking.rows.push_back(cut);
        ranking.score.push_back(std::pow(net, style_.area_power) / (price + kTiny));
        falling.push_back(-ranking.score.back());
      }
    }
    ranking.ranked = ascending(falling);
    return ranking;
  }

  /// Make several cuts in the trial schedule; return their price.
  double spread(const Scene& scene, const Ranking& ranking, const std::vector<Int>& rows) {
    copy(draft_, trial_);
    double total = 0.0;
    for (const Int row : rows) {
      if (trial_->length() + style_.limit + 2 >= trial_->room()) continue;
      double price = 0.0;
      apply_cut(model_, scene, trial_, ranking.rows[row], style_.limit, price);
      total += price;
    }
    return total;
  }

  /// How much less overflow the trial has; -1 for a trial that is not valid.
  double gain(double before) {
    if (sweep(model_, trial_, trial_work_) < 0) return -1.0;
    return before - overflow(model_, trial_, trial_work_, style_.budget);
  }

  /// The same cut in other blocks as the chosen one, until enough bytes are freed; the last comes first.
  std::vector<Int> same_cut_in_other_blocks(const Ranking& ranking, Int chosen, Int needed) const {
    const Cut& row = ranking.rows[chosen];
    const Int kind = model_.kind[model_.producer[row.buffer]], nbytes = model_.nbytes[row.buffer];
    std::vector<Int> alike, found;
    std::vector<Int> falling;
    for (const Int at : ranking.ranked) {
      const Cut& other = ranking.rows[at];
      const Int producer = model_.producer[other.buffer];
      if (producer < 0 || model_.kind[producer] != kind) continue;
      if (other.way != row.way || model_.nbytes[other.buffer] != nbytes) continue;
      alike.push_back(at);
      falling.push_back(-other.until);
      needed -= nbytes;
      if (needed <= 0) break;
    }
    for (const Int at : ascending(falling)) found.push_back(alike[at]);
    return found;
  }

  /// Write the best schedule that is one cut away to `best_`; return false if no cut helps.
  bool best_cut(Int peak_step) {
    const Events events = list_events(model_, draft_);
    const Scene scene{draft_, events, missing_, work_->live, style_.budget};
    const double before = overflow(model_, draft_, work_, style_.budget);
    const Ranking ranking = rank_cuts(scene, peak_step);
    double best_score = 0.0;
    Int chosen = -1, tried = 0;
    for (const Int at : ranking.ranked) {
      if (tried >= (chosen >= 0 ? style_.shortlist : 4 * style_.shortlist)) break;
      ++tried;
      const double price = spread(scene, ranking, {at});
      const double gained = gain(before);
      if (gained <= 0) continue;
      const double luck = 1.0 + style_.noise * random_unit(style_.random);
      const double score = std::pow(gained, style_.area_power) / (price + kTiny) * luck;
      if (score > best_score) {
        best_score = score;
        chosen = at;
        copy(trial_, best_);
      }
    }
    if (style_.spread && chosen >= 0 && ranking.rows[chosen].way != MOVE) {
      const Int needed = work_->live[peak_step] - style_.budget;
      const double price = spread(scene, ranking, same_cut_in_other_blocks(ranking, chosen, needed));
      const double gained = gain(before);
      if (gained > 0 && std::pow(gained, style_.area_power) / (price + kTiny) > kAsGood * best_score) {
        copy(trial_, best_);
      }
    }
    return chosen >= 0;
  }

  const Model& model_;
  const Draft& draft_;
  const Style& style_;
  OwnWork work_;
  OwnWork trial_work_;
  Missing missing_;
  OwnDraft trial_;
  OwnDraft best_;
  std::vector<char> barred_;
};

}  // namespace memwatch::planner
