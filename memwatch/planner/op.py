"""One op as an adapter describes it to the planner."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

Name: TypeAlias = Hashable


class Effect(IntEnum):
    """What an op does besides reading and writing its buffers."""

    NONE = 0
    RNG = 1  # consumes the generator: stays in generator order
    COLLECTIVE = 2  # talks to other ranks: all ranks must agree on the order
    ITEM = 3  # hands a value to the host
    UNKNOWN = 4  # anything may have happened: ordered with every other effect

    @property
    def recomputable(self) -> bool:
        """Whether an op of this kind may ever be computed twice."""
        return self in (Effect.NONE, Effect.RNG)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op of the program, in the long form of `Graph.build`.

    Attributes:
        name: unique; appears in `plan.order`.
        reads: buffers the op reads.
        makes: buffers the op allocates and how large they are (bytes).
        cost: seconds, FLOPs or any other additive price of computing the op once.
        writes: existing buffers the op mutates (a write is a read too, unless it overwrites everything).
        workspace_bytes: bytes the op allocates and frees while it runs.
        effect: what the op does besides its buffers.
        recomputable: whether the op may run again. None: yes unless it has an effect. True on an RNG op
            promises that whoever executes the plan restores the generator state first.
    """

    name: Name
    reads: Collection[Name] = ()
    makes: Mapping[Name, int] = field(default_factory=dict)
    cost: float = 1.0
    writes: Collection[Name] = ()
    workspace_bytes: int = 0
    effect: Effect = Effect.NONE
    recomputable: bool | None = None
