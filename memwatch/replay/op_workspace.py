"""The workspace of single ops, by the allocator's events: the bytes beyond its results that a running op holds.

`measure_workspaces` runs each op alone, on given arguments. `Workspaces` does so for the nodes of an FX graph, once
for each op and shape, on zeros of the node's sizes. The random generators are put back. Some ops act on the world
outside, or refuse zeros. They count as ops without workspace, until a measured step corrects this.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from memwatch._torch.dispatch import OpOverload, base_name_of
from memwatch._torch.tensors import address_of
from memwatch.encoding.values import ONLY_ALLOCATE, Value, leaves
from memwatch.replay.draws import kernel_of
from memwatch.replay.executor import below_autograd
from memwatch.replay.measure import AllocatorWindow, Stretch, can_measure
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Arguments = tuple[list[Value], dict[str, Value]]


_measured_bytes: Final[dict[str, int]] = {}
_SKIPPED: Final = ONLY_ALLOCATE | {"_local_scalar_dense", "set_", "resize_"}


class Workspaces:
    """The workspaces of the nodes of a graph, for given values of the symbolic sizes.

    Args:
        size_of: returns a size, perhaps symbolic, as a number.
        device: device whose bytes count.
    """

    def __init__(self, size_of: Callable[[Value], int], device: str) -> None:
        self._size_of = size_of
        self._device = device

    def __call__(self, node: fx.Node) -> int:
        """Return the workspace of a node (bytes); 0 where it was not measured."""
        return _measured_bytes.get(self._key(node), 0)

    def measure(self, nodes: Iterable[fx.Node]) -> None:
        """Measure the nodes among these that were never measured."""
        new = {self._key(node): node for node in nodes if _is_measurable(node)}
        new = {key: node for key, node in new.items() if key not in _measured_bytes}
        if not new or not can_measure():
            return
        calls = {
            key: (kernel_of(node), functools.partial(self._arguments, node)) for key, node in new.items()
        }
        found = measure_workspaces(calls, self._device)
        _measured_bytes.update((key, found.get(key, 0)) for key in new)

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


def measure_workspaces(
    calls: Mapping[str, tuple[Any, Callable[[], Arguments]]], device: str
) -> dict[str, int]:
    """Return the workspace of each call (bytes), by its key. Calls that raise are left out.

    Args:
        calls: key -> an op, and a function that makes its arguments.
        device: device whose bytes count.
    """
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        window = AllocatorWindow(device)
        try:
            with below_autograd():
                made = {key: _run_call(key, op, make, window) for key, (op, make) in calls.items()}
        finally:
            stretches = window.stop()
    measured = {}
    for stretch in stretches:
        beyond = made.get(stretch.name)
        if beyond is not None:
            measured[stretch.name] = _workspace_bytes(stretch, beyond)
    return measured


def _run_call(key: str, op: Any, make: Callable[[], Arguments], window: AllocatorWindow) -> int | None:
    """Run a call between two marks; return the bytes of its new storages, None if it raised."""
    made = None
    with suppress(Exception):
        positional, keyword = make()
        window.mark(key)
        made = _made_bytes(op(*positional, **keyword), [positional, list(keyword.values())])
    window.mark("")
    return made


def _made_bytes(result: Value, given: Value) -> int:
    known = {address_of(item.untyped_storage()) for item in tensors_in(given)}
    storages = {
        address_of(item.untyped_storage()): item.untyped_storage().nbytes() for item in tensors_in(result)
    }
    return sum(nbytes for address, nbytes in storages.items() if address not in known)


def _workspace_bytes(stretch: Stretch, made_bytes: int) -> int:
    return max(stretch.peak_bytes - stretch.start_bytes - made_bytes, 0)


def tensors_in(value: Value) -> Iterable[torch.Tensor]:
    """Return the tensors of an argument or a result."""
    return (item for item in leaves(value) if isinstance(item, torch.Tensor))
