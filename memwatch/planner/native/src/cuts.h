// The gaps at a step, and the two ways to cut one: compute the buffer again, or move it out and back.
//
// A gap is a stretch of steps between two uses of a buffer, during which the buffer lies idle. To compute the buffer
// again, its op needs its inputs. If an input was freed, the op that makes it has to run again too, and so on.
#pragma once

#include "missing.h"

namespace memwatch::planner {

/// The schedule that is searched for cuts.
struct Scene {
  const Draft& draft;
  const Events& events;
  Missing& missing;
  Ints live;
  Int budget;
};

/// The buffers that are idle at a step and wanted later.
inline std::vector<Cut> gaps_at(const Model& model, const Events& events, const Draft& draft, Int step) {
  std::vector<Cut> found;
  for (Int buffer = 0; buffer < model.num_buffers; ++buffer) {
    if (model.nbytes[buffer] == 0) continue;
    const Int slot = first_at(events, buffer, step);
    const bool is_last = slot == events.ptr[buffer + 1];
    if (!is_last && events.step[slot] == step) continue;
    const Int version = is_last ? model.final_version[buffer] : events.needs[slot];
    if (version < 0) continue;
    const auto [left, since] = left_before(model, events, buffer, step);
    if (left != version) continue;
    found.push_back({buffer, version, since, is_last ? draft.length() : events.step[slot], 0, step});
  }
  return found;
}

/// Where a buffer moves out and back, and the time of the copies that computing does not hide.
struct MovePoints {
  Int out_before;
  Int in_before;
  double stall;
};

/// Hide the copies as far as possible. A buffer is alive while it is copied, so only steps that are within the budget
/// with it can hide a copy.
inline MovePoints move_points(const Model& model, const Scene& scene, const Cut& cut) {
  const Ints tokens = scene.draft.tokens;
  double left = model.move_cost[cut.buffer];
  Int out_before = cut.since + 1;
  while (left > 0 && out_before < cut.peak_step && scene.live[out_before] <= scene.budget) {
    if (model.is_op(tokens[out_before])) left -= model.cost[tokens[out_before]];
    ++out_before;
  }
  const double stall = std::max(left, 0.0);
  left = model.move_cost[cut.buffer];
  Int in_before = cut.until;
  while (left > 0 && in_before - 1 > cut.peak_step && scene.live[in_before - 1] <= scene.budget) {
    --in_before;
    if (model.is_op(tokens[in_before])) left -= model.cost[tokens[in_before]];
  }
  return {out_before, in_before, stall + std::max(left, 0.0)};
}

/// Make a cut in `target`, which equals the schedule of the scene up to the end of the cut; false if impossible.
inline bool apply_cut(const Model& model, const Scene& scene, const Draft& target, const Cut& cut, Int limit,
                      double& price) {
  if (cut.way == MOVE) {
    const MovePoints points = move_points(model, scene, cut);
    const Int reload = model.num_ops + model.num_buffers + cut.buffer, offload = model.num_ops + cut.buffer;
    insert(target, points.in_before, &reload, 1);
    insert(target, points.out_before, &offload, 1);
    price = points.stall;
    return true;
  }
  price = 0.0;
  if (!scene.missing.find(scene.events, cut, limit)) return false;
  insert(target, cut.until, scene.missing.ops.data(), static_cast<Int>(scene.missing.ops.size()));
  price = scene.missing.price();
  return true;
}

}  // namespace memwatch::planner
