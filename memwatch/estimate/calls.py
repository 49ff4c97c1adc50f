"""Collect the ops of an estimated program with the sizes of their arguments, which its recording does not have."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memwatch.encoding import Value


@dataclass(frozen=True, slots=True)
class Shape:
    """Size, type and device of an argument of a call.

    Attributes:
        size: elements along each dimension.
        stride: distance between neighbours in each dimension, in elements.
        dtype: element type.
        device: its device.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @property
    def nbytes(self) -> int:
        """The bytes that it spans."""
        if 0 in self.size:
            return 0
        last = sum((length - 1) * step for length, step in zip(self.size, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize

    def resized(self, sizes: Mapping[int, int]) -> Shape:
        """Return the shape with some lengths replaced. The dimensions keep their order in memory."""
        size = tuple(sizes.get(length, length) for length in self.size)
        stride = list(self.stride)
        before = after = 1  # elements of the inner dimensions, before and after the change
        for dim in sorted(range(len(size)), key=lambda dim: (self.stride[dim], -dim)):
            if self.stride[dim]:
                stride[dim] = max(round(self.stride[dim] / before * after), 1)
                before, after = self.stride[dim] * max(self.size[dim], 1), stride[dim] * max(size[dim], 1)
        return dataclasses.replace(self, size=size, stride=tuple(stride))


@dataclass(frozen=True, slots=True)
class Call:
    """An op and its arguments, with shapes in place of tensors. Equal calls need equal workspace.

    Attributes:
        op: the overload.
        positional: its arguments in order.
        keyword: its arguments by name, as pairs.
    """

    op: Any
    positional: tuple[Value, ...]
    keyword: tuple[tuple[str, Value], ...]

    def shapes(self) -> Iterator[Shape]:
        """Yield the shapes of its tensors."""
        for leaf in _leaves((self.positional, tuple(value for _, value in self.keyword))):
            if isinstance(leaf, Shape):
                yield leaf

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return sum(shape.nbytes for shape in self.shapes())

    def resized(self, sizes: Mapping[int, int]) -> Call:
        """Return the call with some lengths replaced, in shapes and in arguments such as `normalized_shape`."""

        def change(leaf: Value) -> Value:
            if isinstance(leaf, Shape):
                return leaf.resized(sizes)
            return sizes.get(leaf, leaf) if type(leaf) is int else leaf

        keyword = tuple((name, _changed(value, change)) for name, value in self.keyword)
        return Call(self.op, _changed(self.positional, change), keyword)

    def filled(self, make: Callable[[Shape], torch.Tensor]) -> tuple[list[Value], dict[str, Value]]:
        """Return its arguments with tensors in place of the shapes."""

        def change(leaf: Value) -> Value:
            return make(leaf) if isinstance(leaf, Shape) else leaf

        keyword = {name: _changed(value, change) for name, value in self.keyword}
        return list(_changed(self.positional, change)), keyword


class Calls:
    """The calls of a program.

    Attributes:
        ops: the number of an op in the recording, for each noted op.
        numbers: the number of its call, for each noted op.
        different: each different call once, with its number.
    """

    def __init__(self) -> None:
        self.ops: list[int] = []
        self.numbers: list[int] = []
        self.different: dict[Call, int] = {}

    def add(self, op: int, overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note the arguments of an op of the recording. An op whose arguments cannot be listed is left out."""
        try:
            number = self.different.setdefault(call_of(overload, args, kwargs), len(self.different))
        except TypeError:  # an argument without a hash, or a sparse tensor
            return
        self.ops.append(op)
        self.numbers.append(number)


def call_of(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Return the call of an op, with shapes in place of tensors.

    Raises:
        TypeError: a tensor is sparse, so its shape does not determine its bytes.
    """
    keyword = tuple((name, _described(value)) for name, value in kwargs.items())
    return Call(overload, _described(args), keyword)


def _described(value: Value) -> Value:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise TypeError(value.layout)
        return Shape(tuple(value.shape), tuple(value.stride()), value.dtype, str(value.device))
    if isinstance(value, (list, tuple)):
        return tuple(_described(item) for item in value)
    return value


def _changed(value: Value, change: Callable[[Value], Value]) -> Value:
    if isinstance(value, tuple):
        return tuple(_changed(item, change) for item in value)
    return change(value)


def _leaves(value: Value) -> Iterator[Value]:
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
