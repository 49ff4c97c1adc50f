"""The explanation of one storage that outlived the code that made it: who keeps it, and which reference to cut."""

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
"""The name and the position of a reference in its owner. Each is None if the reference has only the other."""


class Holding(NamedTuple):
    """One storage and its holder.

    Attributes:
        place: the device and the holder. Storages that one edit would free have equal places.
        slot: the name and the position of the holder's reference to the storage.
        nbytes: bytes of the storage.
    """

    place: tuple[str, Hashable]
    slot: Name
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Survivor:
    """A storage that outlived the code that made it, and the references that keep it.

    It does not keep any object of the program alive.

    Attributes:
        storage: when and where it was made.
        key: equal for survivors that one edit would free.
        steps: the retention path. If no root reaches it, the cycle and then the path to the tensor.
        is_named: False if `steps` has the cycle only, without the path to the tensor.
        cut: the reference to cut.
        tensor: a description of the tensor.
        kind: why it is still alive.
        looped: True if no root reaches it and a cycle above it was found.
        cycle_length: number of first steps that form the cycle; 0 for a retention path.
        cuts: one reference for each edit, if several edits are needed to break all cycles that keep it; else empty.
        main: the first reference to cut, and the cycle that names the cause, if its objects form several cycles.
        has_more_cycles: True if the search left out some cycles that keep it.
        branch: number of the step in the cycle where the path to the tensor begins.
        is_view: True if all tensors over the storage together show at most half of it.
        is_result: True if a tensor over the storage has a graph and is not a view.
        is_one_more: True if it is a new entry of a container that has older entries of the same class.
        is_replaced: True for a parameter that the program has replaced but an optimizer still keeps.
        older_items_follow: True if it is in a list or array, and older items come after it.
        registers_itself: True if a method of the object behind the reference to cut uses the variable of the container,
            so that the object has probably put itself there.
        unreachable: True if no root reaches it.
        nbytes: bytes of the storage at the snapshot.
        may_be_replaced: True if its name kept only a few values in earlier blocks, so the next value may replace it.
        in_place: True if its only holder is a container with a place for it: a list or array that had this place
            before, or a bounded container that is not full.
        if_kept: an explanation by a cycle that gc cannot see. It counts if gc does not free the cycle of `steps`.
        work: the function of the thread that holds it, if the runs started the thread. The end of the thread frees
            all variables of its calls.
        key_holder: for an entry of a `WeakKeyDictionary`, the explanation of its key; None if no root keeps the key.
            memwatch searches for it only if there are several calls.
        others: further explanations, by holders that would still keep the storage after the cut. memwatch searches for
            them only in the first of several calls.
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
        """Return this unreachable survivor with the kind of its leak. Call it after a collection by gc."""
        if not self.storage.alive:
            return replace(self, kind=LeakKind.CYCLE)
        found = self.if_kept or self
        return replace(found, kind=LeakKind.UNCOLLECTABLE if found.looped else LeakKind.RETAINED)

    @property
    def through_graph(self) -> bool:
        """Whether its path leads through the autograd graph of a tensor."""
        return any(step.edge.kind is EdgeKind.GRAD_FN for step in self.steps)

    @property
    def holding(self) -> Holding:
        """The storage and its holder."""
        edge = None if self.cut is None else self.cut.edge
        # a cycle or a thread is one holder, whichever of its references leads to the storage
        is_whole = edge is None or self.looped or self.work is not None
        slot = (None, None) if edge is None or is_whole else (edge.name, edge.position)
        return Holding((self.storage.device, self.key), slot, self.nbytes)
