"""The workspace of the ops of an FX graph: measured once for each op and shape, and kept.

An op runs once on zeros of the sizes that its node has, beside nothing else, and the allocator's own events tell how
much it held beyond its results. The random generators are put back. Ops that act on the world outside, and those that
refuse zeros, are taken to need none: a measured step corrects that.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import torch
from torch import fx

from memwatch._torch.dispatch import OpOverload, base_name_of
from memwatch.encoding.values import ONLY_ALLOCATE
from memwatch.replay.draws import kernel_of
from memwatch.replay.measure import can_measure
from memwatch.replay.op_measure import measure_workspaces, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memwatch.encoding.values import Value

_known: Final[dict[str, int]] = {}
_SKIPPED: Final = ONLY_ALLOCATE | {"_local_scalar_dense", "set_", "resize_"}


class Workspaces:
    """The workspaces of nodes whose symbolic sizes have certain values.

    Args:
        size_of: returns a size, perhaps symbolic, as a number.
        device: device whose bytes count.
    """

    def __init__(self, size_of: Callable[[Value], int], device: str) -> None:
        self._size_of = size_of
        self._device = device

    def __call__(self, node: fx.Node) -> int:
        """Return the workspace of a node (bytes); 0 where it was not measured."""
        return _known.get(self._key(node), 0)

    def measure(self, nodes: Iterable[fx.Node]) -> None:
        """Measure those of these nodes that were never measured."""
        new = {self._key(node): node for node in nodes if _is_measurable(node)}
        new = {key: node for key, node in new.items() if key not in _known}
        if not new or not can_measure():
            return
        calls = {
            key: (kernel_of(node), functools.partial(self._arguments, node)) for key, node in new.items()
        }
        found = measure_workspaces(calls, self._device)
        _known.update((key, found.get(key, 0)) for key in new)

    def _arguments(self, node: fx.Node) -> tuple[list[Value], dict[str, Value]]:
        return self._filled(node.args), self._filled(dict(node.kwargs))

    def _filled(self, value: Value) -> Value:
        """Return an argument of a node with tensors of zeros in place of the nodes."""
        if isinstance(value, fx.Node):
            return self._filled(value.meta.get("val"))
        if isinstance(value, dict):
            return {name: self._filled(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._filled(item) for item in value]
        if isinstance(value, torch.SymInt):
            return self._size_of(value)
        if isinstance(value, torch.Tensor):
            size, stride = ([self._size_of(item) for item in part] for part in (value.shape, value.stride()))
            return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device).zero_()
        return value

    def _key(self, node: fx.Node) -> str:
        return f"{node.target} {self._described(node.args)} {self._described(dict(node.kwargs))}"

    def _described(self, value: Value) -> Value:
        if isinstance(value, fx.Node):
            return self._described(value.meta.get("val"))
        if isinstance(value, dict):
            return {name: self._described(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._described(item) for item in value]
        if isinstance(value, torch.SymInt):
            return self._size_of(value)
        if isinstance(value, torch.Tensor):
            size, stride = ([self._size_of(item) for item in part] for part in (value.shape, value.stride()))
            return size, stride, value.dtype, str(value.device)
        return value


def _is_measurable(node: fx.Node) -> bool:
    overload = node.target
    return (
        isinstance(overload, OpOverload)
        and overload.namespace in {"aten", "prims"}
        and base_name_of(overload) not in _SKIPPED
        and any(True for _ in tensors_in(node.meta.get("val")))
        and not overload.is_view
    )
