// The ops that must run again so that a version of a buffer is there, see `cuts.h`.
#pragma once

#include "events.h"

namespace memwatch::planner {

/// Ways to cut a gap. The first three run ops again. They differ in the inputs of these ops that were freed: RECOMPUTE
/// computes all of them again, KEEP_IF_LATE keeps the inputs that are used after the peak alive instead, and KEEP keeps
/// all of them alive. MOVE moves the buffer out and back.
enum Way : Int { RECOMPUTE, KEEP_IF_LATE, KEEP, MOVE };

/// A cut: `buffer` is idle after step `since` and before step `until`, which wants its `version`.
struct Cut {
  Int buffer;
  Int version;
  Int since;
  Int until;
  Int way;
  Int peak_step;  // step at which the cut has to lower live bytes
};

class Missing {
 public:
  explicit Missing(const Model& model) : model_(model), stamp_(model.num_ops, -1) {}

  /// Find the ops, in program order; return false if the cut is impossible or takes more than `limit`.
  bool find(const Events& events, const Cut& cut, Int limit) {
    ++number_;
    ops.clear();
    stack_.clear();
    kept.clear();
    if (!add_unit(cut.buffer, cut.version)) return false;
    while (!stack_.empty()) {
      if (static_cast<Int>(ops.size()) > limit) return false;
      const Int op = stack_.back();
      stack_.pop_back();
      if (!add_inputs(events, op, cut)) return false;
    }
    if (static_cast<Int>(ops.size()) > limit) return false;
    std::sort(ops.begin(), ops.end());
    return true;
  }

  double price() const {
    double price = 0.0;
    for (const Int op : ops) price += model_.cost[op];
    return price;
  }

  std::vector<Int> ops;
  std::vector<std::pair<Int, Int>> kept;  // a buffer that is kept instead, and the step since which it is idle

 private:
  bool add_inputs(const Events& events, Int op, const Cut& cut) {
    for (Int entry = model_.write_ptr[op]; entry < model_.write_ptr[op + 1]; ++entry) {
      if (model_.once[entry]) continue;
      // a mutation runs again on a buffer that was made again too; on the program's own it would apply twice
      if (!add_unit(model_.write[entry], model_.write_version[entry] - 1)) return false;
    }
    for (Int entry = model_.read_ptr[op]; entry < model_.read_ptr[op + 1]; ++entry) {
      if (!add_gone(events, model_.read[entry], model_.read_version[entry], cut)) return false;
    }
    return true;
  }

  Int op_of(Int buffer, Int version) const {
    return version == 0 ? model_.producer[buffer] : model_.writer[model_.writer_ptr[buffer] + version - 1];
  }

  bool may_run_again(Int op, Int buffer) const {
    for (Int entry = model_.write_ptr[op]; entry < model_.write_ptr[op + 1]; ++entry) {
      if (model_.once[entry] && model_.write[entry] == buffer) return false;
    }
    return model_.again[op] != 0;
  }

  /// Add the producer of a buffer and its mutations up to a version, unless one of them may not run again.
  bool add_unit(Int buffer, Int version) {
    if (model_.producer[buffer] < 0) return false;
    for (Int at = 0; at <= version; ++at) {
      if (!may_run_again(op_of(buffer, at), buffer)) return false;
    }
    for (Int at = 0; at <= version; ++at) {
      const Int op = op_of(buffer, at);
      if (stamp_[op] == number_) continue;
      stamp_[op] = number_;
      ops.push_back(op);
      stack_.push_back(op);
    }
    return true;
  }

  bool add_gone(const Events& events, Int buffer, Int version, const Cut& cut) {
    if (wanted_at(model_, events, buffer, cut.until) == version) return true;
    const auto [left, since] = left_before(model_, events, buffer, cut.until);
    const bool is_kept = cut.way == KEEP || (cut.way == KEEP_IF_LATE && since > cut.peak_step);
    if ((left != version || !is_kept) && add_unit(buffer, version)) return true;
    if (left != version) return false;
    if (static_cast<Int>(kept.size()) < model_.num_ops + 1) kept.emplace_back(buffer, since);
    return true;
  }

  const Model& model_;
  std::vector<Int> stamp_;
  std::vector<Int> stack_;
  Int number_ = 0;
};

}  // namespace memwatch::planner
