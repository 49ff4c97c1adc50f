"""A plan as a policy of torch's selective checkpointing: tensors that the plan keeps for the backward are saved.

A checkpointed region of the running program is recognised among the recorded forward ops by its sequence of calls.
Two calls are the same when name and arguments are; of tensors, type, size, stride and offset are compared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch.utils.checkpoint import SAC_IGNORED_OPS, CheckpointPolicy, create_selective_checkpoint_contexts

from memwatch.capture.schema import FORWARD, IN_BACKWARD
from memwatch.encoding.values import encode
from memwatch.planner import StepKind
from memwatch.planner.peak import allocations

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from memwatch._torch.overloads import OpOverload
    from memwatch.capture import Capture
    from memwatch.planner import Schedule
    from memwatch.replay.graph import Recorded

Key: TypeAlias = tuple[str, str]
"""Name and arguments of an op."""


def key_of(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
    """Return a call in the form in which the recording writes it."""
    positional, named = (encode(list(values), _slot, _slot) for values in (args, kwargs.values()))
    return str(op), json.dumps([positional, list(kwargs), named], separators=(",", ":"))


def _slot(_: object) -> int:
    return 0  # which storage or generator it is does not matter here


@dataclass
class Regions:
    """Recognises checkpointed regions among the recorded forward ops.

    Attributes:
        keys: the calls of the forward, op by op.
        saved: for each of them, whether the plan keeps its results for the backward.
    """

    keys: list[Key]
    saved: list[bool]
    _places: dict[Key, list[int]] = field(default_factory=dict)
    _no_start: set[int] = field(default_factory=set)
    _next: int = 0

    def __post_init__(self) -> None:
        for place, key in enumerate(self.keys):
            self._places.setdefault(key, []).append(place)

    def contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Return the two contexts of one checkpointed region: of its forward and of its recomputation."""
        region = Region(self)

        def policy(_: object, op: OpOverload, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            is_saved = region.is_saved(key_of(op, args, kwargs))
            return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

        contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(policy)
        return contexts

    def find(self, seen: list[Key]) -> int:
        """Return where the last of some consecutive calls was recorded, -1 if nowhere.

        Equal layers have equal calls. The first place after the last region is taken, because regions run in
        the recorded order; after the last layer the search starts over, because steps repeat the forward.
        """
        places = [place for place in self._places.get(seen[-1], ()) if self._fits(place, seen)]
        return next((place for place in places if place >= self._next), places[0] if places else -1)

    def _fits(self, place: int, seen: list[Key]) -> bool:
        start = place - len(seen) + 1
        return start >= 0 and start not in self._no_start and self.keys[start : place + 1] == seen

    def refuse(self, start: int) -> None:
        """Note that no region starts at this place, although its first calls are the same."""
        self._no_start.add(start)

    def leave(self, place: int) -> None:
        """Note the place that a region has reached; the next region is searched for after it."""
        self._next = place + 1


@dataclass
class Region:
    """One run of a checkpointed region: the calls seen so far, and the recorded place of the last one."""

    regions: Regions
    _seen: list[Key] = field(default_factory=list)
    _place: int = -1

    def is_saved(self, key: Key) -> bool:
        """Return True when the plan keeps the results of this call; False for calls that were not recorded."""
        regions, place = self.regions, self._place + 1
        self._seen.append(key)
        if len(self._seen) == 1 or place >= len(regions.keys) or regions.keys[place] != key:
            if self._place >= 0:
                regions.refuse(place - len(self._seen) + 1)
            place = regions.find(self._seen)
            if place < 0:  # a call that is not in the recording: start again with the next one
                self._seen.clear()
                self._place = -1
                return False
        self._place = place
        regions.leave(place)
        return regions.saved[place]


def recorded_regions(capture: Capture, recorded: Recorded, schedule: Schedule) -> Regions:
    """Return the regions of a recorded program, with what a plan saves in them.

    Args:
        capture: the recording.
        recorded: its program.
        schedule: the plan's steps.
    """
    ignored = {str(op) for op in SAC_IGNORED_OPS}
    kept = _kept_ops(capture, recorded, schedule)
    arguments = capture.tables["arguments"]
    calls = dict(zip(arguments["op"].tolist(), capture.text(arguments["call"]), strict=True))
    keys, saved = [], []
    ops = capture.tables["ops"]
    names = dict(zip(ops["op"].tolist(), capture.text(ops["name"]), strict=True))
    for op in _in_phases(capture, FORWARD):
        name = names[op]
        if name not in ignored and op in calls:
            keys.append((name, calls[op]))
            saved.append(op in kept)
    return Regions(keys, saved)


def _in_phases(capture: Capture, *phases: int) -> list[int]:
    ops = capture.tables["ops"]
    found: list[int] = ops["op"][np.isin(ops["phase"], phases)].tolist()
    return found


def _kept_ops(capture: Capture, recorded: Recorded, schedule: Schedule) -> set[int]:
    """Return the forward ops whose memory the plan keeps for the backward: half of it at least.

    Kept is what stays allocated from a run in the forward to the first backward op or longer.
    """
    graph, calls = recorded.graph, recorded.program.calls
    backward = set(_in_phases(capture, *IN_BACKWARD))
    is_late = np.array([call.op in backward for call in calls], dtype=bool)
    computed = np.where(schedule.kind == StepKind.COMPUTE, schedule.index, -1)
    late_steps = np.flatnonzero((computed >= 0) & is_late[np.maximum(computed, 0)])
    if not len(late_steps):
        return set()
    held = allocations(graph, schedule)
    crosses = (held.first_step >= 0) & (held.first_step < late_steps[0]) & (held.last_step >= late_steps[0])
    mutated = graph.final_version[held.buffer] > 0  # torch refuses to save a tensor that is mutated later
    maker = computed[held.first_step[crosses & ~mutated]]
    nbytes = np.bincount(maker, graph.buffer_nbytes[held.buffer[crosses & ~mutated]], graph.num_ops)
    made = graph.makes.sum_per_row(graph.buffer_nbytes)
    chosen = (nbytes > 0) & (2 * nbytes >= made) & ~is_late & (graph.writes.lengths() == 0)
    return {calls[index].op for index in np.flatnonzero(chosen).tolist()}
