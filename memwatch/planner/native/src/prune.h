// The cost of a schedule, and the removal of steps that it does not need, see `recompute/search.py`.
#pragma once

#include "sweep.h"

namespace memwatch::planner {

inline double duration(const Model& model, const Draft& draft) {
  double now = 0.0, engine = 0.0;
  std::vector<double> idle_since(model.num_buffers), ready(model.num_buffers);
  for (Int step = 0; step < draft.length(); ++step) {
    const Int token = draft.tokens[step];
    if (!model.is_op(token)) {
      const Int buffer = model.moved_buffer(token);
      if (model.is_offload(token)) {
        engine = std::max(engine, idle_since[buffer]) + model.move_cost[buffer];
        now = std::max(now, engine);
      } else {
        engine = std::max(engine, now) + model.move_cost[buffer];
        ready[buffer] = engine;
      }
      continue;
    }
    const auto used = [&](Ints ptr, Ints buffers, auto use) {
      for (Int entry = ptr[token]; entry < ptr[token + 1]; ++entry) use(buffers[entry]);
    };
    const auto wait = [&](Int buffer) { now = std::max(now, ready[buffer]); };
    const auto leave = [&](Int buffer) { idle_since[buffer] = now; };
    used(model.read_ptr, model.read, wait);
    used(model.write_ptr, model.write, wait);
    now += model.cost[token];
    used(model.read_ptr, model.read, leave);
    used(model.write_ptr, model.write, leave);
    used(model.make_ptr, model.make, leave);
  }
  return std::max(now, engine);
}

/// How often every op is computed.
inline std::vector<Int> computes(const Model& model, const Draft& draft) {
  std::vector<Int> count(model.num_ops);
  for (Int step = 0; step < draft.length(); ++step) {
    if (model.is_op(draft.tokens[step])) ++count[draft.tokens[step]];
  }
  return count;
}

inline bool is_useless(const Model& model, Int op, const Work& work, bool is_first) {
  for (Int entry = model.make_ptr[op]; entry < model.make_ptr[op + 1]; ++entry) {
    if (work.wanted[model.make[entry]] == 0) return false;
  }
  for (Int entry = model.write_ptr[op]; entry < model.write_ptr[op + 1]; ++entry) {
    if ((is_first || !model.once[entry]) && work.wanted[model.write[entry]] != -1) return false;
  }
  return true;
}

/// Remove the repeated ops and the moves whose results are not used.
inline void drop_useless(const Model& model, const Draft& draft, const Work& work) {
  std::vector<Int> count = computes(model, draft), before = count;
  begin(model, draft, work);
  const Int size = draft.length();
  Int at = size;
  for (Int step = size - 1; step >= 0; --step) {
    const Int token = draft.tokens[step];
    if (model.is_op(token)) {
      --before[token];
      // the first computation of such an op keeps its place, so a later one is dropped instead
      const bool is_bound = model.stays[token] == 1 && before[token] == 0;
      if (count[token] > 1 && !is_bound && is_useless(model, token, work, before[token] == 0)) {
        --count[token];
        if (model.has_once) --work.left[token];
        continue;
      }
      compute_backwards(model, token, step, work);
    } else {
      const Int buffer = model.moved_buffer(token);
      if ((model.is_offload(token) ? work.host[buffer] : work.wanted[buffer]) == -1) continue;
      move_backwards(model, token, step, work);
    }
    --at;
    draft.tokens[at] = token;
    draft.ids[at] = draft.ids[step];
  }
  std::copy(draft.tokens.data + at, draft.tokens.data + size, draft.tokens.data);
  std::copy(draft.ids.data + at, draft.ids.data + size, draft.ids.data);
  draft.size[0] = size - at;
}

/// Remove one step; a move out is removed together with the move back.
inline void remove_step(const Model& model, const Draft& draft, Int step) {
  const Int token = draft.tokens[step];
  Int partner = -1;
  for (Int later = step + 1; !model.is_op(token) && later < draft.length(); ++later) {
    if (draft.tokens[later] != token + model.num_buffers) continue;
    partner = later;
    break;
  }
  remove(draft, step, partner);
}

/// Whether a schedule may do without a step: a repeated op or a move out.
inline bool is_removable(const Model& model, const Draft& draft, Int step, const std::vector<Int>& count) {
  const Int token = draft.tokens[step];
  if (!model.is_op(token)) return model.is_offload(token);
  if (count[token] < 2) return false;
  return model.stays[token] == 0 ||
         std::find(draft.tokens.data, draft.tokens.data + step, token) != draft.tokens.data + step;
}

/// Remove every recompute and move that the budget does not need; the steps are tried in the order of `rank`.
inline void prune(const Model& model, const Draft& draft, Int budget, Ints rank) {
  const Int length = draft.length();
  OwnWork work(model, length);
  OwnDraft trial(length);
  std::vector<Int> where(length);
  for (Int step = 0; step < length; ++step) draft.ids[step] = where[step] = step;
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<Int> count = computes(model, draft);
    for (const Int original : rank) {
      const Int step = where[original];
      if (step < 0 || !is_removable(model, draft, step, count)) continue;
      copy(draft, trial);
      remove_step(model, trial, step);
      drop_useless(model, trial, work);
      const Int peak = sweep(model, trial, work);
      if (peak < 0 || peak > budget) continue;
      changed = true;
      copy(trial, draft);
      count = computes(model, draft);
      std::fill(where.begin(), where.end(), Int{-1});
      for (Int position = 0; position < draft.length(); ++position) where[draft.ids[position]] = position;
    }
  }
}

}  // namespace memwatch::planner
