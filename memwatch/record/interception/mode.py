"""See every op below autograd through a dispatch mode.

The mode works everywhere, but it has side effects. ATen uses out-of-place backward formulas while any mode is on.
dynamo gives up on compiled functions unless the mode allows them.
"""

from __future__ import annotations

import functools
import sys
import threading
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.dynamo import disabled, frame_callback
from memwatch._torch.fake import FakeTensor
from memwatch._torch.modes import UncompiledMode, current_mode, is_torch_own, mode_stack, pop_mode, push_mode
from memwatch.heap.classes import ByClass, derives
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.record.interception.kinds import OpKind, mode_kind
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.record.interception.kinds import Handler

_PATIENCE_CALLS: Final = 10_000_000
"""Python calls that a mode, stopped inside an op, waits for the op's return. A guess."""


class ModeInterceptor(UncompiledMode):
    """Intercept with a TorchDispatchMode that dynamo ignores.

    Args:
        dispatch: called for every op in place of `__torch_dispatch__` below, with the mode and the same arguments. A C
            function has no frame, so dynamo cannot compile it.
    """

    name: Final = "mode"
    supports_higher_order_operators = True
    """Ops inside such operators are not seen, because torch removes the mode meanwhile."""

    def __init__(self, dispatch: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self._dispatch = dispatch
        self._handler: Handler | None = None
        self._kinds: dict[int, OpKind | None] = {}
        self._overloads: list[Any] = []
        self._thread = threading.get_ident()
        self._at_entry: list[Any] = []
        self.python_functions: tuple[Callable[..., Any], ...] = (ModeInterceptor.__torch_dispatch__,)

    def start(self, handler: Handler) -> None:
        """Push the mode."""
        self._handler = handler
        if self._dispatch is not None:  # torch requires a method of the mode
            self.__dict__["__torch_dispatch__"] = MethodType(self._dispatch, self)
        self._at_entry = [mode for mode in mode_stack() if is_torch_own(mode)]
        self.__enter__()

    def stop(self) -> None:
        """Remove the mode from the stack. Modes that the program pushed later stay."""
        if self._is_pushed():
            self._take_off()
        elif self._handler is not None and sys.getprofile() is None and threading.get_ident() == self._thread:
            # the block ends inside an op: torch puts the mode back when the op returns
            sys.setprofile(functools.partial(self._take_off_later, iter(range(_PATIENCE_CALLS))))
        self._handler = None
        self.__dict__.pop("__torch_dispatch__", None)

    def _is_pushed(self) -> bool:
        return any(mode is self for mode in mode_stack())

    def _take_off(self) -> None:
        above = []
        while current_mode() is not self:
            above.append(pop_mode())
        self.__exit__(None, None, None)
        for mode in reversed(above):
            push_mode(mode)

    def _take_off_later(self, tries: Iterator[int], *call: Any) -> None:
        """Remove the mode when torch has put it back. Python's profiler hook runs before the next op can begin."""
        started_again = self._handler is not None
        back = self._is_pushed()
        if started_again or back or next(tries, None) is None:
            sys.setprofile(None)
        if back and not started_again:
            self._take_off()

    def sees_this_thread(self) -> bool:
        """Return whether the mode is on in this thread. autograd passes it on to the threads of other devices."""
        return self._is_pushed()

    def pause(self) -> bool:
        """Stay on, because dynamo ignores this mode; return True."""
        return True

    def resume(self) -> None:
        """Do nothing, because `pause` left the mode on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass the op to the recorder, unless a tensor subclass dispatches it itself."""
        if frame_callback() is not None:
            return _unseen_by_dynamo(self._hand_on, func, types, args, kwargs or {})
        return self._hand_on(func, types, args, kwargs or {})

    def _hand_on(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pass an op to the recorder, unless the op is not recorded or a subclass dispatches it itself."""
        handler = self._handler
        if handler is None:
            return func(*args, **kwargs)
        try:
            beneath = mode_stack() if types and any(_dispatches_itself(kind) for kind in types) else None
            kind = None if beneath is not None else self._kind_of(func)
        except MemoryError:  # the op is not recorded
            return func(*args, **kwargs)
        if beneath is not None:
            return self._leave_to(beneath, func, args, kwargs)
        if kind is None:
            return func(*args, **kwargs)
        return handler(kind, args, kwargs)

    def _kind_of(self, func: Any) -> OpKind | None:
        try:
            return self._kinds[id(func)]
        except KeyError as error:
            pass_on(error)
            self._overloads.append(func)  # keeps it alive, so that its id stays unique
            kind = self._kinds[id(func)] = mode_kind(func)
            return kind

    def _leave_to(self, beneath: list[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let the subclass of an op's arguments run it, after the modes beneath this one.

        If a mode declines, torch calls no further mode. So the op starts again with this mode as the lowest one, and
        this mode sees the ops that the subclass runs. torch's own modes are always the lowest, and torch calls a
        subclass before them. An own mode of torch that was pushed inside the block is tracing, so the op belongs to it.
        A FakeTensorMode from before the block makes the tensors of the program.
        """
        if all(any(mode is known for known in self._at_entry) for mode in beneath):
            return NotImplemented
        if any(is_torch_own(mode) for mode in beneath):
            return func(*args, **kwargs)
        for _ in beneath:
            pop_mode()
        try:
            for mode in (self, *beneath):
                push_mode(mode)
            return func(*args, **kwargs)
        finally:
            while current_mode() is not None:
                pop_mode()
            for mode in beneath:
                push_mode(mode)


_disabled: Callable[..., Any] | None = None


def _unseen_by_dynamo(function: Callable[..., Any], *args: Any) -> Any:
    global _disabled  # noqa: PLW0603  # not functools.cache: dynamo warns about it
    if _disabled is None:
        _disabled = disabled(lambda function, *args: function(*args))
    return _disabled(function, *args)


def _has_own_dispatch(kind: type) -> bool:
    if kind is torch.Tensor or kind is torch.nn.Parameter or derives(kind, FakeTensor):
        return False
    name = "__torch_dispatch__"
    own = next(names[name] for names in map(type_dict, mro_of(kind)) if name in names)
    return own is not type_dict(torch.Tensor)[name]


_dispatches_itself: Final = ByClass(_has_own_dispatch)
