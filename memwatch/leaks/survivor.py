"""One storage that outlived the code that made it, explained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.leaks import LeakKind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from memwatch.heap.paths import Step
    from memwatch.kinds.edges import Vertex
    from memwatch.leaks.new_storages import NewStorage


Name = tuple[str | None, int | None]
"""The name and the position of a reference in its owner; None where it has none."""


class Holding(NamedTuple):
    """One storage behind a holder.

    Attributes:
        place: the device and the holder: equal for storages that one edit would free.
        slot: the reference of the holder: its name and its position.
        nbytes: bytes of the storage.
    """

    place: tuple[str, Hashable]
    slot: Name
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Survivor:
    """A surviving storage with the references that explain it; keeps nothing of the program alive.

    Attributes:
        storage: when and where it was made.
        key: equal for survivors that one edit would free.
        steps: the retention path, or the cycle and the path from it.
        is_named: False if the steps leave out the path from the cycle.
        cut: the reference to cut.
        tensor: a description of the tensor.
        kind: why it lives on.
        looped: True if no root reaches it and a cycle above it was found.
        cycle_length: number of steps, from the first, that form the cycle; 0 for a retention path.
        cuts: one reference for each edit that is needed to end all loops that keep it; empty if one edit is enough.
        main: if the objects of the cycle are in several cycles, the one that gives the cause, with its first
            reference to cut.
        has_more_cycles: True if some cycles that keep it were not searched.
        branch: the number of the step at whose owner the path to the tensor leaves the cycle.
        is_view: True if all tensors over the storage show half of it at most.
        is_result: True if a tensor over the storage has a graph and is no view.
        is_one_more: True if a container has it as a new entry beside older entries of the same class.
        is_replaced: True for a parameter that the program has replaced, and that an optimizer still keeps.
        older_items_follow: True if older items follow its place in a list or array.
        registers_itself: True if the target of the reference to cut puts itself there.
        unreachable: True if no root reaches it.
        nbytes: bytes of the storage at the snapshot.
        may_be_replaced: True if a name holds it that had one value at a time in earlier blocks.
        in_place: True if a list or array had its place before, or a bounded container has room for it, and nothing else
            holds it.
        if_kept: the explanation to use if gc, which sees every reference of the cycle, does not free it.
        work: the function of the thread that holds it, if the runs started the thread. The end of the thread frees
            everything that its calls hold, whichever variable holds it.
        key_holder: for an entry of a `WeakKeyDictionary`, the path by which a root keeps the key of the entry; None if
            no root keeps it. It is searched for only if there are several calls.
        others: the same storage, explained by the holders that would still keep it without the references to cut. They
            are searched for only in the first of several calls.
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
    is_result: bool = False
    is_one_more: bool = False
    is_replaced: bool = False
    older_items_follow: bool = False
    registers_itself: bool = False
    unreachable: bool = False
    nbytes: int = 0
    may_be_replaced: bool = False
    in_place: bool = False
    if_kept: Survivor | None = None
    work: Vertex | None = None
    key_holder: Survivor | None = None
    others: tuple[Survivor, ...] = ()

    def of_kind(self) -> Survivor:
        """Return an unreachable survivor with the kind of its leak, once a collection has freed what it can."""
        if not self.storage.alive:
            return replace(self, kind=LeakKind.CYCLE)
        found = self.if_kept or self
        return replace(found, kind=LeakKind.UNCOLLECTABLE if found.looped else LeakKind.RETAINED)

    @property
    def through_graph(self) -> bool:
        """Whether the autograd graph of a tensor on its path keeps it."""
        return any(step.edge.kind is EdgeKind.GRAD_FN for step in self.steps)

    @property
    def holding(self) -> Holding:
        """The objects that its holder keeps through it."""
        edge = None if self.cut is None else self.cut.edge
        is_one = edge is None or self.looped or self.work is not None
        slot = (None, None) if edge is None or is_one else (edge.name, edge.position)
        return Holding((self.storage.device, self.key), slot, self.nbytes)
