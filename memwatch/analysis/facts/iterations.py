"""Find where one iteration ends and the next begins, and the memory that stays alive from one into the next.

The program's own marks (`prof.step()`) are the best sign. Without them an iteration ends with the optimizer's step.
Without an optimizer it ends with a backward. Without a backward it ends with a call of the outermost module, as in
generation. Ops between two such calls belong to neither iteration: they may end one or prepare the other. If a
program has none of these signs, the passes of its outermost loop are its iterations (`passes.py`).

This module finds two kinds of memory. First, a copy that is made between two iterations and outlives the next whole
iteration without being used is kept for later, such as the best weights so far. Second, a program that trains may
also call a model many times without gradients between two iterations: a validation, a prediction, a rollout. The
program keeps memory that outlives one of these calls and is used in a later one, or that outlives two of them, such
as a list of predictions. A call that most iterations make, such as the call of a teacher, belongs to these
iterations.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE
from memwatch.analysis.facts.places import runs_in_backward
from memwatch.analysis.facts.step_curve import FIGURES, StepCurve, step_curve
from memwatch.capture.schema import FORWARD, IN_BACKWARD, NONE
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.roles import ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.biographies import UseBounds
    from memwatch.analysis.facts.live_curve import LiveCurve
    from memwatch.analysis.facts.places import CallStacks, Places
    from memwatch.capture import Capture
    from memwatch.capture.columns import Columns, IntArray

_FEWEST_MAKING: Final = 2
"""Iterations that make a result in the same line, so that iterations make it anew. A guess."""
_FEWEST_CALLS: Final = 3
"""Calls of a model without gradients that make a loop of inference. A guess."""


class Evaluations(NamedTuple):
    """Calls of a model in loops that evaluate, in order, without the first call of each loop.

    Attributes:
        ends_ns: when the previous call ends, in unix time.
        starts_ns: when the call starts.
        loops_ns: the start and the end of each loop, in order.
        last_ns: the start of the second-last call of each loop, and the loop's end, in order.
    """

    ends_ns: IntArray
    starts_ns: IntArray
    loops_ns: IntArray
    last_ns: IntArray

    def are_made_last(self, times_ns: IntArray) -> NDArray[np.bool_]:
        """Return which times lie in the last two calls of a loop. No later call shows whether their memory is kept."""
        return _are_within(self.last_ns, times_ns)


def evaluations(capture: Capture, ends_ns: IntArray) -> Evaluations:
    """Return the loops that evaluate between the ends of iterations."""
    calls, ops = capture.tables["calls"], capture.tables["ops"]
    rows = np.flatnonzero((calls["depth"] == 0) & (calls["start_op"] < calls["end_op"]))
    rows = rows[np.argsort(calls["start_op"][rows], kind="stable")]
    first_op = calls["start_op"][rows]
    rows = rows[(ops["phase"][first_op] == FORWARD) & (ops["sequence"][first_op] == NONE)]
    module = calls["module"][rows]
    start_ns, end_ns = ops["start_ns"][calls["start_op"][rows]], ops["end_ns"][calls["end_op"][rows] - 1]
    between = np.searchsorted(np.sort(ends_ns), start_ns)
    ends, starts, loops, last_calls = [], [], [], []
    for number in np.unique(between):
        here = np.flatnonzero(between == number)
        model = module[here[-1]]
        here = here[module[here] == model]
        is_of_most = 2 * len(np.unique(between[module == model])) > len(ends_ns) + 1
        if len(here) >= _FEWEST_CALLS and not is_of_most:
            ends.append(end_ns[here[:-1]])
            starts.append(start_ns[here[1:]])
            loops.append([start_ns[here[0]], end_ns[here[-1]] + 1])
            last_calls.append([start_ns[here[-2]], end_ns[here[-1]] + 1])
    none = np.zeros(0, dtype=np.int64)
    return Evaluations(*(np.concatenate([none, *each]) for each in (ends, starts, loops, last_calls)))


def kept_in_evaluations(
    found: Evaluations, allocations: Allocations, last_use_ns: IntArray
) -> NDArray[np.bool_]:
    """Return the allocations that an evaluating loop makes and keeps.

    Args:
        found: the loops.
        allocations: every piece of memory.
        last_use_ns: when each was used last, 0 for never.
    """
    forever = np.iinfo(np.int64).max
    death_ns = np.where(allocations.death_ns == NONE, forever, allocations.death_ns)
    first = np.searchsorted(found.ends_ns, allocations.birth_ns, side="right")
    count = np.searchsorted(found.starts_ns, death_ns) - first
    is_used_later = last_use_ns >= np.append(found.starts_ns, forever)[first]
    kept: NDArray[np.bool_] = (count > 1) | ((count > 0) & is_used_later)
    return kept & _are_within(found.loops_ns, allocations.birth_ns)


def _are_within(stretches_ns: IntArray, times_ns: IntArray) -> NDArray[np.bool_]:
    """Return which times lie in a stretch, given when each starts and ends, in order."""
    within: NDArray[np.bool_] = np.searchsorted(stretches_ns, times_ns, side="right") % 2 == 1
    return within


def idle_copies(
    capture: Capture, allocations: Allocations, last_op: IntArray, ends_ns: IntArray
) -> NDArray[np.bool_]:
    """Return which allocations were made between iterations and outlive the next, whose calls and steps pass them by.

    Args:
        capture: the recorded tables.
        allocations: every piece of memory.
        last_op: the last op that used each, -1 for none.
        ends_ns: when iterations end.
    """
    calls, started_ns = capture.tables["calls"], capture.tables["ops"]["start_ns"]
    outermost = calls["start_op"][(calls["depth"] == 0) & (calls["start_op"] < len(started_ns))]
    ends_ns, called_ns = np.sort(ends_ns), np.sort(started_ns[outermost])
    if not len(ends_ns) or not len(called_ns):
        return np.zeros(len(allocations), dtype=bool)
    never = np.iinfo(np.int64).max
    # when each iteration begins in earnest: its first call of a module, if it has one
    first = np.searchsorted(called_ns, np.append(0, ends_ns))
    begins_ns, ends_ns = np.append(called_ns, never)[first], np.append(ends_ns, never)
    begins_ns = np.where(begins_ns < ends_ns, begins_ns, 0)
    iteration = np.searchsorted(ends_ns, allocations.birth_ns, side="right")
    death_ns = np.where(allocations.death_ns == NONE, never, allocations.death_ns)
    is_used = (last_op != NONE) & (last_op < len(started_ns))
    last_ns = np.where(is_used, started_ns[np.where(is_used, last_op, 0)], 0)
    found: NDArray[np.bool_] = (allocations.origin != BASELINE) & (death_ns > ends_ns[iteration])
    found &= np.maximum(allocations.birth_ns, last_ns) < begins_ns[iteration]
    return found


def made_in_most(capture: Capture, allocations: Allocations, ends_ns: IntArray) -> NDArray[np.bool_]:
    """Return the results of ops that most iterations run in the same line.

    Args:
        capture: the recorded tables.
        allocations: every piece of memory.
        ends_ns: when iterations end.
    """
    ops = capture.tables["ops"]
    number = ops["stack"].astype(np.int64) * (int(ops["name"].max(initial=0)) + 1) + ops["name"]
    number[ops["stack"] == NONE] = NONE
    place = np.append(number, NONE)[np.minimum(allocations.op, len(number))]
    rows = np.flatnonzero((allocations.op != NONE) & (allocations.storage != NONE) & (place != NONE))
    places, of_row = np.unique(place[rows], return_inverse=True)
    iteration = np.searchsorted(np.sort(ends_ns), allocations.birth_ns[rows])
    # a line that makes many results in one iteration counts once
    pairs = np.unique(of_row * (len(ends_ns) + 1) + iteration)
    count = np.bincount(pairs // (len(ends_ns) + 1), minlength=len(places))
    is_often = (count >= _FEWEST_MAKING) & (2 * count > len(np.unique(iteration)))
    made = np.zeros(len(allocations), dtype=bool)
    made[rows] = is_often[of_row]
    return made


MARK = "step"
"""Name of the rows of the recorded `steps` that are calls of `prof.step()`."""
_FOREVER = np.iinfo(np.int64).max
_FEWEST_CROSSED = 2
"""Ends of iterations that memory must outlive to count as kept, whether it is used again or not. A guess."""
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
        needed: alive across at least one boundary and used after it, or alive across two; also idle copies, and
            memory that evaluations keep.
        by_itself: alive across two boundaries, and autograd saved it across neither of them.
        like_others: made too late to be alive across two boundaries, by calls whose earlier results were mostly kept.
        lasting: the program has no sign of iterations, but a sample found a holder that outlives every call.
        are_told: whether the program has a sign of iterations: a step, a backward, or two calls of a module.
        ends_ns: when iterations end, or the passes of a loop.
    """

    needed: NDArray[np.bool_]
    by_itself: NDArray[np.bool_]
    like_others: NDArray[np.bool_]
    lasting: NDArray[np.bool_]
    are_told: bool
    ends_ns: IntArray


def boundaries(capture: Capture, places: Places) -> Boundaries:
    """Return when iterations end.

    The result is empty if the program has neither a step nor a backward, and at most one module call.
    """
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
    if bounds.starts_ns is bounds.ends_ns:  # else ops between calls belong to an iteration too
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
    """Return the latest allocations that resemble kept allocations of earlier iterations.

    Their own end is not recorded.

    An allocation resembles an earlier one if the same calls made memory of the same size. If the size is new, any
    size counts. The size matters because an op may make several results, and the program may keep only some of them.
    An earlier allocation with a role, such as a gradient, proves nothing about an allocation without a role. The role
    "input of a module" is an exception: a module may receive the cache that it made itself.
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
    """Return whether most earlier allocations of each one's group were kept, and whether there were any.

    Group -1 means "no group".
    """
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
    """Return the ends of the optimizer steps that the same line calls as the last step.

    A GAN has two in each iteration.

    If a library's line calls all steps, the program's own line separates them. If hooks step each parameter within a
    backward, these steps end with the backward.
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
    ops = capture.tables["ops"]
    start_op, end_op = _calls_of_last_root(capture)
    again, ended = start_op[1:], end_op[:-1]
    ran = (again < len(ops["start_ns"])) & (ended > 0)
    return Boundaries(ops["end_ns"][ended[ran] - 1], ops["start_ns"][again[ran]])


def _calls_of_last_root(capture: Capture) -> tuple[IntArray, IntArray]:
    """Return the first op of each call of the root module that ran last, and the op after its last, in order."""
    calls = capture.tables["calls"]
    root = np.flatnonzero(calls["depth"] == 0)
    if len(root):
        last = calls["module"][root[np.argmax(calls["start_op"][root])]]
        root = root[calls["module"][root] == last]
        root = root[np.argsort(calls["start_op"][root], kind="stable")]
    return calls["start_op"][root], calls["end_op"][root]


def may_be_in_forward(capture: Capture) -> bool:
    """Return True if iterations are calls of a module, and these calls may belong to one forward of a training.

    The graph of an early call then lives on. In a loop of inference, each call replaces the result of the call before.
    """
    if capture.rows("step_curve") or capture.rows("steps"):
        return False
    if np.isin(capture.tables["ops"]["phase"], IN_BACKWARD).any():
        return False
    start_op, _ = _calls_of_last_root(capture)
    if not len(start_op) or not capture.rows("packs"):
        return False
    packs, unpacks = capture.tables["packs"], capture.tables["unpacks"]
    # the last call may still have to replace the result of the one before
    early = packs["pack"][(packs["op"] >= start_op[0]) & (packs["op"] < start_op[max(len(start_op) - 2, 1)])]
    is_release = (unpacks["released"] == 1) & (unpacks["op"] < capture.rows("ops"))
    return not np.isin(early, unpacks["pack"][is_release]).all()


def has_whole_last_call(capture: Capture) -> bool:
    """Return True if iterations are calls of a module, and the last of them had ended before the recording was cut off.

    No later call shows the end of this iteration. It has ended if the call ran the same ops as the call before, and
    if the same ops came after it, or an op of the next iteration. An op that failed has no uses.
    """
    ops, uses = capture.tables["ops"], capture.tables["uses"]
    if capture.rows("step_curve") or capture.rows("steps") or np.isin(ops["phase"], IN_BACKWARD).any():
        return False
    start_op, end_op = _calls_of_last_root(capture)
    count = capture.rows("ops")
    if len(start_op) < 2 or capture.lacks("uses") or end_op[-1] > count:
        return False
    has_uses = np.isin(np.arange(count), uses["op"])
    before, last = (slice(*span) for span in zip(start_op[-2:], end_op[-2:], strict=True))
    is_same = np.array_equal(ops["name"][before], ops["name"][last])
    if not is_same or not np.array_equal(has_uses[before], has_uses[last]):
        return False
    stack = ops["stack"]
    prepares = np.isin(stack, stack[: start_op[0]]) & (stack != NONE)  # before a call, as for a new batch
    between, after = slice(end_op[-2], start_op[-1]), slice(end_op[-1], count)
    if prepares[after].any():
        return True
    usual = ops["name"][between][(has_uses & ~prepares)[between]]
    return np.array_equal(usual, ops["name"][after][has_uses[after]][: len(usual)])


# Passes of the outermost loop, for programs without steps, backwards and modules: when one begins, by call stacks.
#
# A loop shows as a jump back: a function runs an earlier line than before, or calls a function again that had
# returned. A loop of which only one line calls ops shows as the same ops again and again.
_DEEPEST: Final = 256
"""Calls of a stack that are compared, from the outermost. A guess."""
_FEWEST_REPEATS: Final = 3
"""Times that the ops of one line must repeat to count as the passes of a loop. A sum of three terms calls the same op
twice in a line. A guess."""
_MOST_OPS_OF_LINE: Final = 256
"""Ops of one pass, if a single line calls them. A guess."""
_OF_OBJECTS: Final = [kind.value for kind in EdgeKind if kind.row.keeps_results]
_LASTING: Final = [
    kind.value for kind in EdgeKind if kind.row.outlives_iteration and kind.row.is_kept_by_owner
]
_ITEMS: Final = [kind.value for kind in EdgeKind if kind.row.is_entry]
_SCRIPT: Final = "__main__"


def starts_of_passes(capture: Capture, call_stacks: CallStacks) -> IntArray:
    """Return when the passes of the outermost loop begin, in unix time, without the first pass."""
    ops = capture.tables["ops"]
    unique, which = np.unique(ops["stack"], return_inverse=True)
    frames = [call_stacks.frames(stack)[::-1] if stack != NONE else [] for stack in unique.tolist()]
    chosen = np.flatnonzero(ops["stack"] != NONE)
    for depth in range(_DEEPEST):
        lines = np.array([stack[depth].line if len(stack) > depth else 0 for stack in frames])
        here = lines[which[chosen]]
        if not here.any():
            return _repeats(ops["name"][chosen], ops["start_ns"][chosen])
        back = np.flatnonzero(np.diff(here) < 0)
        if len(back):
            starts_ns: IntArray = ops["start_ns"][chosen[back + 1]]
            return starts_ns
        found, count = np.unique(here, return_counts=True)
        chosen = chosen[here == found[np.argmax(np.where(found > 0, count, 0))]]
    return np.zeros(0, dtype=np.int64)


def _repeats(names: IntArray, starts_ns: IntArray) -> IntArray:
    """Return when the ops of one line begin anew, without the first time; nothing if they are no exact repetition."""
    longest = min(len(names) // _FEWEST_REPEATS, _MOST_OPS_OF_LINE)
    for count in np.flatnonzero(names[1 : longest + 1] == names[:1]) + 1:
        if np.array_equal(names[count:], names[:-count]):
            again: IntArray = starts_ns[count::count]
            return again
    return np.zeros(0, dtype=np.int64)


def made_to_be_kept(capture: Capture, allocations: Allocations) -> NDArray[np.bool_]:
    """Return the results of calls whose results samples saw in attributes, closures, or a container that is kept.

    A container is kept if it is a global, or if some result is alive when the block ends: results that wait in a list
    for their use are not. A variable that refers to a tensor itself has it until the next pass makes another.
    """
    edges, rows, stacks = capture.tables["edges"], capture.tables["holders"], capture.tables["ops"]["stack"]
    longer = edges["path"][edges["depth"] > 0]
    in_global = edges["path"][(edges["depth"] == 0) & (edges["kind"] == EdgeKind.GLOBAL.value)]
    of_objects = edges["path"][np.isin(edges["kind"], _OF_OBJECTS)]
    in_containers = edges["path"][(edges["depth"] > 0) & np.isin(edges["kind"], _ITEMS)]
    lasting = np.union1d(of_objects, np.intersect1d(in_global, longer))
    stack_of = np.full(len(allocations), NONE, dtype=np.int64)
    known = (allocations.op != NONE) & (allocations.op < len(stacks)) & (allocations.storage != NONE)
    stack_of[known] = stacks[allocations.op[known]]
    seen = stack_of[rows["storage"][np.isin(rows["path"], lasting)]]
    in_container = stack_of[rows["storage"][np.isin(rows["path"], in_containers)]]
    alive_at_end = stack_of[allocations.death_ns == NONE]
    kept = np.union1d(seen, np.intersect1d(in_container, alive_at_end))
    made: NDArray[np.bool_] = np.isin(stack_of, kept[kept != NONE])
    return made


def seen_in_lasting(capture: Capture, allocations: Allocations) -> NDArray[np.bool_]:
    """Return the allocations that samples saw in a class, a cache, or a container that is a global.

    No call's return ends that. A script's own globals do not count: they are its local variables.
    """
    edges, vertices, rows = (capture.tables[name] for name in ("edges", "vertices", "holders"))
    scripts = vertices["vertex"][
        np.array([name == _SCRIPT for name in capture.text(vertices["name"])], dtype=bool)
    ]
    is_global = (edges["depth"] == 0) & (edges["kind"] == EdgeKind.GLOBAL.value)
    in_modules = edges["path"][is_global & ~np.isin(edges["owner"], scripts)]
    containers = edges["path"][(edges["depth"] > 0) & np.isin(edges["kind"], _ITEMS)]
    lasting = np.union1d(
        edges["path"][np.isin(edges["kind"], _LASTING)], np.intersect1d(in_modules, containers)
    )
    seen = rows["storage"][np.isin(rows["path"], lasting)]
    found: NDArray[np.bool_] = np.isin(allocations.storage, seen[seen != NONE])
    return found


def by_live_curve(capture: Capture, curve: LiveCurve) -> StepCurve:
    """Return the curve of the steps where every step was recorded, the last one ending with the block."""
    marks = np.array([name == MARK for name in capture.text(capture.tables["steps"]["name"])], dtype=bool)
    marked = np.flatnonzero(marks)
    steps = capture.tables["steps"]
    if len(marked) and steps["op"][marked[-1]] == capture.rows("ops"):  # nothing came after the last mark
        bounds_ns = steps["time_ns"][marked]
    else:
        end_ns = max(int(capture.meta.get("end_ns", 0)), int(curve.time_ns[-1]))
        bounds_ns = np.append(steps["time_ns"][marked], end_ns)
    bounds_ns = np.append(int(capture.meta.get("start_ns", 0)), bounds_ns)
    figures: dict[str, list[int]] = {name: [] for name in FIGURES}
    for start_ns, end_ns in itertools.pairwise(bounds_ns.tolist()):
        first, after = events_between(curve, start_ns, end_ns)
        live = curve.live_bytes[first:after]
        for name, value in zip(FIGURES, (live.max(), live.min(), live[-1]), strict=True):
            figures[name].append(int(value))
    columns = {name: np.array(values, dtype=np.int64) for name, values in figures.items()}
    recorded = np.ones(len(bounds_ns) - 1, dtype=bool)
    return StepCurve(bounds_ns[:-1], bounds_ns[1:], **columns, recorded=recorded)


def events_between(curve: LiveCurve, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return the event before a stretch of time, and the one after its last."""
    first = max(int(np.searchsorted(curve.time_ns, start_ns, side="right")) - 1, 0)
    return first, max(int(np.searchsorted(curve.time_ns, end_ns, side="right")), first + 1)
