// The kernels of the planner, as a library without dependencies; `native/library.py` calls them.
#include "anneal.h"
#include "beam.h"
#include "exact.h"
#include "lists.h"
#include "polish.h"
#include "rotor.h"

#define KERNEL extern "C" __attribute__((visibility("default")))

using namespace memwatch::planner;

KERNEL Int sweep_schedule(const Model* model, const Draft* draft, const Work* work) {
  return sweep(*model, *draft, *work);
}

KERNEL double duration_of(const Model* model, const Draft* draft) { return duration(*model, *draft); }

KERNEL Int fit_schedule(const Model* model, const Draft* draft, const Style* style) {
  return Greedy(*model, *draft, *style).fit();
}

KERNEL void prune_schedule(const Model* model, const Draft* draft, Int budget, const Ints* rank) {
  prune(*model, *draft, budget, *rank);
}

KERNEL void polish_schedule(const Model* model, const Draft* draft, const Effort* effort) {
  Polish(*model, *draft, *effort).run();
}

KERNEL void fill_rotor(const Chain* chain) { fill_chain(*chain); }

KERNEL Int peak_of_order(const Problem* problem, const Ints* order) { return peak_of(*problem, *order); }

KERNEL void breadth_first_order(const Problem* problem, const Ints* order) { breadth_first(*problem, *order); }

KERNEL void depth_first_order(const Problem* problem, const Ints* by_size, const Ints* below, const Ints* order) {
  depth_first(*problem, *by_size, *below, *order);
}

KERNEL void least_growth_order(const Problem* problem, Int longest, Int widest, const Ints* order) {
  least_growth(*problem, longest, widest, *order);
}

KERNEL void beam_order(const Problem* problem, Int width, const Words* bits, const Ints* order) {
  beam_search(*problem, width, *bits, *order);
}

KERNEL Int anneal_order(const Problem* problem, const Ints* order, const Ints* best, const Words* random,
                        const Cooling* cooling) {
  return Annealing(*problem, *order, *random).run(*best, *cooling);
}

KERNEL void walk_of_order(const Problem* problem, const Walk* walk) { fill_walk(*problem, *walk); }

KERNEL void ancestors_of_ops(const Problem* problem, const Ints* order, const Bytes* before) {
  ancestors(*problem, *order, *before);
}

KERNEL void needs_of_ops(const Problem* problem, const Bytes* before, const Needs* needs) {
  needs_matrix(*problem, *before, *needs);
}

KERNEL void must_live_bytes(const Problem* problem, const Ints* order, const Ints* chosen, const Ints* total) {
  must_live(*problem, *order, *chosen, *total);
}

/// Queue the empty downset in a new search.
KERNEL void begin_search(const Search* search, Int live) { search->begin(live); }

/// Write (status, path) to `found`.
KERNEL void advance_search(const Problem* problem, const Needs* needs, const Search* search, Int below,
                           Int max_expansions, const Ints* found) {
  Int path = -1;
  (*found)[0] = ExactSearch(*problem, *needs, *search, below).advance(max_expansions, path);
  (*found)[1] = path;
}
