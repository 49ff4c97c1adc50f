"""The kinds of ops: what the recorders need to know of each overload of ATen, computed once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.dispatch import (
    OpOverload,
    base_name_of,
    call_of,
    overload_name_of,
    schema_of,
    takes_numbers_as_tensors,
)
from memwatch._torch.modes import enable_torch_function
from memwatch.capture.schema import ACCESSES

if TYPE_CHECKING:
    from collections.abc import Callable

READ, WRITE = (ACCESSES.index(access) for access in ("read", "write"))
UNSEEN: Final = frozenset({"detach", "alias"})
"""Ops that make no bytes; `detach` must stay unseen below autograd: `nn.Parameter` needs its output unwrapped."""
LIFT: Final = "lift_fresh"
"""The op through which torch passes a tensor that it made of Python's data, or around memory that another library made.

It makes no bytes and has no row in `ops`. What it passes was allocated below every op, and is noted here at the latest.
"""
VIEWS: Final = frozenset(
    {
        "_reshape_alias", "as_strided", "diagonal", "expand", "permute", "select.int", "slice.Tensor",
        "split.Tensor", "split_with_sizes", "squeeze", "squeeze.dim", "squeeze.dims", "t", "transpose.int",
        "unbind.int", "unfold", "unsqueeze", "view", "view_as_complex", "view_as_real",
    }
)  # fmt: skip
"""Views whose node is noted: what its backward allocates has the view's line. The others make none, or are rare."""
_BOOKKEEPING: Final = ("profiler", "prim")
"""Namespaces of ops that compute nothing: marks of profilers, and `prim::device`, which asks a fake tensor for its."""
_RESIZING: Final = frozenset({"resize_", "resize_as_", "set_", "_resize_output_"})
_NUMBERS: Final[dict[type, torch.dtype]] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


class OpKind:
    """What a recorder needs to know of an overload, computed once.

    Attributes:
        overload: the overload itself.
        name: as ``aten.add.Tensor``.
        call: runs it.
        takes_lists: whether an argument is a list, which may hold tensors.
        accesses: how each argument is used, by its position: read or written.
        write_names: names of the arguments that are written.
        resizes: whether it may give an argument another storage size.
        is_view: whether it is one of `VIEWS`: it makes no bytes, and has no row in `ops`.
        is_lift: whether it is `LIFT`.
        has_no_row: whether it is one of these: what it does is noted in other tables than `ops`.
    """

    __slots__ = (
        "_calling",
        "_seeing",
        "accesses",
        "call",
        "has_no_row",
        "is_lift",
        "is_view",
        "name",
        "overload",
        "resizes",
        "takes_lists",
        "write_names",
    )

    def __init__(self, overload: Any) -> None:
        arguments = schema_of(overload).arguments
        self.overload = overload
        self.is_view: Final = is_noted_view(overload)
        self.is_lift: Final = is_lift(overload)
        self.has_no_row: Final = self.is_view or self.is_lift
        self.name = str(overload)
        self.call: Callable[..., Any] = call_of(overload)
        self.takes_lists = any("[]" in str(argument.type) for argument in arguments)
        written = [
            (position, argument.name)
            for position, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        positions = {position for position, _ in written}
        self.accesses: Final = tuple(
            WRITE if position in positions else READ for position in range(len(arguments))
        )
        self.write_names: Final = frozenset(name for _, name in written)
        self.resizes = bool(written) and (
            "out" in overload_name_of(overload) or base_name_of(overload) in _RESIZING
        )
        self._seeing: OpKind | None = None
        self._calling: OpKind | None = None

    def numbers_as_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the arguments with tensors for numbers where the schema wants tensors; None if there are none.

        torch hands the tensor that C++ made of a number to Python as the number, and most ops do not take it back
        (code that torch.jit traced, as `x.shape[0] // 2`, fails so under any dispatch mode).
        """
        if takes_numbers_as_tensors(base_name_of(self.overload)):
            return None
        restored = list(args)
        for position, argument in enumerate(schema_of(self.overload).arguments[: len(args)]):
            dtype = _NUMBERS.get(args[position].__class__)
            if dtype is not None and str(argument.type) == "Tensor":
                restored[position] = torch.scalar_tensor(args[position], dtype=dtype)
        return None if all(new is old for new, old in zip(restored, args, strict=True)) else tuple(restored)

    def calling(self, call: Callable[..., Any]) -> OpKind:
        """Return the same kind for one run with another call; the next run takes the object again."""
        kind = self._calling
        if kind is None:
            kind = self._calling = OpKind(self.overload)
        kind.call = call
        kind._seeing = None
        return kind

    def seeing(self) -> OpKind:
        """Return the same kind for use while __torch_function__ is off: its call alone runs with it on."""
        if self._seeing is None:
            self._seeing = OpKind(self.overload)
            self._seeing.call = functools.partial(_with_torch_function, self.call)
        return self._seeing


def _with_torch_function(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with enable_torch_function():
        return call(*args, **kwargs)


def is_noted_view(overload: Any) -> bool:
    """Return whether an overload is one of `VIEWS`."""
    return (
        overload.namespace == "aten" and str(overload).removeprefix("aten.").removesuffix(".default") in VIEWS
    )


def is_lift(overload: Any) -> bool:
    """Return whether an overload is `LIFT`."""
    return overload.namespace == "aten" and base_name_of(overload) == LIFT


def mode_kind(func: Any) -> OpKind | None:
    """Return the kind of an op that a dispatch mode sees; None for one that is not recorded."""
    if (
        not isinstance(func, OpOverload)
        or (func.is_view and not (is_noted_view(func) or is_lift(func)))
        or base_name_of(func) in UNSEEN
        or func.namespace in _BOOKKEEPING
    ):
        return None
    return OpKind(func)
