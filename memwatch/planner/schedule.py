"""A schedule: the steps of a plan, in order. A step computes an op, moves a buffer out, or moves it back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray


class StepKind(IntEnum):
    """Kinds of step."""

    COMPUTE = 0  # run an op; every time after the first is a recompute
    OFFLOAD = 1  # copy a buffer out; its memory is freed after its last use before the reload
    RELOAD = 2  # allocate the buffer again and copy it back


class Step(NamedTuple):
    """One step: its kind, and the op that it computes or the buffer that it moves."""

    kind: StepKind
    target: int


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """A sequence of steps. When each buffer is freed follows from it (see `peak`).

    Attributes:
        kind: `StepKind` of every step.
        index: op index of a compute, buffer index of an offload or a reload.
    """

    kind: NDArray[np.int8]
    index: IntArray

    @classmethod
    def from_order(cls, order: Sequence[int] | IntArray) -> Schedule:
        """Return the schedule that computes ops in this order; an op that appears again is a recompute."""
        index = np.array(order, dtype=np.int64)
        return cls(np.zeros(len(index), dtype=np.int8), index)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Schedule:
        """Return a schedule of these steps."""
        listed = list(steps)
        kind = np.array([step.kind for step in listed], dtype=np.int8)
        return cls(kind, np.array([step.target for step in listed], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Step]:
        for kind, index in zip(self.kind.tolist(), self.index.tolist(), strict=True):
            yield Step(StepKind(kind), index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return np.array_equal(self.kind, other.kind) and np.array_equal(self.index, other.index)

    def __hash__(self) -> int:
        return hash((self.kind.tobytes(), self.index.tobytes()))

    @property
    def ops(self) -> IntArray:
        """Ops in the order they are computed, recomputes included."""
        ops: IntArray = self.index[self.kind == StepKind.COMPUTE]
        return ops

    def copies(self) -> IntArray:
        """Return for every step how often the same op was computed, or the same buffer moved so, before it."""
        key = self.index * len(StepKind) + self.kind
        order = np.argsort(key, kind="stable")
        grouped = key[order]
        starts = np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1]))) if len(key) else key
        lengths = np.diff(np.append(starts, len(key)))
        copy = np.empty(len(key), dtype=np.int64)
        copy[order] = np.arange(len(key)) - np.repeat(starts, lengths)
        return copy
