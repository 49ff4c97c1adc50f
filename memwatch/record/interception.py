"""What both interceptors share: the kind of each op that they pass on, their interface, and the probe of the free key.

A kind has the facts that a recorder needs about an overload of ATen, computed once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import torch

from memwatch._torch.dispatch import (
    FREE_KEY,
    OpOverload,
    base_name_of,
    call_of,
    overload_name_of,
    schema_of,
    takes_numbers_as_tensors,
)
from memwatch._torch.modes import disable_torch_dispatch, disable_torch_function, enable_torch_function
from memwatch.capture.schema import ACCESSES
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterator

READ, WRITE = (ACCESSES.index(access) for access in ("read", "write"))
UNSEEN: Final = frozenset({"detach", "alias"})
"""Ops that make no bytes and must not be seen: `nn.Parameter` needs the output of `detach` unwrapped."""
LIFT: Final = "lift_fresh"
"""The op through which torch passes tensors that it made from Python's data or around another library's memory.

It makes no bytes and has no row in `ops`. The tensor was allocated below every op, and this is the first chance to see
it.
"""
VIEWS: Final = frozenset(
    {
        "_reshape_alias", "as_strided", "diagonal", "expand", "permute", "select.int", "slice.Tensor",
        "split.Tensor", "split_with_sizes", "squeeze", "squeeze.dim", "squeeze.dims", "t", "transpose.int",
        "unbind.int", "unfold", "unsqueeze", "view", "view_as_complex", "view_as_real",
    }
)  # fmt: skip
"""Views whose autograd node is noted, so that memory of its backward gets the view's line. Other views are rare."""
_BOOKKEEPING: Final = ("profiler", "prim")
"""Namespaces of ops that compute nothing: marks of profilers, and `prim::device` of fake tensors."""
_RESIZING: Final = frozenset({"resize_", "resize_as_", "set_", "_resize_output_"})
_NUMBERS: Final[dict[type, torch.dtype]] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
_EXPECTED: Final = 6
"""The sum that the test op must give."""


class OpKind:
    """The facts that a recorder needs about an overload, computed once.

    Attributes:
        overload: the overload itself.
        name: such as ``aten.add.Tensor``.
        call: runs the overload.
        takes_lists: whether an argument is a list, which may hold tensors.
        accesses: read or write, for each argument by position.
        write_names: names of the arguments that are written.
        resizes: whether the op may change the storage size of an argument.
        is_view: whether it is one of `VIEWS`, which make no bytes.
        is_lift: whether it is `LIFT`.
        has_no_row: whether it is a view or `LIFT`. These have rows in other tables than `ops`.
    """

    __slots__ = (
        "_kind_with_call",
        "_kind_with_torch_function",
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
        self._kind_with_torch_function: OpKind | None = None
        self._kind_with_call: OpKind | None = None

    def numbers_as_tensors(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the arguments with tensors in place of numbers where the schema has tensors. None if nothing changes.

        If C++ makes a tensor of a number, torch passes it to Python as the number, and most ops do not accept that. So
        traced code such as `x.shape[0] // 2` fails under any dispatch mode.
        """
        if takes_numbers_as_tensors(base_name_of(self.overload)):
            return None
        restored = list(args)
        for position, argument in enumerate(schema_of(self.overload).arguments[: len(args)]):
            dtype = _NUMBERS.get(args[position].__class__)
            if dtype is not None and str(argument.type) == "Tensor":
                restored[position] = torch.scalar_tensor(args[position], dtype=dtype)
        return None if all(new is old for new, old in zip(restored, args, strict=True)) else tuple(restored)

    def with_call(self, call: Callable[..., Any]) -> OpKind:
        """Return the same kind with another call, for one run. The next run reuses the object."""
        kind = self._kind_with_call
        if kind is None:
            kind = self._kind_with_call = OpKind(self.overload)
        kind.call = call
        kind._kind_with_torch_function = None
        return kind

    def with_torch_function(self) -> OpKind:
        """Return the same kind for use while __torch_function__ is off. Only its call runs with it on."""
        if self._kind_with_torch_function is None:
            self._kind_with_torch_function = OpKind(self.overload)
            self._kind_with_torch_function.call = functools.partial(_with_torch_function, self.call)
        return self._kind_with_torch_function


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
    """Return the kind of an op that a dispatch mode sees, or None for an op that is ignored."""
    if (
        not isinstance(func, OpOverload)
        or (func.is_view and not (is_noted_view(func) or is_lift(func)))
        or base_name_of(func) in UNSEEN
        or func.namespace in _BOOKKEEPING
    ):
        return None
    return OpKind(func)


Handler: TypeAlias = Callable[[OpKind, tuple[Any, ...], dict[str, Any]], Any]
"""A function that runs an op and returns its result. It gets the op's kind and arguments."""


class Interceptor(Protocol):
    """Calls the handler for every op of this thread between `start` and `stop`."""

    @property
    def name(self) -> str:
        """``key`` or ``mode``."""

    @property
    def python_functions(self) -> tuple[Callable[..., Any], ...]:
        """The Python functions that torch may call while dynamo evaluates frames."""

    def start(self, handler: Handler) -> None:
        """Begin to call `handler` for every op."""

    def stop(self) -> None:
        """Leave torch as it was before `start`."""

    def sees_this_thread(self) -> bool:
        """Return True in the block's thread and in autograd threads that run a backward for it."""

    def pause(self) -> bool:
        """Switch off in this thread until `resume`, for compiled code. Return whether it was on."""

    def resume(self) -> None:
        """Switch on again."""


def passes(start: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Return True if ops have the right result while an interceptor is on."""
    if FREE_KEY is None:
        return False
    try:
        with _unseen_by_the_program():
            start()
            try:
                total = (torch.ones(3, requires_grad=True) * 2).sum()
                total.backward()
            finally:
                stop()
            return total.item() == _EXPECTED
    except (RuntimeError, AttributeError, TypeError) as error:
        pass_on(error)
        return False


@contextlib.contextmanager
def _unseen_by_the_program() -> Iterator[None]:
    """Run memwatch's own ops below every mode of the program, with autograd as usual."""
    with disable_torch_function(), disable_torch_dispatch(), torch.inference_mode(False), torch.enable_grad():
        yield
