"""See every op below autograd through a dispatch mode.

The mode works everywhere but is seen: ATen takes out-of-place backward formulas while any mode is on, and
dynamo gives up on compiled functions.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from memwatch.record.interception.kinds import OpKind, mode_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.record.interception.interceptor import Handler

_frames_callback: Final[Callable[[], Any]] = torch._C._dynamo.eval_frame.get_eval_frame_callback

_PATIENCE_CALLS: Final = 10_000_000
"""For how many calls of Python a mode that was stopped within an op waits for the op's return."""


class ModeInterceptor(TorchDispatchMode):
    """Intercept with a TorchDispatchMode that dynamo ignores."""

    name = "mode"
    supports_higher_order_operators = (
        True  # what they run is not seen, for torch takes the mode off meanwhile
    )

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler: Handler | None = None
        self._kinds: dict[int, OpKind | None] = {}
        self._overloads: list[Any] = []
        self._thread = threading.get_ident()
        self.callbacks: tuple[Callable[..., Any], ...] = (ModeInterceptor.__torch_dispatch__,)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep dynamo from giving up on compiled functions for the rest of the process (TORCH_FACTS 4.4)."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do without torch's wrapper around `__torch_dispatch__`, which costs as much as recording."""
        return False

    def start(self, handler: Handler) -> None:
        """Push the mode."""
        self._handler = handler
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Take the mode off the stack, leaving those that the program pushed later."""
        if self._is_pushed():
            self._take_off()
        elif self._handler is not None and sys.getprofile() is None and threading.get_ident() == self._thread:
            # the block is left within an op: torch puts the mode back when that returns
            sys.setprofile(functools.partial(self._take_off_later, iter(range(_PATIENCE_CALLS))))
        self._handler = None

    def _is_pushed(self) -> bool:
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def _take_off(self) -> None:
        above = []
        while _get_current_dispatch_mode() is not self:
            above.append(_pop_mode())
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _push_mode(mode)

    def _take_off_later(self, tries: Iterator[int], *call: Any) -> None:
        """Take the mode off when torch has put it back; Python's profiler calls before the next op can begin."""
        started_again = self._handler is not None
        back = self._is_pushed()
        if started_again or back or next(tries, None) is None:
            sys.setprofile(None)
        if back and not started_again:
            self._take_off()

    def pause(self) -> bool:
        """Stay on: dynamo ignores this mode."""
        return True

    def resume(self) -> None:
        """Stay on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Hand the op to the recorder; leave tensor subclasses that dispatch on their own to themselves."""
        if _frames_callback() is not None:
            return _unseen_by_dynamo(self.hand_on, func, types, args, kwargs or {})
        return self.hand_on(func, types, args, kwargs or {})

    def hand_on(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hand an op to the recorder, unless it is a view or a subclass sees to it."""
        handler = self._handler
        if handler is None:
            return func(*args, **kwargs)
        if types and any(_dispatches_itself(kind) for kind in types):
            return self._leave_to(_get_current_dispatch_mode_stack(), func, args, kwargs)
        kind = self._kinds.get(id(func), self)
        if kind is self:
            kind = self._kinds[id(func)] = mode_kind(func)
            self._overloads.append(func)  # its id stays its own
        if kind is None:
            return func(*args, **kwargs)
        return handler(kind, args, kwargs)  # type: ignore[arg-type]

    def _leave_to(self, beneath: list[Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Leave an op to the subclass of its arguments, after the modes that lie beneath this one.

        torch asks no further mode once one declines. So the op starts anew with this mode as the lowest: what
        the subclass runs within is seen then. Where torch's own modes are on, which are always the lowest, all
        of it is theirs: they trace.
        """
        if not beneath:
            return NotImplemented
        if any(getattr(mode, "_mode_key", None) is not None for mode in beneath):
            return func(*args, **kwargs)
        for _ in beneath:
            _pop_mode()
        try:
            for mode in (self, *beneath):
                _push_mode(mode)
            return func(*args, **kwargs)
        finally:
            while _get_current_dispatch_mode() is not None:
                _pop_mode()
            for mode in beneath:
                _push_mode(mode)


_disabled: Callable[..., Any] | None = None


def _unseen_by_dynamo(function: Callable[..., Any], *args: Any) -> Any:
    global _disabled  # noqa: PLW0603  # no functools.cache, of which dynamo warns
    if _disabled is None:
        import torch._dynamo

        _disabled = torch._dynamo.disable(lambda function, *args: function(*args))
    return _disabled(function, *args)


_known_to_dispatch: Final[weakref.WeakKeyDictionary[type, bool]] = weakref.WeakKeyDictionary()


def _dispatches_itself(kind: type) -> bool:
    known = _known_to_dispatch.get(kind)
    if known is None:
        from torch._subclasses.fake_tensor import FakeTensor

        plain = kind is torch.Tensor or kind is torch.nn.Parameter or issubclass(kind, FakeTensor)
        own = getattr(kind, "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__
        known = _known_to_dispatch[kind] = own and not plain
    return known
