"""Run single ops beside nothing, and measure by the allocator's events what each holds beyond its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memwatch._torch.tensors import address_of
from memwatch.encoding.values import Value, leaves
from memwatch.replay.executor import below_autograd
from memwatch.replay.measure import AllocatorWindow, Stretch
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Arguments = tuple[list[Value], dict[str, Value]]


def measure_workspaces(
    calls: Mapping[str, tuple[Any, Callable[[], Arguments]]], device: str
) -> dict[str, int]:
    """Return the workspace of calls by their keys (bytes); those that refuse their arguments are left out.

    Args:
        calls: an op and what makes its arguments, by a key.
        device: device whose bytes count.
    """
    with torch.random.fork_rng(devices=[device] if device.startswith("cuda") else []):
        window = AllocatorWindow(device)
        try:
            with below_autograd():
                made = {key: _run(key, op, make, window) for key, (op, make) in calls.items()}
        finally:
            stretches = window.stop()
    measured = {}
    for stretch in stretches:
        beyond = made.get(stretch.name)
        if beyond is not None:
            measured[stretch.name] = _beyond(stretch, beyond)
    return measured


def _run(key: str, op: Any, make: Callable[[], Arguments], window: AllocatorWindow) -> int | None:
    """Run a call between two marks; return the bytes of what it made, None where it refused."""
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


def _beyond(stretch: Stretch, made_bytes: int) -> int:
    return max(stretch.peak_bytes - stretch.start_bytes - made_bytes, 0)


def tensors_in(value: Value) -> Iterable[torch.Tensor]:
    """Return the tensors of an argument or a result."""
    return (item for item in leaves(value) if isinstance(item, torch.Tensor))
