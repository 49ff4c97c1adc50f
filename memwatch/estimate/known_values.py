"""What fake tensors lack: the results whose size a kernel chooses, and small values that follow from the program alone.

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
from memwatch.estimate.calls import call_of
from memwatch.replay.measure import tensors_in
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memwatch.estimate.calls import Call, Shape

# Results whose size a kernel chooses.
#
# A recurrent layer of oneDNN keeps 15 times its output for its backward, for example.
#
# torch's fake kernels return them empty. So an op with such a result runs here once on zeros for each of its sizes.
# If its tensors are large, it runs twice at smaller sizes; the two show how the result grows with a length that a
# single argument has.
_SMALL_BYTES: Final = 16 << 20
"""Most bytes of the tensors of a call that runs at its own sizes. A guess."""
_LEAST_LENGTH: Final = 2  # the smallest length at which such an op runs; a guess
_KERNEL_NAMESPACES: Final = frozenset({"aten", "mkldnn", "quantized"})
_SCALED: Final = "the size of the buffer that {} keeps for its backward follows from runs at smaller sizes"
_NOT_KNOWN: Final = (
    "{} keeps a buffer for its backward, and its kernel chooses the size; the kernel could not run here, so the buffer "
    "counts as 0 bytes"
)


class ChosenSizes:
    """Give results that a fake kernel returns empty the sizes of the real kernel's.

    Args:
        remark: called with a sentence for each op whose sizes are unknown, or follow from smaller ones.
    """

    def __init__(self, remark: Callable[[str], None]) -> None:
        self._remark = remark
        self._known: dict[tuple[Call, bool], tuple[int, ...] | None] = {}

    def complete(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Return the results of an op, with wrongly empty ones replaced by results of their real sizes."""
        if type(result) is not tuple or not _shows_empty(op, args, result):
            return result
        key = (
            call_of(op, args, kwargs),
            torch.is_grad_enabled(),
        )  # without a backward, a layer keeps nothing
        try:
            if key not in self._known:
                self._known[key] = _real_sizes(key[0])
        except TypeError:  # an argument that cannot be compared
            return result
        sizes = self._known[key]
        if sizes is None or len(sizes) != len(result):
            self._remark(_NOT_KNOWN.format(op.name()))
            return result
        if key[0].nbytes > _SMALL_BYTES:
            self._remark(_SCALED.format(op.name()))
        return tuple(
            each.new_empty(size) if _is_open(each) and size else each
            for each, size in zip(result, sizes, strict=True)
        )


def _is_open(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype is torch.uint8
        and value.dim() == 1
        and not value.numel()
        and value.device.type == "cpu"
    )


def _shows_empty(op: Any, args: tuple[Any, ...], result: tuple[Any, ...]) -> bool:
    """Return True for an op of torch's own that computes, and shows bytes of no size beside other results."""
    if op.namespace not in _KERNEL_NAMESPACES or op.is_view or all(map(_is_open, result)):
        return False
    return any(map(_is_open, result)) and all(tensor.numel() for tensor in tensors_in(args))


def _real_sizes(call: Call) -> tuple[int, ...] | None:
    """Return the number of elements of each result of a call; None where it cannot be run."""
    length = _own_length(call) if call.nbytes > _SMALL_BYTES else 0
    if not length:
        return _sizes(call) if call.nbytes <= _SMALL_BYTES else None
    shorter = max(length * _SMALL_BYTES // call.nbytes, 2 * _LEAST_LENGTH)
    high, low = (_sizes(call.resized({length: at})) for at in (shorter, shorter // 2))
    if high is None or low is None:
        return None
    per_step = (shorter - shorter // 2,) * len(high)
    return tuple(
        more + (more - less) * (length - shorter) // step
        for more, less, step in zip(high, low, per_step, strict=True)
    )


def _own_length(call: Call) -> int:
    """Return the longest length that one argument alone has, once, and no number of the call is; 0 if there is none."""
    found = [length for shape in call.shapes() for length in shape.size]
    numbers = {value for value in call.positional if type(value) is int}
    alone = [each for each in found if found.count(each) == 1 and each not in numbers]
    return max((each for each in alone if each > 2 * _LEAST_LENGTH), default=0)


def _sizes(call: Call) -> tuple[int, ...] | None:
    try:
        with real_tensors():
            positional, keyword = call.filled(_zeros)
            return tuple(
                each.numel() if isinstance(each, torch.Tensor) else 0
                for each in call.op(*positional, **keyword)
            )
    except (RuntimeError, TypeError, ValueError) as error:
        pass_on(error)
        return None


def _zeros(shape: Shape) -> torch.Tensor:
    return torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=shape.device).zero_()


_MOST_ELEMENTS: Final = 1 << 20
"""Guess: a padding mask of 128 sequences of 8,192 tokens. Larger tensors are not computed."""
_MOST_BYTES: Final = 64 << 20
"""Guess: the real memory that all known values may take at once."""
_SAME_FOR_ALL: Final = frozenset(
    {"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"}
)
"""Ops that read the size and type of a tensor, and none of its values."""
_OF_BITS: Final = frozenset({"__and__", "__or__", "bitwise_and", "bitwise_or", "logical_and", "logical_or"})
"""Ops that compute each bit, or each truth value, from the same bit of their arguments."""
_CHECK: Final = "aten::_is_all_true"
"""The op by which torch checks arguments, as `torch.distributions` does. It raises an error if the answer is False."""
_COMPUTED_NAMESPACES: Final = frozenset({"aten", "prim", "prims"})
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
        """Return what an op computes from known values, and True for a check of unknown values; otherwise None."""
        values = self._run_on_known(op, args, kwargs)
        if values is None and op.name() == _CHECK:
            with real_tensors():
                return torch.tensor(True)
        return values

    def _run_on_known(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an op on known values; return None if a value is unknown, or if the op cannot run on the host."""
        inputs = list(tensors_in((args, tuple(kwargs.values()))))
        if any(each.numel() > _MOST_ELEMENTS or each.layout is not torch.strided for each in inputs):
            return None  # a sparse tensor has no storage, so its values are not known
        name = op.name().partition("::")[2].partition(".")[0]
        if name in _OF_BITS and not _writes(op):
            return self._run_bits(op, args, kwargs, inputs)
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

    def _run_bits(
        self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[torch.Tensor]
    ) -> Any:
        """Run an op that computes each bit alone; its result can be known where a value is not.

        `True | x` is true for every `x`. A loop that generates tokens ends so: its sequences are done at the largest
        length, whether or not they have ended before. The result is known if it is the same with all unknown bits clear
        and with all of them set.
        """
        with real_tensors(), torch.no_grad():
            known = {id(each): self._values_of(each) for each in inputs}
            if all(value is None for value in known.values()):
                return None
            results = []
            for bits in (0, -1):
                values = {
                    id(each): torch.full(each.shape, bits, dtype=each.dtype) if value is None else value
                    for each, value in zip(inputs, known.values(), strict=False)
                }
                results.append(op(*(_replaced(each, values) for each in args), **kwargs))
            return results[0] if torch.equal(*results) else None

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
        if type(fake) is not FakeTensor or fake.layout is not torch.strided:
            return
        if address_of_storage_of(fake) in self._shadows:
            return  # a view, or an argument that was written
        nbytes = untyped_storage_of(fake).nbytes()
        if (
            fake.shape != real.shape
            or fake.dtype != real.dtype
            or fake.storage_offset()
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
    return bool(op.namespace not in _COMPUTED_NAMESPACES or schema_of(op).is_mutable)


def _written(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an op may write: for ops that are not torch's own, all of its tensors."""
    if not _writes(op):
        return []
    if op.namespace not in _COMPUTED_NAMESPACES:
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
