"""Gradients that are there when an episode begins, and which of them this step of the training made.

A step of several micro-batches runs several episodes before its optimizer changes the parameters. What the backwards
of the earlier ones left is alive in the later ones, beside what these take.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.storages import address_of_storage_of, storage_bytes_of
from memwatch._torch.tensors import version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

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
