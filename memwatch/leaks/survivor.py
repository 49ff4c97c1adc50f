"""One storage that outlived the code that made it, explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memwatch.edges import EdgeKind
from memwatch.leaks.kinds import LeakKind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from memwatch.heap.paths import Step
    from memwatch.leaks.new_storages import NewStorage


Name = tuple[str | None, int | None]
"""Which reference of its owner one is: the name or the position, where it has one."""


class Holding(NamedTuple):
    """One storage behind a holder.

    Attributes:
        place: the device and the holder: equal for storages that one edit would free.
        slot: which of the holder's references it is: a name, a position.
        nbytes: bytes of the storage.
    """

    place: tuple[str, Hashable]
    slot: Name
    nbytes: int


@dataclass(slots=True)
class Survivor:
    """A surviving storage with the references that explain it; keeps nothing of the program alive.

    Attributes:
        storage: when and where it was made.
        key: equal for survivors that one edit would free.
        steps: the retention path, or the cycle and the way from it.
        is_named: False if the way from the cycle is left out of the steps.
        cut: the reference to cut.
        tensor: the tensor, described.
        kind: why it lives on.
        looped: True if no root reaches it and a cycle above it was found.
        cycle_length: how many of the steps, from the first, are the cycle; 0 for a retention path.
        cuts: one reference for each edit that it takes to end all loops that keep it; none where one edit does.
        main: where the objects of the cycle are in several, the one that tells the cause, its first reference to cut
            before it.
        has_more_cycles: True if not all cycles that keep it were looked at.
        branch: which step of the cycle begins at the object from which the way to the tensor leaves.
        is_view: True if the tensor shows half of its storage at most.
        is_one_more: True if it is behind the entry of a container that has older ones of its class.
        is_amid: True if it is in the place of a list or array behind which older items follow.
        registers_itself: True if what the reference to cut leads to puts itself there.
        unreachable: True if no root reaches it.
        nbytes: bytes of the storage when it was looked at.
        may_be_replaced: True if one name has it, and as far as earlier blocks show, one value at a time.
        if_kept: what explains it instead if gc, which sees every reference of the cycle, does not free it.
    """

    storage: NewStorage
    key: Hashable
    steps: list[Step]
    cut: Step | None
    tensor: str
    is_named: bool = True
    kind: LeakKind = LeakKind.RETAINED
    looped: bool = False
    cycle_length: int = 0
    cuts: tuple[Step, ...] = ()
    has_more_cycles: bool = False
    main: tuple[Step, list[Step]] | None = None
    branch: int = 0
    is_view: bool = False
    is_one_more: bool = False
    is_amid: bool = False
    registers_itself: bool = False
    unreachable: bool = False
    nbytes: int = 0
    may_be_replaced: bool = False
    if_kept: Survivor | None = None

    @property
    def through_graph(self) -> bool:
        """Whether the autograd graph of a tensor on its path keeps it."""
        return any(step.edge.kind is EdgeKind.GRAD_FN for step in self.steps)

    @property
    def holding(self) -> Holding:
        """What its holder holds by it."""
        edge = None if self.cut is None else self.cut.edge
        slot = (None, None) if edge is None or self.looped else (edge.name, edge.position)
        return Holding((self.storage.device, self.key), slot, self.nbytes)
