"""Iterations: when one ends and the next begins, and what stays alive from one into the next.

The program's own marks (`prof.step()`) say it best. Without them an iteration ends with the optimizer's step, without
steps with a backward, and where none of these ran with a call of the outermost module, as in generation: what runs
until the next call belongs to neither iteration, for it may end the one or prepare the other. What a program without
all of them does is divided by the passes of its outermost loop (`passes.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.analysis.facts.evaluations import evaluations, kept_in_evaluations
from memwatch.analysis.facts.idle_copies import idle_copies
from memwatch.analysis.facts.places import runs_in_backward
from memwatch.analysis.facts.step_curve import step_curve
from memwatch.capture.schema import IN_BACKWARD, NONE, ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.places import Places
    from memwatch.analysis.facts.uses import UseBounds
    from memwatch.capture import Capture
    from memwatch.capture.packed import Columns, IntArray

MARK = "step"
"""Name of the rows of the recorded `steps` that are calls of `prof.step()`."""
_FOREVER = np.iinfo(np.int64).max
_FEWEST_CROSSED = 2
_INPUT = ROLES.index("input")


class Boundaries(NamedTuple):
    """When iterations end and the next ones begin, in unix time; as many of both, in order.

    Attributes:
        ends_ns: when an iteration ends.
        starts_ns: when the next one begins.
    """

    ends_ns: IntArray
    starts_ns: IntArray


class KeptAcross(NamedTuple):
    """Per allocation: whether it is alive across iterations.

    Attributes:
        needed: alive across at least one boundary and used after that, or alive across two.
        by_itself: alive across two boundaries, and autograd saved it across none of them.
        like_others: made too late to be alive across two, by calls whose earlier results mostly were kept.
        lasting: no iteration tells, but what no call's return ends was seen to keep it.
        are_told: whether a step, a backward or a call of a module tells where any iteration ends.
        ends_ns: when iterations end, or the passes of a loop.
    """

    needed: NDArray[np.bool_]
    by_itself: NDArray[np.bool_]
    like_others: NDArray[np.bool_]
    lasting: NDArray[np.bool_]
    are_told: bool
    ends_ns: IntArray


def boundaries(capture: Capture, places: Places) -> Boundaries:
    """Return when iterations end; nothing where no step, backward or module call tells."""
    if capture.rows("step_curve"):
        return at(step_curve(capture).end_ns)
    steps = capture.tables["steps"]
    marks = np.array([name == MARK for name in capture.text(steps["name"])], dtype=bool)
    if marks.any():
        return at(steps["time_ns"][marks])
    if len(marks):
        return at(_ends_of_steps(capture, places))
    backward = _ends_of_backwards(capture.tables["ops"])
    return at(backward) if len(backward) else _between_calls(capture)


def at(times_ns: IntArray) -> Boundaries:
    """Return the boundaries where an iteration begins when the last one ends."""
    return Boundaries(times_ns, times_ns)


def kept_across(
    capture: Capture, allocations: Allocations, uses: UseBounds, bounds: Boundaries
) -> KeptAcross:
    """Return which allocations are alive across the ends of iterations."""
    death_ns = np.where(allocations.death_ns == NONE, _FOREVER, allocations.death_ns)
    first, count = _crossed(allocations.birth_ns, death_ns, bounds)
    is_often = count >= _FEWEST_CROSSED
    needed, some = is_often.copy(), np.flatnonzero(count > 0)
    del death_ns, count
    last_use_ns = _last_use_ns(capture, uses.last_op[some])
    needed[some] |= last_use_ns >= np.append(bounds.starts_ns, _FOREVER)[first[some]]
    if bounds.starts_ns is bounds.ends_ns:  # else what lies between calls belongs to an iteration too
        needed |= idle_copies(capture, allocations, uses.last_op, bounds.ends_ns)
    by_itself = is_often & ~_saved_across(capture, allocations, bounds)
    ends_ns = bounds.ends_ns
    is_last = allocations.birth_ns > np.sort(ends_ns)[-_FEWEST_CROSSED : 1 - _FEWEST_CROSSED].max(initial=0)
    like_others = _like_others(capture, allocations, needed, is_last)
    in_loops = evaluations(capture, ends_ns)
    if len(in_loops.ends_ns):
        last_use_ns = _last_use_ns(capture, uses.last_op)
        needed |= kept_in_evaluations(in_loops, allocations, last_use_ns)
        made_last = in_loops.are_made_last(allocations.birth_ns)
        like_others |= _like_others(capture, allocations, needed, made_last)
    lasting = np.zeros(len(allocations), dtype=bool)
    return KeptAcross(needed, by_itself, like_others, lasting, are_told=len(ends_ns) > 0, ends_ns=ends_ns)


def _last_use_ns(capture: Capture, last_op: IntArray) -> IntArray:
    """Return when each of these ops started, 0 for none."""
    started_ns, found = capture.tables["ops"]["start_ns"], np.zeros(len(last_op), dtype=np.int64)
    is_used = (last_op != NONE) & (last_op < len(started_ns))
    found[is_used] = started_ns[last_op[is_used]]
    return found


def _like_others(
    capture: Capture, allocations: Allocations, needed: NDArray[np.bool_], is_last: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return what was made last, like what was kept of earlier iterations: its own end is not recorded.

    Where the same calls made memory of that size before, it is like that: of all that an op makes, some may be kept.
    What was kept in a role, as the gradient that others are added to, tells nothing of what is in none. That a module
    was given it is no such role: it is given the cache that it has made.
    """
    roles = capture.tables["roles"]
    needed = needed & ~np.isin(allocations.storage, roles["storage"][roles["role"] != _INPUT])
    stacks = np.append(capture.tables["ops"]["stack"], NONE)[np.minimum(allocations.op, capture.rows("ops"))]
    stacks[(allocations.op == NONE) | (allocations.storage == NONE)] = NONE
    like = is_last & _is_often(stacks, is_last, needed)[0]
    rows = np.flatnonzero((stacks != NONE) & np.isin(stacks, np.unique(stacks[is_last])))
    number = allocations.nbytes[rows].astype(np.int64) * (int(stacks.max(initial=0)) + 1) + stacks[rows]
    _, alike = np.unique(number, return_inverse=True)
    often, is_known = _is_often(alike, is_last[rows], needed[rows])
    like[rows] = np.where(is_known, is_last[rows] & often, like[rows])
    return like


def _is_often(
    groups: IntArray, is_last: NDArray[np.bool_], needed: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether most that each one's group made before was kept, and whether it made any; -1 is no group."""
    size = int(groups.max(initial=0)) + 2
    made = np.bincount(groups[~is_last] + 1, minlength=size)
    kept = np.bincount(groups[~is_last & needed] + 1, minlength=size)
    often = 2 * kept > made
    often[0] = False
    return often[groups + 1], made[groups + 1] > 0


def _crossed(start_ns: IntArray, end_ns: IntArray, bounds: Boundaries) -> tuple[IntArray, IntArray]:
    """Return, for each stretch of time, the first boundary in it and how many there are."""
    first = np.searchsorted(bounds.ends_ns, start_ns, side="right").astype(np.int32)
    count = np.searchsorted(bounds.starts_ns, end_ns).astype(np.int32)
    count -= first
    return first, np.maximum(count, 0, out=count)


def _saved_across(capture: Capture, allocations: Allocations, bounds: Boundaries) -> NDArray[np.bool_]:
    """Return which allocations autograd saved at the end of an iteration, and still had in the next."""
    packs, unpacks = capture.tables["packs"], capture.tables["unpacks"]
    end_ns = np.full(int(packs["pack"].max(initial=-1)) + 2, _FOREVER, dtype=np.int64)
    released = unpacks["released"] == 1
    end_ns[unpacks["pack"][released]] = unpacks["time_ns"][released]
    _, count = _crossed(packs["time_ns"], end_ns[packs["pack"]], bounds)
    storages = packs["storage"][(count > 0) & (packs["storage"] != NONE)]
    return np.isin(allocations.storage, storages)


def _ends_of_steps(capture: Capture, places: Places) -> IntArray:
    """Return when optimizer steps end that the line of the last one runs: a GAN has two in each iteration.

    Where a library's line calls all steps, the program's own line tells them apart. Steps that hooks make within a
    backward, one for each parameter, end with it.
    """
    steps, ops = capture.tables["steps"], capture.tables["ops"]
    order = np.argsort(steps["end_op"], kind="stable")
    started, time_ns = steps["op"][order], steps["time_ns"][order]
    stacks = np.append(ops["stack"], NONE)[np.minimum(started, len(ops["stack"]))]
    lines, own_lines = places.lines(stacks), places.own_lines(stacks)
    is_last = (lines == lines[-1]) & (own_lines == own_lines[-1])
    in_backward = np.append(runs_in_backward(capture), False)
    within = is_last & in_backward[np.minimum(started, len(ops["stack"]))]
    outside = np.flatnonzero(~in_backward)
    after = outside[np.searchsorted(outside, started[within])]
    ends_ns: IntArray = np.unique(np.concatenate([time_ns[is_last & ~within], ops["end_ns"][after - 1]]))
    return ends_ns


def _ends_of_backwards(ops: Columns) -> IntArray:
    inside = np.isin(ops["phase"], IN_BACKWARD)
    last = np.flatnonzero(inside & ~np.append(inside[1:], False)[: len(inside)])
    ends_ns: IntArray = ops["end_ns"][last]
    return ends_ns


def _between_calls(capture: Capture) -> Boundaries:
    """Return the stretches between two calls of the root module that ran last."""
    calls, ops = capture.tables["calls"], capture.tables["ops"]
    root = np.flatnonzero(calls["depth"] == 0)
    if not len(root):
        return at(np.zeros(0, dtype=np.int64))
    last = calls["module"][root[np.argmax(calls["start_op"][root])]]
    of_last = root[calls["module"][root] == last]
    of_last = of_last[np.argsort(calls["start_op"][of_last], kind="stable")]
    again, ended = calls["start_op"][of_last][1:], calls["end_op"][of_last][:-1]
    ran = (again < len(ops["start_ns"])) & (ended > 0)
    return Boundaries(ops["end_ns"][ended[ran] - 1], ops["start_ns"][again[ran]])
