// One backward pass over a schedule, see `recompute/search.py`.
#pragma once

#include <algorithm>

#include "draft.h"
#include "model.h"

namespace memwatch::planner {

struct Work {
  Ints wanted;
  Ints until;
  Ints host;
  Ints live;
  Ints first;
  Ints left;
};

class OwnWork {
 public:
  OwnWork(const Model& model, Int room) : memory_(3 * model.num_buffers + room + 2 + 2 * model.num_ops) {
    Int* at = memory_.data();
    const auto take = [&at](Int size) {
      const Ints taken{at, size};
      at += size;
      return taken;
    };
    const Int buffers = model.num_buffers;
    work_ = {take(buffers), take(buffers), take(buffers), take(room + 2), take(model.num_ops), take(model.num_ops)};
  }
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;

  operator const Work&() const { return work_; }
  const Work* operator->() const { return &work_; }

 private:
  std::vector<Int> memory_;
  Work work_;
};

inline bool compute_backwards(const Model& model, Int op, Int step, const Work& work) {
  const bool repeats = model.has_once && --work.left[op] > 0;
  for (Int entry = model.write_ptr[op]; entry < model.write_ptr[op + 1]; ++entry) {
    if (repeats && model.once[entry]) continue;
    const Int buffer = model.write[entry], version = model.write_version[entry];
    if (work.wanted[buffer] == -1) {
      work.until[buffer] = step;
    } else if (work.wanted[buffer] != version) {
      return false;
    }
    work.wanted[buffer] = version - 1;
  }
  for (Int entry = model.read_ptr[op]; entry < model.read_ptr[op + 1]; ++entry) {
    const Int buffer = model.read[entry], version = model.read_version[entry];
    if (work.wanted[buffer] == -1) {
      work.until[buffer] = step;
      work.wanted[buffer] = version;
    } else if (work.wanted[buffer] != version) {
      return false;
    }
  }
  for (Int entry = model.make_ptr[op]; entry < model.make_ptr[op + 1]; ++entry) {
    const Int buffer = model.make[entry];
    work.live[step] += model.nbytes[buffer];
    if (work.wanted[buffer] == 0) {
      work.live[work.until[buffer] + 1] -= model.nbytes[buffer];
      work.wanted[buffer] = -1;
    } else {  // no later step wants this version: dropped at once
      work.live[step + 1] -= model.nbytes[buffer];
    }
  }
  return true;
}

inline bool move_backwards(const Model& model, Int token, Int step, const Work& work) {
  Int buffer = token - model.num_ops;
  if (buffer >= model.num_buffers) {  // a reload
    buffer -= model.num_buffers;
    const Int wanted = work.wanted[buffer];
    if (wanted == -1 || (work.host[buffer] != -1 && work.host[buffer] != wanted)) return false;
    work.live[step] += model.nbytes[buffer];
    work.live[work.until[buffer] + 1] -= model.nbytes[buffer];
    work.host[buffer] = wanted;
    work.wanted[buffer] = -1;
    return true;
  }
  if (work.host[buffer] == -1) return false;
  if (work.wanted[buffer] == -1) {
    work.until[buffer] = step;
    work.wanted[buffer] = work.host[buffer];
  } else if (work.wanted[buffer] != work.host[buffer]) {
    return false;
  }
  work.host[buffer] = -1;
  return true;
}

inline void begin(const Model& model, const Draft& draft, const Work& work) {
  std::copy_n(model.final_version.data, model.num_buffers, work.wanted.data);
  std::fill(work.until.begin(), work.until.end(), draft.length());
  std::fill(work.host.begin(), work.host.end(), Int{-1});
  std::fill_n(work.live.data, draft.length() + 2, Int{0});
  if (!model.has_once) return;
  std::fill(work.left.begin(), work.left.end(), Int{0});
  for (Int step = 0; step < draft.length(); ++step) {
    if (model.is_op(draft.tokens[step])) ++work.left[draft.tokens[step]];
  }
}

/// Write the bytes alive during every step to `work.live`; return the peak, -1 for a schedule that is not valid.
inline Int sweep(const Model& model, const Draft& draft, const Work& work) {
  begin(model, draft, work);
  for (Int step = draft.length() - 1; step >= 0; --step) {
    const Int token = draft.tokens[step];
    const bool is_valid =
        model.is_op(token) ? compute_backwards(model, token, step, work) : move_backwards(model, token, step, work);
    if (!is_valid) return -1;
  }
  Int level = model.always;
  for (Int buffer = 0; buffer < model.num_buffers; ++buffer) {
    if (work.host[buffer] != -1) return -1;
    const Int version = work.wanted[buffer];
    if (version == -1) continue;
    if (version != 0 || model.external[buffer] == 0) return -1;
    level += model.nbytes[buffer];
    work.live[work.until[buffer] + 1] -= model.nbytes[buffer];
  }
  Int peak = level;
  for (Int step = 0; step < draft.length(); ++step) {
    level += work.live[step];
    work.live[step] = level;
    if (model.is_op(draft.tokens[step])) work.live[step] += model.workspace[draft.tokens[step]];
    peak = std::max(peak, work.live[step]);
  }
  return peak;
}

/// The bytes above the budget after a sweep, summed over the steps; 0 exactly when the schedule fits.
/// A repeated op counts only with the bytes that it adds to the step for which it runs. All steps near it may be far
/// above the budget. If a repeated op counted in full, every cut there would look bad.
inline double overflow(const Model& model, const Draft& draft, const Work& work, Int budget) {
  const Ints tokens = draft.tokens;
  for (Int step = draft.length() - 1; step >= 0; --step) {
    if (model.is_op(tokens[step])) work.first[tokens[step]] = step;
  }
  Int total = 0, served = 0;
  for (Int step = draft.length() - 1; step >= 0; --step) {
    const Int above = std::max(work.live[step] - budget, Int{0});
    if (model.is_op(tokens[step]) && work.first[tokens[step]] == step) {
      total += above;
      served = above;
    } else {
      total += std::max(above - served, Int{0});
    }
  }
  return static_cast<double>(total);
}

}  // namespace memwatch::planner
