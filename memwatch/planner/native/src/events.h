// The uses of every buffer in step order, see `recompute/search.py`.
#pragma once

#include <algorithm>
#include <utility>

#include "draft.h"
#include "model.h"

namespace memwatch::planner {

struct Events {
  std::vector<Int> ptr;
  std::vector<Int> step;
  std::vector<Int> needs;
  std::vector<Int> leaves;
};

/// Call `use` with (buffer, version needed, version left) for everything that a computation does.
template <class Use>
void uses_of(const Model& model, Int op, bool repeats, Use use) {
  for (Int entry = model.read_ptr[op]; entry < model.read_ptr[op + 1]; ++entry) {
    use(model.read[entry], model.read_version[entry], model.read_version[entry]);
  }
  for (Int entry = model.write_ptr[op]; entry < model.write_ptr[op + 1]; ++entry) {
    if (repeats && model.once[entry]) continue;
    use(model.write[entry], model.write_version[entry] - 1, model.write_version[entry]);
  }
  for (Int entry = model.make_ptr[op]; entry < model.make_ptr[op + 1]; ++entry) use(model.make[entry], Int{-1}, Int{0});
}

/// Call `use` with (step, buffer, version needed, version left) for everything that a schedule does.
template <class Use, class Move>
void uses_of(const Model& model, const Draft& draft, Use use, Move move) {
  std::vector<char> seen(model.num_ops);
  for (Int step = 0; step < draft.length(); ++step) {
    const Int token = draft.tokens[step];
    if (!model.is_op(token)) {
      move(step, model.moved_buffer(token), model.is_offload(token));
      continue;
    }
    uses_of(model, token, seen[token] != 0,
            [&](Int buffer, Int needs, Int leaves) { use(step, buffer, needs, leaves); });
    seen[token] = 1;
  }
}

inline Events list_events(const Model& model, const Draft& draft) {
  Events events;
  events.ptr.assign(model.num_buffers + 1, 0);
  uses_of(
      model, draft, [&](Int, Int buffer, Int, Int) { ++events.ptr[buffer + 1]; },
      [&](Int, Int buffer, bool) { ++events.ptr[buffer + 1]; });
  for (Int buffer = 0; buffer < model.num_buffers; ++buffer) events.ptr[buffer + 1] += events.ptr[buffer];
  const Int total = events.ptr[model.num_buffers];
  events.step.resize(total);
  events.needs.resize(total);
  events.leaves.resize(total);
  std::vector<Int> at(events.ptr.begin(), events.ptr.end() - 1), on_host(model.num_buffers);
  const auto put = [&](Int step, Int buffer, Int needs, Int leaves) {
    const Int slot = at[buffer]++;
    events.step[slot] = step;
    events.needs[slot] = needs;
    events.leaves[slot] = leaves;
  };
  uses_of(model, draft, put, [&](Int step, Int buffer, bool is_offload) {
    if (is_offload) on_host[buffer] = at[buffer] > events.ptr[buffer] ? events.leaves[at[buffer] - 1] : 0;
    put(step, buffer, is_offload ? on_host[buffer] : -1, on_host[buffer]);
  });
  return events;
}

/// The first event of a buffer at or after a step; `ptr[buffer + 1]` for none.
inline Int first_at(const Events& events, Int buffer, Int step) {
  const auto first = events.step.begin() + events.ptr[buffer], last = events.step.begin() + events.ptr[buffer + 1];
  return std::lower_bound(first, last, step) - events.step.begin();
}

inline Int wanted_at(const Model& model, const Events& events, Int buffer, Int step) {
  const Int slot = first_at(events, buffer, step);
  return slot == events.ptr[buffer + 1] ? model.final_version[buffer] : events.needs[slot];
}

/// The version that the last event before a step left, -1 for none, and the step of that event.
inline std::pair<Int, Int> left_before(const Model& model, const Events& events, Int buffer, Int step) {
  const Int slot = first_at(events, buffer, step) - 1;
  if (slot < events.ptr[buffer]) return {model.external[buffer] ? 0 : -1, -1};
  return {events.leaves[slot], events.step[slot]};
}

}  // namespace memwatch::planner
