"""Simulate checkpoints around some modules: the recorded events, with a recomputation inserted.

A checkpoint (`torch.utils.checkpoint`, not reentrant) changes a recording at three places:

1. Tensors that autograd saved inside the module die in the forward, after their last use there.
2. Tensors that the module reads from outside stay alive until its backward is over: the checkpoint keeps them. If the
   module writes its buffers, the checkpoint keeps a copy of their former values too.
3. When the backward first asks for a saved tensor of the module, the forward of the module runs again, up to the
   last tensor that it saves. From there on the saved tensors are alive again, and die as before. If another part of
   the program still keeps such a tensor, there are two of it.

A program may run several backwards over one graph (`retain_graph=True`). Then the forward runs again in each of them,
and each frees what it has read.

The first two change the bytes of recorded events. The third inserts the events of the module's forward between two
recorded events. `Checkpointing` examines each call once, and adds these changes up for any set of modules.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.findings.finding import ops_until_return
from memwatch.analysis.saved_tensors import backward_numbers, backward_of_reads
from memwatch.analysis.ways.timeline import LAST
from memwatch.analysis.ways.variables import HeldByCalls, ends_of_casts
from memwatch.capture.schema import ACCESSES, IN_BACKWARD, NONE, OPTIMIZER
from memwatch.device_names import is_host
from memwatch.kinds.roles import ROLES
from memwatch.words import ways as words

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.analysis.ways.timeline import ChangedBytes, Timeline
    from memwatch.capture.columns import IntArray

_LEAST_SHARE: Final = 1 / 50
"""A block that saves a smaller share of all saved bytes gets no checkpoint. A guess."""
_LARGEST_SHARES: Final = (1 / 2, 1 / 8, 1 / 32)
"""The largest share of all saved bytes that a block may save, if the model has smaller blocks.

What a block saves is alive again when it is computed again, so a block must not be large; and the inputs of small
blocks add up. `memwatch fit` measures the first two of these sizes; to simulate one more costs little.
"""


class SavingModules:
    """The bytes that the modules of a program save for backward, by the tree of modules.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        unrepeatable: modules whose forward cannot run again. They are no blocks, but their children may be.
    """

    def __init__(self, facts: Facts, saved: SavedTensors, unrepeatable: Collection[int] = ()) -> None:
        tree = facts.places.module_tree
        self._classes = tree.classes
        self._children: dict[int, list[int]] = {}
        for number, parent in enumerate(tree.parents):
            self._children.setdefault(parent, []).append(number)
        calls = facts.capture.tables["calls"]
        self._can_be_block = np.zeros(len(tree.names), dtype=bool)
        self._can_be_block[calls["module"]] = True
        # a second forward of such a module would change its argument a second time
        self._can_be_block[[*changed_arguments(facts), *unrepeatable]] = False
        # It would also add to the list, or change the attribute, a second time. So would the modules around it.
        for module in (*grown_lists(facts), *changed_attributes(facts)):
            self._can_be_block[list(tree.with_ancestors(module))] = False
        # a wrapper and its only child have one name, which means the wrapper
        self._can_be_block[list(tree.wrapped)] = False
        self._first_call = np.full(len(tree.names), LAST, dtype=np.int64)
        np.minimum.at(self._first_call, calls["module"], calls["start_op"])
        self._nbytes = _saved_bytes(facts, saved, len(tree.names))
        for number in reversed(tree.parents_first):
            if tree.parents[number] != NONE:
                self._nbytes[tree.parents[number]] += self._nbytes[number]
        self._calls_at_once = _calls_at_once(facts, len(tree.names))

    def blocks(self) -> list[list[int]]:
        """Return sets of blocks to try: repeated ones, large ones, and smaller ones; each in the order of calls.

        The stages of a model may be repeated modules too. So one set has the repeated modules inside others.

        If a module is called several times before a backward, each call saves only a part of the module's bytes, and a
        checkpoint around each call divides them. So even the model itself may be a block.
        """
        roots = self._children.get(NONE, [])
        total = int(self._nbytes[roots].sum())
        sets = [
            [number for root in roots for number in self._repeated(root, is_innermost=is_innermost)]
            for is_innermost in (False, True)
        ]
        sets += [
            [number for root in roots for number in self._divide(root, share * total)]
            for share in _LARGEST_SHARES
        ]
        sets += [
            [number for root in roots for number in self._divide(root, share * total, self._calls_at_once)]
            for share in _LARGEST_SHARES
            if (self._calls_at_once > 1).any()
        ]
        found: list[list[int]] = []
        for blocks in sets:
            saving = [number for number in blocks if self._nbytes[number] >= _LEAST_SHARE * total > 0]
            saving.sort(key=lambda number: int(self._first_call[number]))
            if saving and saving not in found:
                found.append(saving)
        return found

    def _repeated(self, module: int, *, is_innermost: bool) -> Iterator[int]:
        """Yield the outermost modules that have siblings of the same class.

        If `is_innermost`, search each of them for such modules that have children, and yield these instead if there
        are any.
        """
        children = self._children.get(module, [])
        counts = Counter(self._classes[child] for child in children if self._can_be_block[child])
        for child in children:
            is_repeated = self._can_be_block[child] and counts[self._classes[child]] > 1
            within = []
            if child in self._children and (is_innermost or not is_repeated):
                within = list(self._repeated(child, is_innermost=is_innermost))
            if is_repeated:
                yield from [each for each in within if each in self._children] or [child]
            else:
                yield from within

    def _divide(self, module: int, most_bytes: float, calls: IntArray | None = None) -> Iterator[int]:
        """Yield the largest modules that save at most `most_bytes`, or that have no smaller blocks inside.

        If the number of calls of each module is given, count the bytes of one call.
        """
        below = [
            each
            for child in self._children.get(module, ())
            for each in self._divide(child, most_bytes, calls)
        ]
        nbytes = self._nbytes[module] / (1 if calls is None else calls[module])
        if self._can_be_block[module] and nbytes and (nbytes <= most_bytes or not below):
            yield module
        else:
            yield from below


def changed_arguments(facts: Facts) -> dict[int, str]:
    """Return the modules that put new tensors into an object that they are called with, and the object's class."""
    return _by_module(facts, "changed_arguments")


def grown_lists(facts: Facts) -> dict[int, str]:
    """Return the modules that add new tensors to a list of their own, and the attribute that leads to it."""
    return _by_module(facts, "grown_lists")


def changed_attributes(facts: Facts) -> dict[int, str]:
    """Return the modules that change a number, or replace a parameter or buffer, and the name of this attribute."""
    return _by_module(facts, "changed_attributes")


def _by_module(facts: Facts, name: str) -> dict[int, str]:
    count = len(facts.places.module_tree.names)
    noted = facts.capture.meta.get(name, {})
    return {
        int(module): str(text) for module, text in noted.items() if module.isdecimal() and int(module) < count
    }


def _is_hidden_by_compiler(facts: Facts) -> bool:
    """Return True for a training whose models are compiled as a whole, so the recording has no calls inside them."""
    phases = facts.capture.tables["ops"]["phase"]
    if not facts.capture.rows("compiled_calls") or not np.isin(phases, (*IN_BACKWARD, OPTIMIZER)).any():
        return False
    parents = np.array(facts.places.module_tree.parents, dtype=np.int64)
    is_called = np.zeros(len(parents), dtype=bool)
    is_called[facts.capture.tables["calls"]["module"]] = True
    is_inside = parents != NONE
    return bool(is_inside.any() and not (is_inside & is_called).any())


def left_out(facts: Facts) -> str:
    """Return a sentence about the modules that no checkpoint is offered for; "" if there are none, or no backward."""
    if _is_hidden_by_compiler(facts):
        return words.COMPILED
    if not facts.capture.rows("unpacks"):
        return ""
    classes = facts.places.module_tree.classes
    sentences = [
        say([classes[module] for module in changed], list(changed.values()))
        for changed, say in (
            (changed_arguments(facts), words.changed_arguments),
            (grown_lists(facts), words.grown_lists),
            (changed_attributes(facts), partial(words.changed_attributes, are_buffers=_are_buffers(facts))),
        )
        if changed
    ]
    return ". ".join([*sentences[:1], *(text[0].upper() + text[1:] for text in sentences[1:])])


def _are_buffers(facts: Facts) -> bool:
    """Return True if all attributes that modules change are buffers."""
    roles = facts.capture.tables["roles"]
    rows = roles["role"] == _BUFFER
    names = {
        (module, str(facts.strings[name]))
        for module, name in zip(roles["module"][rows].tolist(), roles["name"][rows].tolist(), strict=True)
    }
    return names.issuperset(changed_attributes(facts).items())


def _saved_bytes(facts: Facts, saved: SavedTensors, count: int) -> IntArray:
    """Return the bytes that each module saved, without its children, parameters and buffers; a storage counts once."""
    packs = np.flatnonzero((saved.storage != NONE) & ~saved.of_region & (saved.used_op != NONE))
    _, first = np.unique(saved.storage[packs], return_index=True)
    packs = packs[first]
    lasting = facts.categories.category.isin(["parameter", "buffer"])
    packs = packs[~np.isin(saved.storage[packs], facts.allocations.storage[lasting])]
    nbytes: IntArray = np.zeros(count + 1, dtype=np.int64)
    np.add.at(nbytes, saved.module.codes[packs], saved.nbytes[packs])
    return nbytes[:count]


def _calls_at_once(facts: Facts, count: int) -> IntArray:
    """Return how often each module is called before one backward, at most; at least 1."""
    calls, phases = facts.capture.tables["calls"], facts.capture.tables["ops"]["phase"]
    in_backward = np.append(np.isin(phases, IN_BACKWARD), False)
    started = np.minimum(calls["start_op"], len(in_backward) - 1)
    is_forward = ~in_backward[started] & (calls["start_op"] < calls["end_op"])
    before = np.maximum.accumulate(backward_numbers(in_backward))
    keys = np.stack([calls["module"][is_forward], before[started[is_forward]]], axis=1)
    found: IntArray = np.ones(count, dtype=np.int64)
    if len(keys):
        pairs, times = np.unique(keys, axis=0, return_counts=True)
        np.maximum.at(found, pairs[:, 0], times)
    return found


_RNG_STATE_BYTES: Final = 5_056
"""The state of the host's random numbers, which each checkpoint keeps (torch 2.13: `torch.get_rng_state().nbytes`)."""
_MOST_OPS: Final = 10_000
"""Ops that are simulated, of a recording of any length.

Of 60 steps of a GPT with six blocks, 50,000 ops take 1.0 s of the 2.1 s of a summary, and these 0.2 s of 1.0 s.
"""
_MOST_ALIKE: Final = 8
"""Iterations with the same ops and bytes that are simulated.

A guess. To find memory that outlives two iterations, a few more are needed, and more iterations give more exact times.
Of 150 steps of a small MLP, 91 fit into `_MOST_OPS`: a summary took 2.1 s of CPU time. With 8 steps it takes 0.8 s.
"""
_WRITTEN: Final = ACCESSES.index("write")
_OUTPUT: Final = ACCESSES.index("output")
_BUFFER: Final = ROLES.index("buffer")


class Gap(NamedTuple):
    """An allocation, and the events between which it is gone, or between which it exists twice."""

    row: int
    start: int
    end: int


@dataclass(frozen=True)
class CheckpointedCall:
    """The changes that a checkpoint around one call of a module would make.

    Attributes:
        gaps: memory that autograd would no longer keep from the forward to the backward.
        copies: memory that the second forward makes while the same memory of the first forward is still alive.
        inputs: memory that the checkpoint keeps: allocations from outside that the call reads.
        begin_event: the event at which the call begins.
        again_events: the events before which the module's forward runs again: one in each backward.
        over_event: the event at which the backward of the call is over.
        again_most_bytes: the most live bytes of the second forward, beside the other live bytes.
        again_ns: the time that the ops of all these forwards take.
        writes_buffers: whether buffers, such as running statistics, are written in it or before its backward.
        buffer_bytes: the bytes of the module's buffers.
    """

    gaps: tuple[Gap, ...]
    copies: tuple[Gap, ...]
    inputs: tuple[int, ...]
    begin_event: int
    again_events: tuple[int, ...]
    over_event: int
    again_most_bytes: int
    again_ns: int
    writes_buffers: bool
    buffer_bytes: int


class _Reads(NamedTuple):
    """Reads of saved tensors.

    Attributes:
        pack: the rows of the saved tensors in `SavedTensors`.
        op: the ops at which they were read: the ops that started next.
        run: the numbers of the backwards that read them.
    """

    pack: IntArray
    op: IntArray
    run: IntArray

    def of(self, rows: IntArray | NDArray[np.bool_]) -> _Reads:
        """Return some of the reads."""
        return _Reads(*(column[rows] for column in self))


class _Content(NamedTuple):
    """The columns of an iteration, as bytes. Equal iterations have the same changes.

    Attributes:
        names: the names of its ops.
        phases: their phases.
        modules: their modules.
        shapes: the shapes of the tensors that they made.
        events: the bytes that each event allocated or freed.
    """

    names: bytes
    phases: bytes
    modules: bytes
    shapes: bytes
    events: bytes

    def begins(self, other: _Content) -> bool:
        """Return True if another iteration begins with this one."""
        return all(whole.startswith(part) for part, whole in zip(self, other, strict=True))


def _changes_between(ops: IntArray, span: tuple[int, int]) -> bool:
    """Return True if a mode differs between the start and the end of a span. It changed just before each of `ops`."""
    start, end = span
    return bool(np.count_nonzero((ops > start) & (ops <= end)) % 2)


class Checkpointing:
    """Simulates checkpoints around the module calls of a recording.

    Args:
        facts: what the capture shows.
        saved: what autograd saved.
        timeline: the ops and events of the capture.

    Attributes:
        window: the ops that are simulated.
        repetitions: the ops of iterations beside them that are not simulated, because they repeat those.
        ops_ns: the time that they take.
        rng_bytes: the state of random numbers that each checkpoint keeps.
    """

    def __init__(self, facts: Facts, saved: SavedTensors, timeline: Timeline) -> None:
        self._facts, self._saved = facts, saved
        self._event_of = timeline.event_of
        tables = facts.capture.tables
        self._ops, self._uses, self._unpacks = tables["ops"], tables["uses"], tables["unpacks"]
        self._calls = tables["calls"]
        self._calls_by_module = Grouped(self._calls["module"])
        self._uses_by_op, self._uses_by_storage = Grouped(self._uses["op"]), Grouped(self._uses["storage"])
        self._packs_by_op, self._packs_by_storage = Grouped(saved.saved_op), Grouped(saved.storage)
        self._allocations_by_op = Grouped(facts.allocations.op)
        self._in_backward = np.isin(self._ops["phase"], IN_BACKWARD)
        self._backward = backward_numbers(self._in_backward)
        self._row_of_storage = self._rows_of_storages()
        self._is_lasting = facts.categories.category.isin(["parameter", "buffer"])
        self._buffers_by_module = self._buffers_of_modules()
        self._known: dict[int, list[CheckpointedCall]] = {}
        iterations, self.repetitions = self._iterations_around_peak()
        self._first_op, self._end_op = iterations[0].start, iterations[-1].stop
        self._events = slice(self._event_of(self._first_op), self._event_of(self._end_op) + 1)
        self._elsewhere_bytes = self._most_where_nothing_changes()
        self.window = range(self._first_op, self._end_op)
        within = slice(self._first_op, self._end_op)
        self.ops_ns = max(int((self._ops["end_ns"][within] - self._ops["start_ns"][within]).sum()), 1)
        self.rng_bytes = _RNG_STATE_BYTES if is_host(facts.device) else 0
        self._events_after_nodes = timeline.events_after_nodes
        self._reads = self._reads_of_packs()
        self._reads_by_pack = Grouped(self._reads.pack)
        self._written_later = self._find_written_later()
        self._held_by_calls = HeldByCalls(facts)
        self._end_of_cast = ends_of_casts(facts)

    def _reads_of_packs(self) -> _Reads:
        is_read = self._unpacks["released"] == 0
        pack, op = self._unpacks["pack"][is_read], self._unpacks["op"][is_read]
        return _Reads(pack, op, backward_of_reads(self._in_backward, op))

    def _iterations_around_peak(self) -> tuple[list[range], list[range]]:
        """Return the ops of each iteration that is simulated, and the ops of each repetition that is left out.

        First take the iteration of the peak, and whole iterations around it as long as they have at most `_MOST_OPS`
        together. Then drop iterations from both ends that repeat others: the changes would have the same effect there.
        """
        ends = np.searchsorted(self._ops["start_ns"], np.sort(self._facts.kept_across.ends_ns))
        bounds = np.unique(np.concatenate([[0], ends, [len(self._ops["start_ns"])]]))
        peak = int(np.searchsorted(bounds, max(self._facts.op_at_peak, 0), side="right")) - 1
        peak = min(peak, len(bounds) - 2)
        first, last = peak, peak + 1
        while True:
            lower, upper = max(first - 1, 0), min(last + 1, len(bounds) - 1)
            if (lower, upper) == (first, last) or bounds[upper] - bounds[lower] > _MOST_OPS:
                break
            first, last = lower, upper
        iterations = [range(*pair) for pair in pairwise(bounds[first : last + 1].tolist())]
        shapes = self._facts.capture.tables["births"][
            "shape"
        ]  # a capture decodes a column each time it is read
        contents = [self._content_of(ops, shapes) for ops in iterations]
        if last == len(bounds) - 1:  # the recording cuts the last iteration off
            contents[-1] = next(filter(contents[-1].begins, contents[:-1]), contents[-1])
        counts, start, end, peak = Counter(contents), 0, len(iterations), peak - first
        while True:
            # the end that is farther from the peak first, so that iterations stay on both sides of it
            outermost = (start, end - 1) if peak - start > end - 1 - peak else (end - 1, start)
            is_needless = [each != peak and counts[contents[each]] > _MOST_ALIKE for each in outermost]
            if not any(is_needless):
                return iterations[start:end], iterations[:start] + iterations[end:]
            left_out = outermost[is_needless.index(True)]
            counts[contents[left_out]] -= 1
            start, end = (start + 1, end) if left_out == start else (start, end - 1)

    def _content_of(self, ops: range, shapes: IntArray) -> _Content:
        within, allocations = slice(ops.start, ops.stop), self._facts.allocations
        storages = allocations.storage[self._allocations_by_op.within(ops.start, ops.stop)]
        live = self._facts.curve.live_bytes[self._event_of(ops.start) : self._event_of(ops.stop)]
        columns = (
            self._ops["name"][within],
            self._ops["phase"][within],
            self._facts.places.module_of_op[within],
            shapes[storages[storages != NONE]],
            np.diff(live),
        )
        return _Content(*(column.tobytes() for column in columns))

    def _most_where_nothing_changes(self) -> int:
        """Return the most bytes of the iterations that are not simulated and have no backward.

        Iterations with a backward are assumed to be like those around the peak: they have the same changes.
        """
        ends_ns = np.sort(self._facts.kept_across.ends_ns)
        time_ns, live = self._facts.curve.time_ns, self._facts.curve.live_bytes
        if self._events.stop - self._events.start >= len(live):
            return 0
        trains = np.zeros(len(ends_ns) + 1, dtype=bool)
        trains[np.searchsorted(ends_ns, self._ops["start_ns"][self._in_backward])] = True
        is_other = ~trains[np.searchsorted(ends_ns, time_ns)]
        is_other[self._events] = False
        for ops in self.repetitions:
            is_other[self._event_of(ops.start) : self._event_of(ops.stop) + 1] = False
        return int(live[is_other].max(initial=0))

    def calls_of(self, module: int) -> list[CheckpointedCall]:
        """Return what a checkpoint around each call of a module would change; calls without a graph are left out."""
        if module not in self._known:
            buffers = self._buffers_by_module.get(module, set())
            are_written_later = not buffers.isdisjoint(self._written_later.get(module, ()))
            calls = (self._of_call(*span, buffers, are_written_later) for span in self.spans_of(module))
            self._known[module] = [call for call in calls if call is not None]
        return self._known[module]

    def spans_of(self, module: int) -> list[tuple[int, int]]:
        """Return the first op of each call of a module, and the op after its last."""
        rows = np.sort(self._calls_by_module.within(module, module + 1))
        starts = self._calls["start_op"][rows]
        rows = rows[(starts >= self._first_op) & (starts < self._end_op)]
        spans = zip(self._calls["start_op"][rows].tolist(), self._calls["end_op"][rows].tolist(), strict=True)
        return [(start, end) for start, end in spans if start < end]

    def writes_buffers(self, module: int) -> bool:
        """Return True if buffers of a module are written in its calls, or between a call and its backward."""
        return any(call.writes_buffers for call in self.calls_of(module))

    def peak_bytes(self, calls: Sequence[CheckpointedCall], other: ChangedBytes | None = None) -> int:
        """Return the most bytes that would be alive at one instant if all of these calls were checkpointed.

        Args:
            calls: the calls.
            other: what another change does to the live bytes.
        """
        allocations, live = self._facts.allocations, self._facts.curve.live_bytes
        change = np.zeros(len(live) + 1, dtype=np.int64)
        # The printed code is the same for all modules. If one of them writes buffers, each keeps copies of its buffers.
        keeps_buffers = any(call.writes_buffers for call in calls)

        def alive(start: int, end: int, nbytes: int) -> None:
            if start < end:
                change[start] += nbytes
                change[end] -= nbytes

        kept_until: dict[int, int] = {}  # the event up to which checkpoints keep an allocation
        for call in calls:
            copied_bytes = call.buffer_bytes if keeps_buffers else 0
            alive(call.begin_event, call.over_event, self.rng_bytes + copied_bytes)
            for row in call.inputs:
                kept_until[row] = max(kept_until.get(row, 0), call.over_event)
        # For each call: bytes that are gone when its forward runs again, though they are alive at the event before.
        gone_bytes: list[Counter[int]] = []
        for call in calls:
            gone_bytes.append(Counter())
            for row, start, end in call.gaps:
                from_event, nbytes = max(start, kept_until.get(row, 0)), int(allocations.nbytes[row])
                alive(from_event, end, -nbytes)
                gone_bytes[-1][end] += nbytes if from_event == end else 0
            for row, start, end in call.copies:
                alive(start, end, int(allocations.nbytes[row]))
        for row, until in kept_until.items():
            death = int(allocations.death_event[row])
            if death != NONE:
                alive(death, until, int(allocations.nbytes[row]))
        changed = live + np.cumsum(change)[:-1]
        if other is not None:
            changed -= other.spared
        # the forward runs again between two recorded events
        between = [
            int(changed[again_event - 1])
            - gone[again_event]
            + call.again_most_bytes
            # a copy of the buffers' latest values, while the former values are in the buffers
            + (call.buffer_bytes if keeps_buffers else 0)
            for call, gone in zip(calls, gone_bytes, strict=True)
            for again_event in call.again_events
        ]
        spikes = () if other is None else other.spikes
        within = range(self._events.start, self._events.stop)
        between += [int(changed[spike.event - 1]) + spike.nbytes for spike in spikes if spike.event in within]
        return max([int(changed[self._events].max()), self._elsewhere_bytes, *between])

    def _of_call(
        self, start_op: int, end_op: int, buffers: set[int], are_written_later: bool
    ) -> CheckpointedCall | None:
        if self._in_backward[start_op]:
            return None  # an existing checkpoint calls the module again
        packs, reads = self._saved_and_read(start_op, end_op)
        if not len(packs):
            return None
        facts, allocations = self._facts, self._facts.allocations
        last_op = int(self._saved.saved_op[packs].max())
        begin, end, cut = self._event_of(start_op), self._event_of(end_op), self._event_of(last_op)
        released = self._saved.released_op[packs]
        over = self._event_of(LAST if (released == NONE).any() else int(released.max()))
        made = self._allocations_by_op.within(start_op, end_op)
        made = made[allocations.counted[made]]
        kept = made[np.isin(allocations.storage[made], self._saved.storage[packs])]
        kept = kept[facts.are_alive_at(kept, end - 1)]
        is_inner = (self._calls["start_op"] > start_op) & (self._calls["end_op"] <= end_op)
        inner = {name: self._calls[name][is_inner] for name in ("start_op", "end_op")}
        free = [(row, self._event_without(row, packs, inner)) for row in kept.tolist()]
        uses = self._uses_by_op.within(start_op, end_op)
        written = self._uses["storage"][uses[self._uses["access"][uses] == _WRITTEN]].tolist()
        writes_buffers = are_written_later or not buffers.isdisjoint(written)
        buffer_bytes = int(allocations.nbytes[self._row_of_storage[sorted(buffers)]].sum()) if buffers else 0
        if not len(reads.pack):  # an evaluation without `no_grad`: nothing runs again
            death = np.where(
                allocations.death_event == NONE, len(facts.curve.live_bytes), allocations.death_event
            )
            return CheckpointedCall(
                gaps=tuple(Gap(row, start, int(death[row])) for row, start in free if start < death[row]),
                copies=(),
                inputs=tuple(self._inputs(start_op, end_op).tolist()),
                begin_event=begin,
                again_events=(over,),
                over_event=over,
                again_most_bytes=0,
                again_ns=0,
                writes_buffers=writes_buffers,
                buffer_bytes=buffer_bytes,
            )
        gaps, copies, again_events = self._kept_again(free, packs, reads, over)
        duration_ns = self._ops["end_ns"][start_op:last_op] - self._ops["start_ns"][start_op:last_op]
        return CheckpointedCall(
            gaps=gaps,
            copies=copies,
            inputs=tuple(self._inputs(start_op, end_op).tolist()),
            begin_event=begin,
            again_events=again_events,
            over_event=over,
            again_most_bytes=self._most_again(made, kept, begin, cut) + self.rng_bytes,
            again_ns=int(duration_ns.sum()) * len(again_events),
            writes_buffers=writes_buffers,
            buffer_bytes=buffer_bytes,
        )

    def _saved_and_read(self, start_op: int, end_op: int) -> tuple[IntArray, _Reads]:
        """Return the tensors that a call saved, and the reads of them by backwards."""
        packs = self._packs_by_op.within(start_op, end_op + 1)
        packs = packs[self._is_of_call(packs, start_op, end_op)]
        if not len(packs):
            return packs, self._reads.of(packs)
        reads = self._reads.of(np.sort(self._reads_by_pack.within(int(packs.min()), int(packs.max()) + 1)))
        return packs, reads.of(np.isin(reads.pack, packs) & (reads.op >= end_op))

    def _kept_again(
        self, free: list[tuple[int, int]], packs: IntArray, reads: _Reads, over: int
    ) -> tuple[tuple[Gap, ...], tuple[Gap, ...], tuple[int, ...]]:
        """Return when the tensors that a call saves are gone, when there are two of them, and when it runs again.

        Args:
            free: allocations, and the event from which only the call keeps each.
            packs: the saved tensors of the call.
            reads: the reads of them.
            over: the event at which autograd has let go of all of them.
        """
        death_of, packs_of_row = self._facts.allocations.death_event, Grouped(self._saved.storage[packs])
        runs = np.unique(reads.run)
        of_runs = [reads.of(reads.run == run) for run in runs]
        again_events = tuple(self._event_of(int(each.op.min())) for each in of_runs)
        # the last backward frees each tensor as in the recording, unless it retains the graph
        end_op = int(np.flatnonzero(self._backward == runs[-1]).max(initial=0)) + 1
        released = self._saved.released_op[np.unique(reads.pack)]
        is_retained = bool(((released == NONE) | (released > end_op)).any())
        gaps, copies = [], []
        for row, start in free:
            storage = int(self._facts.allocations.storage[row])
            own = packs[packs_of_row.within(storage, storage + 1)]
            death = int(death_of[row]) if death_of[row] != NONE else len(self._facts.curve.live_bytes)
            freed = over if is_retained else self._event_of(int(self._saved.released_op[own].max()))
            ends = [self._read_until(own, each, freed) for each in of_runs]
            if self._outlives_autograd(storage, death):
                # A variable keeps this tensor, such as a cache of keys and values that the forward returned. The
                # backward frees the copy that the second forward makes.
                copies += [Gap(row, again, end) for again, end in zip(again_events, ends, strict=True)]
                continue
            if not is_retained and start <= again_events[-1]:
                ends[-1] = death
            gone_from = start
            for again, end in zip(again_events, ends, strict=True):
                if gone_from <= again <= death:
                    gaps.append(Gap(row, gone_from, again))
                elif gone_from < death < again:
                    # this backward does not reach the node, which was freed before it
                    gaps.append(Gap(row, gone_from, death))
                elif gone_from > again:
                    copies.append(Gap(row, again, min(gone_from, end)))
                gone_from = max(gone_from, end)
            if gone_from < min(death, over):
                gaps.append(Gap(row, gone_from, death))
        return tuple(gaps), tuple(copies), again_events

    def _outlives_autograd(self, storage: int, death: int) -> bool:
        """Return True if something keeps an allocation after autograd has let go of it, for longer than one more op.

        Args:
            storage: its storage.
            death: the event of its death.
        """
        released = self._saved.released_op[self._packs_by_storage.within(storage, storage + 1)]
        if (released == NONE).any():
            return False
        return death > self._event_of(int(released.max()) + 1)

    def _read_until(self, own: IntArray, reads: _Reads, over: int) -> int:
        """Return the event from which a backward no longer needs one saved tensor.

        The second forward also makes tensors that this backward does not read. The checkpoint keeps these as long as
        the graph exists.

        Args:
            own: the rows of the tensor in `SavedTensors`, one for each node that saved it.
            reads: the reads of this backward.
            over: the event at which autograd frees the tensors that no backward reads.
        """
        of_own = reads.of(np.isin(reads.pack, own))
        if len(np.unique(of_own.pack)) < len(own):
            return over
        return int(self._events_after_nodes(of_own.op).max())

    def unrepeatable(self) -> set[int]:
        """Return the modules whose second forward would begin with other values than the first one.

        They write a tensor from before their call that is none of their buffers: an argument (an activation in place),
        a parameter, or a tensor that is a plain attribute. Or the program writes such a tensor between a call that read
        it and the backward of the call.
        """
        starts, ends, modules = (self._calls[name] for name in ("start_op", "end_op", "module"))
        is_write = (self._uses["access"] == _WRITTEN) & np.isin(self._uses["op"], np.array(self.window))
        is_write &= ~self._in_backward[self._uses["op"]]
        found: set[int] = set()
        for op, storage in zip(
            self._uses["op"][is_write].tolist(), self._uses["storage"][is_write].tolist(), strict=True
        ):
            around = modules[(starts <= op) & (op < ends) & (self._made_by(storage) < starts)].tolist()
            found.update(each for each in around if storage not in self._buffers_by_module.get(each, ()))
        found.update(
            module
            for module, storages in self._written_later.items()
            if not storages <= self._buffers_by_module.get(module, set())
        )
        return found | self._in_other_mode()

    def _in_other_mode(self) -> set[int]:
        """Return the modules that have another mode in a backward than in the call before (`train`, `eval`).

        Their second forward would have no dropout, for example. A module counts if a module within it has changed.
        """
        changes, tree = self._facts.capture.tables["mode_changes"], self._facts.places.module_tree
        found: set[int] = set()
        for changed in np.unique(changes["module"]).tolist():
            ops = changes["op"][changes["module"] == changed]
            for module in tree.with_ancestors(changed):
                if module not in found and any(map(partial(_changes_between, ops), self._runs_of(module))):
                    found.add(module)
        return found

    def _runs_of(self, module: int) -> Iterator[tuple[int, int]]:
        """Yield, for each backward of each call, the call's first op and the op at which the backward first reads.

        Only reads of tensors that the call saved count.
        """
        for start_op, end_op in self.spans_of(module):
            _, reads = self._saved_and_read(start_op, end_op)
            for run in np.unique(reads.run):
                yield start_op, int(reads.op[reads.run == run].min())

    def _made_by(self, storage: int) -> int:
        """Return the op that made a storage; -1 if it is older, or if that is not known."""
        row = self._row_of_storage[storage]
        return NONE if row == NONE else int(self._facts.allocations.op[row])

    def _find_written_later(self) -> dict[int, set[int]]:
        """Return storages from outside that a call of a module reads and that are written before its backward.

        The second forward would read the new values. torch raises an error only if the tensor is an argument by
        position. It does not notice other tensors, such as an argument by keyword or an attribute.
        """
        is_awaited = self._is_backward_awaited()
        is_later = (self._uses["access"] == _WRITTEN) & is_awaited[self._uses["op"]]
        if not is_later.any():
            return {}
        first_awaited = np.append(0, np.flatnonzero(~is_awaited) + 1)
        starts, ends, modules = (self._calls[name] for name in ("start_op", "end_op", "module"))
        # for each op, the largest end of the calls that began up to it
        outermost_end = np.zeros(len(is_awaited), dtype=np.int64)
        is_call = starts < ends
        np.maximum.at(outermost_end, starts[is_call], ends[is_call])
        outermost_end = np.maximum.accumulate(outermost_end)
        is_in_window = (starts >= self._first_op) & (starts < self._end_op)
        found: dict[int, set[int]] = {}
        backward_of: dict[tuple[int, int], int] = {}
        for storage in np.unique(self._uses["storage"][is_later]).tolist():
            rows = self._uses_by_storage.within(storage, storage + 1)
            writes = np.sort(self._uses["op"][rows[is_later[rows]]])
            read = np.unique(self._uses["op"][rows[self._uses["access"][rows] != _OUTPUT]])
            read = read[(read < writes[-1]) & ~self._in_backward[read]]
            # If the backward of a call follows the write, `is_awaited` is True for each op from the end of the call to
            # the write. So only calls that end after `begun`, the first of these ops, need a closer look.
            write = writes[np.searchsorted(writes, read, side="right")]
            begun = first_awaited[np.searchsorted(first_awaited, write, side="right") - 1]
            for op in read[outermost_end[read] >= begun].tolist():
                is_around = (starts <= op) & (op < ends) & (self._made_by(storage) < starts) & is_in_window
                for call in np.flatnonzero(is_around & (ends <= writes[-1])).tolist():
                    span = int(starts[call]), int(ends[call])
                    if span not in backward_of:
                        backward_of[span] = self._last_backward_of(*span)
                    if writes[np.searchsorted(writes, span[1])] < backward_of[span]:
                        found.setdefault(int(modules[call]), set()).add(storage)
        return found

    def _is_backward_awaited(self) -> NDArray[np.bool_]:
        """Return for each op whether a backward after it reads a tensor that was saved before it."""
        last_read = np.full(len(self._saved), NONE, dtype=np.int64)
        np.maximum.at(last_read, self._reads.pack, self._reads.op)
        is_read = (last_read > self._saved.saved_op) & ~self._saved.of_region
        change = np.zeros(len(self._in_backward) + 1, dtype=np.int64)
        np.add.at(change, self._saved.saved_op[is_read], 1)
        np.subtract.at(change, last_read[is_read], 1)
        is_awaited: NDArray[np.bool_] = np.cumsum(change)[:-1] > 0
        return is_awaited

    def _last_backward_of(self, start_op: int, end_op: int) -> int:
        """Return the op at which the last backward of a call first reads a tensor that the call saved; -1 for none."""
        _, reads = self._saved_and_read(start_op, end_op)
        return int(reads.op[reads.run == reads.run.max()].min()) if len(reads.pack) else NONE

    def _buffers_of_modules(self) -> dict[int, set[int]]:
        """Return the storages of each module's buffers, those of its children included."""
        roles, tree = self._facts.capture.tables["roles"], self._facts.places.module_tree
        of_buffer = roles["role"] == _BUFFER
        found: dict[int, set[int]] = {}
        for storage, owner in zip(
            roles["storage"][of_buffer].tolist(), roles["module"][of_buffer].tolist(), strict=True
        ):
            for module in tree.with_ancestors(owner):
                found.setdefault(module, set()).add(storage)
        return found

    def _is_of_call(self, packs: IntArray, start_op: int, end_op: int) -> NDArray[np.bool_]:
        """Return which of some saved tensors an op of the call saved, and no checkpoint."""
        op = self._saved.saving_op[packs]
        is_of_call: NDArray[np.bool_] = (op >= start_op) & (op < end_op) & ~self._saved.of_region[packs]
        return is_of_call

    def _event_without(self, row: int, packs: IntArray, inner: Mapping[str, IntArray]) -> int:
        """Return the event from which only autograd keeps an allocation, and only for the nodes of one call.

        Args:
            row: the allocation.
            packs: the saved tensors of the call.
            inner: the calls within it.
        """
        storage = int(self._facts.allocations.storage[row])
        used = self._uses["op"][self._uses_by_storage.within(storage, storage + 1)]
        made = int(self._facts.allocations.op[row])
        last = ops_until_return(inner, made, int(used[~self._in_backward[used]].max(initial=made)))
        last = max(last, self._held_by_calls.ops_until_left(row), self._end_of_cast.get(storage, 0))
        others = np.setdiff1d(self._packs_by_storage.within(storage, storage + 1), packs)
        released = self._saved.released_op[others]
        return self._event_of(LAST if (released == NONE).any() else int(released.max(initial=last)))

    def _inputs(self, start_op: int, end_op: int) -> IntArray:
        """Return the allocations that a call reads from outside, without parameters and buffers."""
        allocations = self._facts.allocations
        uses = self._uses_by_op.within(start_op, end_op)
        storages = np.unique(self._uses["storage"][uses[self._uses["access"][uses] != _OUTPUT]])
        # autocast copies the weight inside the call, so the checkpoint keeps the weight and not the copy
        storages = storages[~np.isin(storages, list(self._end_of_cast))]
        rows = self._row_of_storage[storages]
        rows = rows[rows != NONE]
        inputs: IntArray = rows[
            (allocations.op[rows] < start_op) & ~self._is_lasting[rows] & allocations.counted[rows]
        ]
        return inputs

    def _most_again(self, made: IntArray, kept: IntArray, begin: int, cut: int) -> int:
        """Return the most bytes of a forward that runs again. The tensors that it saves stay, the others die as before.

        Args:
            made: the allocations of the first forward.
            kept: the allocations that it saved.
            begin: the event at which it began.
            cut: the event at which it had saved its last tensor. The second forward ends there.
        """
        allocations = self._facts.allocations
        change = np.zeros(cut - begin + 1, dtype=np.int64)
        birth, death = allocations.birth_event[made], allocations.death_event[made]
        nbytes = allocations.nbytes[made].astype(np.int64)
        is_born = (birth >= begin) & (birth < cut)
        np.add.at(change, birth[is_born] - begin, nbytes[is_born])
        # in a damaged capture, memory may be freed before it is allocated
        dies = is_born & (death >= birth) & (death < cut) & ~np.isin(made, kept)
        np.subtract.at(change, death[dies] - begin, nbytes[dies])
        return int(np.cumsum(change).max(initial=0))

    def _rows_of_storages(self) -> IntArray:
        """Return, for each storage, its first allocation; -1 for none."""
        storage = self._facts.allocations.storage
        rows = np.flatnonzero(storage != NONE)
        found = np.full(int(storage.max(initial=NONE)) + 1, NONE, dtype=np.int64)
        found[storage[rows[::-1]]] = rows[::-1]
        return found
