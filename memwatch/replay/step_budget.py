"""Compute the bytes that an episode may take: the budget, minus the gradients of earlier episodes of the same step.

A step of several micro-batches runs several episodes before its optimizer changes the parameters. The gradients of the
earlier episodes stay alive during the later episodes, so they take a part of the budget.

A share such as "60%" refers to the peak of eager PyTorch, from the first forward of the step to its last backward.
Gradients that are older than the step do not count. But a backward that adds to existing gradients takes less memory
than a backward that makes them. So eager PyTorch is measured both with existing gradients and without them.
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
class StartGradients:
    """The gradients that exist when an episode begins.

    Attributes:
        has_old: whether a gradient is older than the step.
        kept_bytes: bytes of the gradients that the step has made.
    """

    has_old: bool = False
    kept_bytes: int = 0


class GradientTracker:
    """Separates the gradients of the current step from older gradients, for all parameters that the graphs train.

    Args:
        device: device whose bytes count.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device).type
        self._trained: dict[int, weakref.ref[torch.Tensor]] = {}
        self._versions: dict[int, int] = {}
        self._old: set[int] = set()

    def note_parameters(self, args: Sequence[Any]) -> None:
        """Remember the parameters among the arguments. A gradient that a new parameter already has counts as old."""
        for item in args:
            if (
                type(item) in _PLAIN
                and item.requires_grad
                and autograd_state(item).is_leaf
                and self._tracked(item) is None
            ):
                self._trained[id(item)] = weakref.ref(item)
                self._old.update(self._gradient_bytes(item))

    def gradients_now(self) -> StartGradients:
        """Return the gradients that exist now. If a parameter has changed since the last call, a new step has begun."""
        trained = {number: item for number, ref in self._trained.items() if (item := ref()) is not None}
        if len(trained) < len(self._trained):
            self._trained = {number: self._trained[number] for number in trained}
        held: dict[int, int] = {}
        for item in trained.values():
            held.update(self._gradient_bytes(item))
        versions = {number: version_of(item) for number, item in trained.items()}
        has_ended = any(
            self._versions.get(number, version) != version for number, version in versions.items()
        )
        self._versions = versions
        new = set() if has_ended else held.keys() - self._old
        if not new:
            self._old = set(held)
        return StartGradients(bool(held.keys() - new), sum(held[address] for address in new))

    def forget_versions(self) -> None:
        """Ignore all changes of the parameters up to now: they do not mean that the step has ended."""
        self._versions = {}

    def parameter_with_gradient(self) -> weakref.ref[torch.Tensor] | None:
        """Return a parameter that has a gradient now."""
        for ref in self._trained.values():
            item = ref()
            if item is not None and item.grad is not None:
                return ref
        return None

    def _tracked(self, item: torch.Tensor) -> torch.Tensor | None:
        ref = self._trained.get(id(item))
        return None if ref is None else ref()

    def _gradient_bytes(self, item: torch.Tensor) -> dict[int, int]:
        """Return address -> bytes of the storage of a gradient."""
        gradient = item.grad
        if type(gradient) not in _PLAIN or gradient is None or gradient.layout is not torch.strided:
            return {}
        if gradient.device.type != self._device:
            return {}
        return {address_of_storage_of(gradient): storage_bytes_of(gradient.untyped_storage())}


_MOST_TRIES: Final = 3
"""How often eager PyTorch is measured again in one situation, if the measurements end without a backward. A guess."""


class StepBudget:
    """The budget of a compiled callable in bytes: of a whole step, of one forward and backward, of an update.

    Args:
        budget: the user's option.
        device: device whose bytes count.

    Attributes:
        is_share: whether the budget is a share of the peak of eager PyTorch.
        probe: a parameter that had no gradient at the beginning of any episode so far, and has one after a backward.
    """

    def __init__(self, budget: int | float | str | None, device: str) -> None:
        self.is_share = isinstance(budget, str) and budget.strip().endswith("%")
        self.probe: weakref.ref[torch.Tensor] | None = None
        self._budget = budget
        self._tracker = GradientTracker(device)
        self._start = StartGradients()
        self._has_seen_gradients = False
        # peak of eager PyTorch in a step, by whether gradients older than the step exist
        self._eager_bytes: dict[bool, int] = {}
        self._evaluation_bytes = 0
        self._has_measured = False  # a measured peak can be 0: an update in place allocates nothing
        # the most bytes of the step's own gradients at the beginning of an episode, by the same flag
        self._kept_bytes: dict[bool, int] = {}
        self._kept_in_update_bytes = 0
        # by the first graph of an episode and the same flag: these bytes when eager PyTorch was measured
        self._measured: dict[tuple[int, bool], int] = {}
        # by the same key: measurements that were begun and not finished
        self._tries: dict[tuple[int, bool], int] = {}

    @property
    def whole_bytes(self) -> int | None:
        """The budget of a whole step. None without a budget, and for a share until eager PyTorch was measured."""
        most = max((self._evaluation_bytes, *self._eager_bytes.values()))
        if self._budget is None or (self.is_share and not self._has_measured):
            return None
        return parse_budget(self._budget, most)

    @property
    def step_bytes(self) -> int | None:
        """The bytes that a forward and its backward may take, in every episode of the step."""
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
        """The bytes that the step of an optimizer may take, in addition to the gradients of the step."""
        whole = self.whole_bytes
        return None if whole is None else max(whole - self._kept_in_update_bytes, 0)

    def gradient_sentence(self, *, is_update: bool) -> str:
        """Return a sentence about the part of the budget that gradients take; empty if they take none."""
        kept = self._kept_in_update_bytes if is_update else max(self._kept_bytes.values(), default=0)
        whole = self.whole_bytes
        if not kept or whole is None:
            return ""
        whose = "the step" if is_update else "the step's earlier backwards"
        return f"gradients of {whose} take {format_bytes(kept)} of {format_bytes(whole)}"

    def note_parameters(self, args: Sequence[Any]) -> None:
        """Remember the parameters among the arguments of a graph."""
        self._tracker.note_parameters(args)

    def continue_step(self) -> None:
        """Record that the step goes on: no parameter has changed since it began. The known versions are older."""
        self._tracker.forget_versions()

    def note_gradients(self, graph: TracedGraph) -> bool:
        """Record the gradients at the beginning of an episode. Return True if they take more bytes than ever before."""
        if graph.is_update:
            kept_bytes = self._tracker.gradients_now().kept_bytes
            has_more = kept_bytes > self._kept_in_update_bytes
            self._kept_in_update_bytes = max(self._kept_in_update_bytes, kept_bytes)
            return has_more
        if graph.is_evaluation:
            return False
        start = self._start = self._tracker.gradients_now()
        if start.has_old or start.kept_bytes:
            self._has_seen_gradients, self.probe = True, None
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

    def note_eager_peak(self, graph: TracedGraph, peak_bytes: int) -> None:
        """Record the peak of eager PyTorch in the episode that ends.

        Args:
            graph: the first graph of the episode.
            peak_bytes: the measured peak increase.
        """
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

    def forget_measurements(self, graph: TracedGraph) -> None:
        """Forget the measurements of a graph whose inputs have grown, so that eager PyTorch is measured again."""
        self._measured = {kind: kept for kind, kept in self._measured.items() if kind[0] != graph.number}

    def note_backward_end(self) -> None:
        """Choose the probe once a backward has returned, unless an episode began with gradients."""
        if self.probe is None and not self._has_seen_gradients:
            self.probe = self._tracker.parameter_with_gradient()

    def kept_gradients(self) -> tuple[dict[bool, int], int]:
        """Return the bytes of kept gradients, for `restore_kept_gradients`."""
        return dict(self._kept_bytes), self._kept_in_update_bytes

    def restore_kept_gradients(self, kept: tuple[dict[bool, int], int]) -> None:
        """Restore an earlier value of `kept_gradients`."""
        self._kept_bytes, self._kept_in_update_bytes = kept
