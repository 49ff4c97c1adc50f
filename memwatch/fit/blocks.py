"""Find the blocks of a model that can be checkpointed: modules that save many bytes and are not inside each other."""

from __future__ import annotations

import contextlib
import functools
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from memwatch._torch.tensors import address_of_storage_of
from memwatch.fit.live_bytes import alive_bytes, device_of
from memwatch.fit.state import fingerprint
from memwatch.heap.tensors import quiet, storage_bytes, storage_of
from memwatch.signal_handlers import raises_later

if TYPE_CHECKING:
    from collections.abc import Iterator


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield the items of nested lists, tuples and dictionaries, in order."""
    if isinstance(value, dict):
        for each in value.values():
            yield from leaves_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from leaves_of(each)
    else:
        yield value


_LEAST_SHARE: Final = 1 / 50
"""A share of the model's saved bytes. A block that saves less is not checkpointed. A guess."""
_LARGEST_SHARES: Final = (1 / 2, 1 / 8)
"""A block saves at most this share of the saved bytes, if a smaller block exists.

There are two shares, because large and small blocks both have a cost. When a block is computed again, its saved bytes
are alive again. And the inputs of many small blocks add up.
"""


@dataclass
class SavedBytes:
    """The bytes that each module saved for backward while watched. Its inputs, parameters and buffers are not counted.

    A run of a script is watched for several steps, so only the shares of the bytes have a meaning.

    Attributes:
        by_module: bytes by the module's name, including its children's bytes.
        order: the modules that were called, in the order of their first calls.
        losses: the modules whose calls returned only tensors with one element, such as a loss.
    """

    by_module: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    losses: set[str] = field(default_factory=set)


class SavedScan:
    """Watches the tensors that the modules of a model save.

    Attributes:
        found: the result so far.
        gradients_wait: whether gradients were alive when the model was called, so that freeing them may help.
        changing_buffers: names of the buffers that were written; empty until the watch has ended.
        baseline_bytes: live bytes of the device at the model's first call in the watched step. A plan of forward and
            backward starts from this figure.
    """

    def __init__(self) -> None:
        self.found = SavedBytes()
        self.gradients_wait = False
        self.baseline_bytes = 0
        self.changing_buffers: set[str] = set()
        self._device = ""
        self._is_called = False
        self._names: dict[int, str] = {}
        self._own: set[int] = set()  # storages of parameters and buffers
        # modules, outermost first, with storages of their inputs
        self._running: list[tuple[str, set[int]]] = []
        self._seen: dict[str, set[int]] = {}  # addresses of living storages that a module saved
        self._living: dict[int, tuple[weakref.ref[torch.UntypedStorage], list[set[int]]]] = {}

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch the calls of a model's modules and the tensors that autograd saves, without keeping them."""
        self._device, self._is_called = device_of(model), False
        self._names = {id(module): name for name, module in model.named_modules()}
        with quiet():
            own = [*model.parameters(), *model.buffers()]
            self._own = {address_of_storage_of(tensor) for tensor in own if storage_of(tensor) is not None}
        before = {name: fingerprint([buffer]) for name, buffer in model.named_buffers()}
        hooks = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            with saved_tensors_hooks(self._saved, lambda tensor: tensor):
                yield
        finally:
            for hook in hooks:
                hook.remove()
            self._living.clear()
        after = {name: fingerprint([buffer]) for name, buffer in model.named_buffers()}
        self.changing_buffers = {name for name in after if after[name] != before.get(name)}

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self._names.get(id(module))
        if not self._running and name is not None:
            if not self._is_called:
                self._is_called, self.baseline_bytes = True, alive_bytes(self._device)
            self.gradients_wait |= any(parameter.grad is not None for parameter in module.parameters())
        if name is not None and torch.is_grad_enabled():
            if name not in self._seen:
                self._seen[name] = set()
                self.found.order.append(name)
            self._running.append((name, set(_storages(args))))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        name = self._names.get(id(module))
        tensors = [each for each in leaves_of(output) if isinstance(each, torch.Tensor)]
        if name is not None and tensors and all(each.numel() == 1 for each in tensors):
            self.found.losses.add(name)
        while name is not None and any(each == name for each, _ in self._running):
            if self._running.pop()[0] == name:
                break

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        with quiet():
            storage = storage_of(tensor)
            key = 0 if storage is None else address_of_storage_of(tensor)
        if storage is not None and key not in self._own:
            if key not in self._living:
                self._living[key] = (weakref.ref(storage, functools.partial(self._died, key)), [])
            for name, inputs in self._running:
                seen = self._seen[name]
                if key not in inputs and key not in seen:
                    seen.add(key)
                    self._living[key][1].append(seen)
                    by_module = self.found.by_module
                    by_module[name] = by_module.get(name, 0) + storage_bytes(storage)
        return tensor

    @raises_later
    def _died(self, key: int, _: object) -> None:
        """Forget an address, because the next step may save another storage there."""
        _, of_modules = self._living.pop(key, (None, ()))
        for seen in of_modules:
            seen.discard(key)


def _storages(values: Any) -> Iterator[int]:
    for leaf in leaves_of(values):
        if isinstance(leaf, torch.Tensor) and storage_of(leaf) is not None:
            yield address_of_storage_of(leaf)


def partitions(model: nn.Module, saved: SavedBytes) -> list[tuple[str, ...]]:
    """Return ways to divide a model into blocks, large blocks first, each in the order of the calls."""
    total = saved.by_module.get("", 0) or max(saved.by_module.values(), default=0)
    place = {name: number for number, name in enumerate(saved.order)}
    # leave out losses, because a checkpointed loss computes large results again, right at the peak
    by_module = {name: nbytes for name, nbytes in saved.by_module.items() if name not in saved.losses}
    found: list[tuple[str, ...]] = []
    for share in _LARGEST_SHARES:
        blocks = [
            name
            for name in _divide(model, "", by_module, share * total)
            if saved.by_module[name] >= _LEAST_SHARE * total
        ]
        blocks.sort(key=lambda name: place[name])
        if blocks and tuple(blocks) not in found:
            found.append(tuple(blocks))
    return found


def _divide(module: nn.Module, name: str, saved: dict[str, int], most_bytes: float) -> Iterator[str]:
    for short, child in module.named_children():
        full = f"{name}.{short}" if name else short
        below = list(_divide(child, full, saved, most_bytes))
        if full in saved and (saved[full] <= most_bytes or not below):
            yield full
        else:
            yield from below


def chains(model: nn.Module, saved: SavedBytes) -> list[tuple[str, int]]:
    """Return the sequences of modules (`nn.Sequential`) that save much and have no large parts, with their lengths."""
    total = saved.by_module.get("", 0) or max(saved.by_module.values(), default=0)
    found = []
    for name, module in model.named_modules():
        if (
            type(module) is nn.Sequential
            and saved.by_module.get(name, 0) >= total / 4 > 0
            and len(module) > 3
        ):
            start = f"{name}." if name else ""
            parts = [saved.by_module.get(f"{start}{short}", 0) for short, _ in module.named_children()]
            if (
                sum(parts) < saved.by_module[name] / 2
            ):  # most bytes are saved between the parts, and not in them
                found.append((name, len(module)))
    return found
