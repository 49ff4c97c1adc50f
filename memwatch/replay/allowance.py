"""How much a step may take: the budget, less what the earlier backwards of a step of micro-batches left.

A share refers to what eager PyTorch takes from the first forward of the step to its last backward. Gradients that are
older than the step are not in it. But a backward that adds to existing gradients takes less memory than one that makes
them, so eager PyTorch is measured with them and without. A step of several micro-batches runs several episodes before
its optimizer changes the parameters, and the gradients of the earlier ones stay alive in the later ones.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.tensors import address_of_storage_of, storage_bytes_of, version_of
from memwatch.planner.request import parse_budget
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.replay.traced_graph import TracedGraph


_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class Start:
    """The gradients that are there when an episode begins.

    Attributes:
        has_old: whether some are older than the step.
        kept_bytes: bytes of those that the step has made.
    """

    has_old: bool = False
    kept_bytes: int = 0


class GradientsBefore:
    """Looks at the gradients of what the graphs of a callable train.

    Args:
        device: device whose bytes count.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device).type
        self._trained: dict[int, weakref.ref[torch.Tensor]] = {}
        self._versions: dict[int, int] = {}
        self._old: set[int] = set()

    def meet(self, args: Sequence[Any]) -> None:
        """Note what a graph is given to train; what has a gradient when it is first met has had it before."""
        for item in args:
            if (
                type(item) in _PLAIN
                and item.requires_grad
                and autograd_state(item).is_leaf
                and self._known(item) is None
            ):
                self._trained[id(item)] = weakref.ref(item)
                self._old.update(self._gradient(item))

    def look(self) -> Start:
        """Return what is there now; a parameter that was changed since the last look says that a step has ended."""
        trained = {number: item for number, ref in self._trained.items() if (item := ref()) is not None}
        if len(trained) < len(self._trained):
            self._trained = {number: self._trained[number] for number in trained}
        held: dict[int, int] = {}
        for item in trained.values():
            held.update(self._gradient(item))
        versions = {number: version_of(item) for number, item in trained.items()}
        has_ended = any(
            self._versions.get(number, version) != version for number, version in versions.items()
        )
        self._versions = versions
        new = set() if has_ended else held.keys() - self._old
        if not new:
            self._old = set(held)
        return Start(bool(held.keys() - new), sum(held[address] for address in new))

    def forget_versions(self) -> None:
        """Take what is trained to be as it was when the step began."""
        self._versions = {}

    def one_with_gradient(self) -> weakref.ref[torch.Tensor] | None:
        """Return one of what is trained that has a gradient now."""
        for ref in self._trained.values():
            item = ref()
            if item is not None and item.grad is not None:
                return ref
        return None

    def _known(self, item: torch.Tensor) -> torch.Tensor | None:
        ref = self._trained.get(id(item))
        return None if ref is None else ref()

    def _gradient(self, item: torch.Tensor) -> dict[int, int]:
        """Return address -> bytes of the storage of a gradient."""
        gradient = item.grad
        if type(gradient) not in _PLAIN or gradient is None or gradient.layout is not torch.strided:
            return {}
        if gradient.device.type != self._device:
            return {}
        return {address_of_storage_of(gradient): storage_bytes_of(gradient.untyped_storage())}


_MOST_TRIES: Final = 3
"""So often eager PyTorch is to be measured in one situation, if no backward comes."""


class Allowance:
    """The budget of a callable, in bytes as far as it is known.

    Args:
        budget: what the user asked for.
        device: device whose bytes count.

    Attributes:
        is_share: whether it is a share of what eager PyTorch takes.
        receiver: a parameter that has no gradient whenever an episode begins, as far as was seen, and one after it.
    """

    def __init__(self, budget: int | float | str | None, device: str) -> None:
        self.is_share = isinstance(budget, str) and budget.strip().endswith("%")
        self.receiver: weakref.ref[torch.Tensor] | None = None
        self._budget = budget
        self._before = GradientsBefore(device)
        self._start = Start()
        self._has_met = False
        self._eager_bytes: dict[bool, int] = {}  # with gradients older than the step, or without them
        self._evaluation_bytes = 0
        self._has_measured = False  # an update in place takes nothing, which is a measure as well
        self._kept_bytes: dict[bool, int] = {}
        self._kept_in_update_bytes = 0
        self._measured: dict[tuple[int, bool], int] = {}
        self._tries: dict[tuple[int, bool], int] = {}

    @property
    def whole_bytes(self) -> int | None:
        """The budget; None where there is none, and for a share until eager PyTorch has been measured."""
        most = max((self._evaluation_bytes, *self._eager_bytes.values()))
        if self._budget is None or (self.is_share and not self._has_measured):
            return None
        return parse_budget(self._budget, most)

    @property
    def step_bytes(self) -> int | None:
        """What one forward and its backward may take, at whatever place of the step."""
        whole = self.whole_bytes
        if whole is None or self._budget is None or not self._kept_bytes:
            return whole
        left = (
            parse_budget(self._budget, max(self._eager_bytes.get(has_old, 0), self._evaluation_bytes)) - kept
            for has_old, kept in self._kept_bytes.items()
        )
        return max(min(left), 0)

    @property
    def update_bytes(self) -> int | None:
        """What the step of an optimizer may take, beside the gradients that the step has made."""
        whole = self.whole_bytes
        return None if whole is None else max(whole - self._kept_in_update_bytes, 0)

    def kept_words(self, *, is_update: bool) -> str:
        """Say that gradients take a part of the budget, if they do."""
        kept = self._kept_in_update_bytes if is_update else max(self._kept_bytes.values(), default=0)
        whole = self.whole_bytes
        if not kept or whole is None:
            return ""
        whose = "the step" if is_update else "the step's earlier backwards"
        return f"gradients of {whose} take {format_bytes(kept)} of {format_bytes(whole)}"

    def meet(self, args: Sequence[Any]) -> None:
        """Note what a graph is given to train."""
        self._before.meet(args)

    def step_goes_on(self) -> None:
        """Note that what is trained has not changed since a step began, whatever it was at the last look."""
        self._before.forget_versions()

    def look(self, graph: TracedGraph) -> bool:
        """Look at the gradients as an episode begins; return whether the budget does not know of as much yet."""
        if graph.is_update:
            kept_bytes = self._before.look().kept_bytes
            has_more = kept_bytes > self._kept_in_update_bytes
            self._kept_in_update_bytes = max(self._kept_in_update_bytes, kept_bytes)
            return has_more
        if graph.is_evaluation:
            return False
        start = self._start = self._before.look()
        if start.has_old or start.kept_bytes:
            self._has_met, self.receiver = True, None
        if not self.is_share:
            is_new = start.kept_bytes > self._kept_bytes.get(False, 0)
            if is_new:
                self._kept_bytes[False] = start.kept_bytes
            return is_new
        kind = graph.number, start.has_old
        is_new = start.kept_bytes > self._measured.get(kind, -1)
        if is_new:
            self._tries[kind] = self._tries.get(kind, 0) + 1
        return is_new and self._tries[kind] <= _MOST_TRIES

    def took_eagerly(self, graph: TracedGraph, peak_bytes: int) -> None:
        """Note what eager PyTorch took in the episode that ends, which a graph began."""
        self._has_measured = True
        if graph.is_evaluation:
            beside_bytes = self._kept_in_update_bytes if graph.is_update else 0
            self._evaluation_bytes = max(self._evaluation_bytes, beside_bytes + peak_bytes)
            return
        start = self._start
        kind = graph.number, start.has_old
        self._tries.pop(kind, None)
        self._measured[kind] = max(self._measured.get(kind, 0), start.kept_bytes)
        known = self._eager_bytes.get(start.has_old, 0)
        self._eager_bytes[start.has_old] = max(known, start.kept_bytes + peak_bytes)
        self._kept_bytes[start.has_old] = max(self._kept_bytes.get(start.has_old, 0), start.kept_bytes)

    def grew(self, graph: TracedGraph) -> None:
        """Note that a graph gets larger shapes: eager PyTorch is to be measured anew wherever gradients are kept."""
        self._measured = {kind: kept for kind, kept in self._measured.items() if kind[0] != graph.number}

    def gradients_came(self) -> None:
        """Note that a backward has returned."""
        if self.receiver is None and not self._has_met:
            self.receiver = self._before.one_with_gradient()

    def kept(self) -> tuple[dict[bool, int], int]:
        """Return what `keep` takes."""
        return dict(self._kept_bytes), self._kept_in_update_bytes

    def keep(self, kept: tuple[dict[bool, int], int]) -> None:
        """Go back to what was known to be kept."""
        self._kept_bytes, self._kept_in_update_bytes = kept
