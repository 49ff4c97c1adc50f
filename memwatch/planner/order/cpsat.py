"""The ordering problem for the solver CP-SAT of OR-tools (extra `exact`), which proves optima of small programs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.order.exact import ancestors
from memwatch.planner.order.lists import breadth_first
from memwatch.planner.order.problem import peak_of

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntervalVar, IntVar

    from memwatch.planner.clock import Clock
    from memwatch.planner.csr import IntArray
    from memwatch.planner.order.problem import Problem


def is_available() -> bool:
    """Return True if OR-tools is installed."""
    return find_spec("ortools") is not None


def cpsat_order(
    problem: Problem, hint: IntArray, lower_bound_bytes: int, *, effort: float, seed: int, clock: Clock
) -> tuple[IntArray | None, int]:
    """Return a better order, or a bound that may prove that no order is better.

    Args:
        problem: the ordering problem.
        hint: the best order known.
        lower_bound_bytes: a bound that holds for every order.
        effort: deterministic time of the solver (about a second each).
        seed: seed of the solver.
        clock: when to stop.

    Returns:
        The best order, or None if the solver failed to find one; and the proven lower bound (bytes).
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    known = int(peak_of(problem, hint))
    starts, _peak = _build(model, problem, hint, lower_bound_bytes, known)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # more than one would make the order depend on the machine's load
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = effort
    solver.parameters.max_time_in_seconds = max(0.01, clock.left_s())
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, lower_bound_bytes
    order = np.argsort([solver.value(start) for start in starts], kind="stable").astype(np.int64)
    bound = int(peak_of(problem, order)) if status == cp_model.OPTIMAL else int(solver.best_objective_bound)
    return order, max(lower_bound_bytes, bound)


def _build(
    model: CpModel, problem: Problem, hint: IntArray, lowest: int, known: int
) -> tuple[list[IntVar], IntVar]:
    """Return the position of each op and the peak, as variables of the model.

    Each buffer is an interval from its first to its last user; the peak limits the sum of all intervals.
    """
    num_ops = problem.num_ops
    before = np.asarray(ancestors(problem, breadth_first(problem)))
    earliest, latest = before.sum(axis=1) - 1, num_ops - before.sum(axis=0)
    starts = [model.new_int_var(int(earliest[op]), int(latest[op]), f"s{op}") for op in range(num_ops)]
    model.add_all_different(starts)
    for op in range(num_ops):
        for above in problem.pred[problem.pred_ptr[op] : problem.pred_ptr[op + 1]].tolist():
            model.add(starts[above] < starts[op])
    for position, op in enumerate(hint.tolist()):
        model.add_hint(starts[op], position)
    peak = model.new_int_var(lowest - problem.always, known - problem.always, "peak")
    intervals, demands = [], []
    for op in np.flatnonzero(problem.workspace).tolist():
        intervals.append(model.new_fixed_size_interval_var(starts[op], 1, f"w{op}"))
        demands.append(int(problem.workspace[op]))
    for buffer in range(len(problem.nbytes)):
        intervals.append(_lifetime(model, problem, starts, buffer))
        demands.append(int(problem.nbytes[buffer]))
    model.add_cumulative(intervals, demands, peak)
    model.minimize(peak)
    return starts, peak


def _lifetime(model: CpModel, problem: Problem, starts: list[IntVar], buffer: int) -> IntervalVar:
    """Return the interval from the first to the last user of a buffer."""
    num_ops = problem.num_ops
    users = [
        starts[op] for op in problem.user[problem.user_ptr[buffer] : problem.user_ptr[buffer + 1]].tolist()
    ]
    # fixed where the buffer is live before the first op or after the last one
    birth = model.new_int_var(0, 0 if problem.at_start[buffer] else num_ops, f"b{buffer}")
    death = model.new_int_var(num_ops if problem.at_end[buffer] else 0, num_ops, f"d{buffer}")
    if not problem.at_start[buffer]:
        model.add_min_equality(birth, users)
    if not problem.at_end[buffer]:
        model.add_max_equality(death, [user + 1 for user in users])
    size = model.new_int_var(1, num_ops + 1, f"n{buffer}")
    return model.new_interval_var(birth, size, death, f"i{buffer}")
