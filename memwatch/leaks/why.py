"""why_alive: which references keep one tensor in memory, right now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from memwatch._torch.tensors import device_of
from memwatch.errors import MemwatchError
from memwatch.heap.paths import Step, steps_of
from memwatch.heap.roots import RootKind
from memwatch.heap.search import retained_bytes, search
from memwatch.heap.snapshot import Snapshot
from memwatch.heap.tensors import is_tensor, quiet, storage_bytes, storage_of
from memwatch.heap.vertices import describe
from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.leaks.loops import Loops
from memwatch.sizes import format_bytes
from memwatch.text import ShownAsText
from memwatch.words import leaks as words
from memwatch.words.edges import edge_phrase

if TYPE_CHECKING:
    import torch

    from memwatch.heap.search import Tree

_MAX_PATHS: Final = 8
"""The most paths that an answer has. A guess."""


class NotATensorError(MemwatchError, TypeError):
    """The argument of ``why_alive`` is not a tensor."""


@dataclass(frozen=True)
class WhyAlive(ShownAsText):
    """Why a tensor is alive, as text; keeps nothing alive itself.

    Attributes:
        tensor: a description of the tensor.
        nbytes: bytes of its storage.
        paths: retention paths, shortest first, each a tuple of steps from a root; one path per direct holder.
        retained_bytes: for each path, the bytes of the tensor's device that cutting its last reference would free.
        reachable: False if no root reaches the tensor; the only path is then the loop that keeps it.
    """

    tensor: str
    nbytes: int
    paths: tuple[tuple[Step, ...], ...]
    retained_bytes: tuple[int, ...]
    reachable: bool = True

    @property
    def holder(self) -> str:
        """The words of the last visible reference of the shortest path."""
        steps = [step for step in self.paths[0] if not step.hidden] if self.paths else []
        return edge_phrase(steps[-1].edge if steps else Edge(EdgeKind.C_CODE))

    def __str__(self) -> str:
        lines = [words.WHY_ALIVE.format(tensor=self.tensor, size=format_bytes(self.nbytes))]
        if not self.paths:
            lines.append(words.WHY_C_CODE)
        for steps, freed in zip(self.paths, self.retained_bytes, strict=True):
            lines.append(self._title(steps[-1].edge, freed))
            lines += [f"    {step}" for step in steps]
        return "\n".join(lines)

    def _title(self, last: Edge, freed_bytes: int) -> str:
        if not self.reachable:
            return words.WHY_LOOP
        keeps = words.WHY_KEEPS.format(size=format_bytes(freed_bytes)) if freed_bytes else ""
        return f"  {edge_phrase(last)}{keeps}:"


def why_alive(tensor: torch.Tensor) -> WhyAlive:
    """Find the references that keep a tensor alive.

    It works at any time, without a profile. The argument itself does not count. A variable of the caller does; it
    comes last.

    Args:
        tensor: any tensor.

    Returns:
        The retention paths; print it, or read ``paths`` and ``holder``.

    Raises:
        NotATensorError: the argument is not a tensor.
    """
    if not is_tensor(tensor):
        raise NotATensorError(words.NOT_A_TENSOR.format(given=describe(tensor)))
    with quiet():
        storage = storage_of(tensor)
    nbytes = 0 if storage is None else storage_bytes(storage)
    device = "" if storage is None else str(device_of(storage))
    with Snapshot([tensor]) as snapshot:
        tree = search(snapshot, snapshot.root_groups(runner=True), closed=snapshot.barriers())
        position = snapshot.position(tensor)
        if tree.reaches(position):
            chains = _chains(snapshot, tree, position)
            paths = tuple(tuple(steps_of(snapshot, chain)) for chain in chains)
            freed = tuple(
                retained_bytes(snapshot, device=device, cut=(chain[-2], chain[-1])) for chain in chains
            )
            return WhyAlive(describe(tensor), nbytes, paths, freed)
        loop, chain = Loops(snapshot, tree).find(position)
        steps = (*loop.steps, *steps_of(snapshot, chain))
    return WhyAlive(
        describe(tensor), nbytes, (steps,) if steps else (), (0,) if steps else (), reachable=False
    )


def _chains(snapshot: Snapshot, tree: Tree, position: int) -> list[list[int]]:
    """List one shortest chain per direct holder, the caller's own variables last."""
    starts, referrers = snapshot.reversed()
    holders = [int(above) for above in referrers[starts[position] : starts[position + 1]]]
    chains = [[*tree.path(above), position] for above in dict.fromkeys(holders) if tree.reaches(above)]
    chains = [chain for chain in chains if position not in chain[:-1]] or chains
    chains.sort(key=lambda chain: (_is_frame(snapshot, chain), len(chain)))
    return chains[:_MAX_PATHS]


def _is_frame(snapshot: Snapshot, chain: list[int]) -> bool:
    first = chain[0]
    return len(chain) <= 2 and first >= snapshot.first_root and snapshot.objects[first].kind is RootKind.FRAME
