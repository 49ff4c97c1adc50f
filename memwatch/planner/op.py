"""One op as an adapter describes it to the planner."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

Name: TypeAlias = Hashable
ShortOp: TypeAlias = tuple[Name, Collection[Name], Mapping[Name, int], float]
"""An op without mutations, workspace or effects: (name, reads, {buffer it makes: bytes}, cost)."""


class Effect(IntEnum):
    """What an op does besides reading and writing its buffers; such ops cannot be moved freely."""

    NONE = 0
    RNG = 1  # draws random numbers: ops of this kind keep their order, or each would draw other numbers
    COLLECTIVE = 2  # talks to other ranks: all ranks must run these ops in the same order
    ITEM = 3  # hands a value to Python, which may decide what runs next
    UNKNOWN = 4  # anything may have happened: keeps its place among all ops with an effect

    @property
    def recomputable(self) -> bool:
        """Whether an op with this effect may ever be computed twice."""
        return self in (Effect.NONE, Effect.RNG)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op of the program, in the long form of `Graph.build`.

    Attributes:
        name: unique; appears in `plan.order`.
        reads: buffers the op reads.
        makes: buffers the op allocates, with their size (bytes).
        cost: seconds, FLOPs or any other additive price of computing the op once.
        writes: existing buffers the op mutates (a write is a read too, unless it overwrites everything).
        writes_once: those of `writes` that only the first computation mutates, because nothing else that the op
            makes depends on them; batch norm's running statistics are an example. Whoever executes the plan
            hands later computations something else.
        time_ns: how long the op took when it was recorded, nanoseconds; 0 where that is not known.
        workspace_bytes: bytes the op allocates and frees while it runs.
        effect: what the op does besides reading and writing its buffers.
        recomputable: whether the op may run again. None means yes, unless it has an effect. True on an RNG
            op promises that whoever executes the plan restores the generator state first.
    """

    name: Name
    reads: Collection[Name] = ()
    makes: Mapping[Name, int] = field(default_factory=dict)
    cost: float = 1.0
    writes: Collection[Name] = ()
    workspace_bytes: int = 0
    effect: Effect = Effect.NONE
    recomputable: bool | None = None
    writes_once: Collection[Name] = ()
    time_ns: int = 0

    @property
    def may_run_again(self) -> bool:
        """Whether the op may be computed more than once, `recomputable` being None included."""
        return self.effect is Effect.NONE if self.recomputable is None else self.recomputable
