"""The values of small fake tensors that follow from the program alone.

Programs read such values to choose their code. They check whether a mask has a zero, for example. The answer decides
which kernels run. So an estimate computes these tensors for real, beside the fake ones: tensors
made of constants (`arange`, `ones`, `torch.tensor`), tensors that were real before, and results of ops on them.

Random and uninitialized values are not known, nor is a result of an op on them. The parameters of a model are of this
kind, so its activations, its loss and its gradients are never computed.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.dispatch import schema_of
from memwatch._torch.fake import FakeTensor
from memwatch._torch.fake_job import real_tensors
from memwatch._torch.tensors import address_of_storage_of, untyped_storage_of
from memwatch.replay.op_workspace import tensors_in
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_ELEMENTS: Final = 1 << 20
"""Guess: a padding mask of 128 sequences of 8,192 tokens. Larger tensors are not computed."""
_MOST_BYTES: Final = 64 << 20
"""Guess: the real memory that all known values may take at once."""
_SAME_FOR_ALL: Final = frozenset(
    {"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"}
)
"""Ops that read the size and type of a tensor, and none of its values."""
_TORCHS: Final = frozenset({"aten", "prim", "prims"})
"""The namespaces of ops whose schema names every argument that they write."""
_CPU: Final = torch.device("cpu")
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


@dataclass
class _Shadow:
    """The real values of a fake storage.

    Attributes:
        owner: a weak reference to the fake storage, which removes this entry when the storage dies.
        values: the real storage; None for unknown values.
    """

    owner: weakref.ref[Any]
    values: torch.UntypedStorage | None


class KnownValues:
    """Computes small tensors for real, and answers reads of their values.

    Values belong to storages, so views share them and a write to a view changes its base.
    """

    def __init__(self) -> None:
        self._shadows: dict[int, _Shadow] = {}
        self._nbytes = 0

    def follow(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Compute the results of an op that ran on fake tensors, if the values of all its arguments are known."""
        made = list(tensors_in(result))
        if not made and not _writes(op):
            return
        if all(each.numel() <= _MOST_ELEMENTS for each in made) and _is_determined(op):
            values = self._run(op, args, kwargs)
            if values is not None:
                for fake, real in zip(made, tensors_in(values), strict=False):
                    self._add(fake, real)
                return
        for each in _written(op, args, kwargs):
            self._set(each, None)

    def answer(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an op whose result or its size depends on values; None if a value is unknown."""
        values = self._run(op, args, kwargs) if _is_determined(op) else None
        if not isinstance(values, (torch.Tensor, tuple, list)):
            return values
        like = next(iter(tensors_in((args, tuple(kwargs.values())))))
        made = [_fake_of(each, like) for each in tensors_in(values)]
        for fake, real in zip(made, tensors_in(values), strict=True):
            self._add(fake, real)
        return made[0] if isinstance(values, torch.Tensor) else tuple(made)

    def _run(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an op on known values; return None if a value is unknown, or if the op cannot run on the host."""
        inputs = list(tensors_in((args, tuple(kwargs.values()))))
        if any(each.numel() > _MOST_ELEMENTS for each in inputs):
            return None
        name = op.name().partition("::")[2].partition(".")[0]
        value_of = _blank if name in _SAME_FOR_ALL else self._values_of
        if value_of is not _blank and any(
            type(each) is FakeTensor and address_of_storage_of(each) not in self._shadows for each in inputs
        ):
            return None  # most ops end here: the guards below take longer than the rest
        if any(type(each) is not FakeTensor for each in _written(op, args, kwargs)):
            return None  # a tensor of the caller's must not change
        with real_tensors(), torch.no_grad():
            known: dict[int, torch.Tensor] = {}
            for each in inputs:
                value = value_of(each)
                if value is None:
                    return None
                known[id(each)] = value
            try:
                return op(
                    *(_replaced(each, known) for each in args),
                    **{key: key != "pin_memory" and _replaced(each, known) for key, each in kwargs.items()},
                )
            except Exception as error:  # any kernel may refuse; then nothing is known
                pass_on(error)
                return None

    def _values_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        shadow = self._shadows.get(address_of_storage_of(tensor))
        if shadow is None:
            # a real tensor has its values itself
            is_real = type(tensor) in _PLAIN and tensor.device == _CPU and tensor.layout is torch.strided
            return tensor.detach() if is_real else None
        values = shadow.values
        if values is None or tensor.is_conj() or tensor.is_neg():
            return None
        if values.nbytes() != untyped_storage_of(tensor).nbytes():  # the program has resized it
            return None
        window = torch.empty(0, dtype=tensor.dtype)
        return window.set_(values, tensor.storage_offset(), tensor.shape, tensor.stride())

    def _add(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Note the values of a new fake tensor."""
        if type(fake) is not FakeTensor or address_of_storage_of(fake) in self._shadows:
            return  # a view, or an argument that was written
        nbytes = untyped_storage_of(fake).nbytes()
        if (
            fake.shape != real.shape
            or fake.dtype != real.dtype
            or fake.storage_offset()
            or fake.layout is not torch.strided
            or self._nbytes + nbytes > _MOST_BYTES
        ):
            return
        with real_tensors(), torch.no_grad():
            # a copy: the op may have returned a tensor of the program, or a tensor of another layout
            storage = torch.UntypedStorage(nbytes)
            window = torch.empty(0, dtype=fake.dtype)
            window.set_(storage, 0, fake.shape, fake.stride())
            window.copy_(real)
        self._set(fake, storage)

    def _set(self, tensor: torch.Tensor, values: torch.UntypedStorage | None) -> None:
        address = address_of_storage_of(tensor)
        before = self._shadows.pop(address, None)
        if before is not None and before.values is not None:
            self._nbytes -= before.values.nbytes()
        if values is None and type(tensor) is FakeTensor:
            return
        self._nbytes += 0 if values is None else values.nbytes()
        owner = weakref.ref(untyped_storage_of(tensor), functools.partial(self._forget, address))
        self._shadows[address] = _Shadow(owner, values)

    def _forget(self, address: int, owner: weakref.ref[Any]) -> None:
        shadow = self._shadows.get(address)
        if shadow is not None and shadow.owner is owner:
            del self._shadows[address]
            self._nbytes -= 0 if shadow.values is None else shadow.values.nbytes()


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _fake_of(real: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return like.new_empty_strided(real.shape, real.stride(), dtype=real.dtype)


@functools.cache
def _is_determined(op: Any) -> bool:
    """Return True for an op of torch whose results follow from its arguments."""
    tags = getattr(op, "tags", ())
    return (
        op.namespace == "aten"
        and "empty" not in op.name()
        and torch.Tag.nondeterministic_seeded not in tags
        and torch.Tag.inplace_view not in tags
    )


@functools.cache
def _writes(op: Any) -> bool:
    return bool(op.namespace not in _TORCHS or schema_of(op).is_mutable)


def _written(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an op may write: for ops that are not torch's own, all of its tensors."""
    if not _writes(op):
        return []
    if op.namespace not in _TORCHS:
        return list(tensors_in((args, tuple(kwargs.values()))))
    found: list[Any] = []
    for position, argument in enumerate(schema_of(op).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[position] if position < len(args) else kwargs.get(argument.name))
    return list(tensors_in(found))


def _replaced(value: Any, known: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return known[id(value)]
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(each, known) for each in value)
    return _CPU if isinstance(value, torch.device) else value
