"""Two ways to see every op below autograd, behind one interface: a dispatch mode and a dispatch key.

The mode works everywhere but is seen: ATen takes out-of-place backward formulas while any mode is on, and
dynamo gives up on compiled functions. The key is seen by nobody. torch 2.13 has a functionality key below
autograd that nothing uses (`Fake`); a kernel on it is called for every op while the thread includes it.
One kernel per overload, not one fallback for all: torch looks a Python kernel up by overload while a mode
is on but switched off (as FakeTensorMode does within), and a fallback is not found there.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from memwatch.record.ops import OpKind
from memwatch.record.stand_in import StandIns

_frames_callback: Final[Callable[[], Any]] = torch._C._dynamo.eval_frame.get_eval_frame_callback

Handler = Callable[[OpKind, tuple[Any, ...], dict[str, Any]], Any]

_UNSEEN: Final = frozenset({"detach", "lift_fresh", "alias"})
"""Ops that make no bytes; `detach` must stay unseen below autograd: `nn.Parameter` needs its output unwrapped."""


_PATIENCE_CALLS: Final = 10_000_000
"""For how many calls of Python a mode that was stopped within an op waits for the op's return."""


class Interceptor(Protocol):
    """Calls the handler for every op of this thread between `start` and `stop`."""

    name: str
    callbacks: tuple[Callable[..., Any], ...]
    """Functions that torch calls while dynamo may be evaluating frames."""

    def start(self, handler: Handler) -> None:
        """Begin to call `handler` for every op."""

    def stop(self) -> None:
        """Leave torch as it was before `start`."""

    def pause(self) -> bool:
        """Be out of the way of compiled code in this thread until `resume`; tell whether it was on."""

    def resume(self) -> None:
        """Be on again."""


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


def mode_kind(func: Any) -> OpKind | None:
    """Give the kind of an op that a dispatch mode sees; None for one that is not recorded."""
    if (
        not isinstance(func, torch._ops.OpOverload)
        or func.is_view
        or func._opname in _UNSEEN
        or func.namespace == "profiler"
    ):
        return None
    return OpKind(func)


class KeyInterceptor:
    """Intercept with kernels on the unused dispatch key `Fake`."""

    name = "key"
    callbacks: tuple[Callable[..., Any], ...] = ()
    _handler: Handler | None = None
    _kernels: tuple[Any, dict[str, Any]] | None = None
    _on = False
    _stand_ins: StandIns | None = None

    def start(self, handler: Handler) -> None:
        """Include the key in this thread."""
        self.put_kernels(None)
        KeyInterceptor._handler = handler
        self.include(on=True)

    def stop(self) -> None:
        """Exclude the key again."""
        self.include(on=False)
        KeyInterceptor._handler = None

    def include(self, *, on: bool) -> None:
        """Have the key in this thread or not."""
        self._on = on
        if self._stand_ins is None:
            self._stand_ins = StandIns()
        if on:
            self._stand_ins.put(torch._ops, "key_extractor", self._keys_of)
        else:
            self._stand_ins.take_off()
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, on)

    def _keys_of(self, key_extractor: Callable[..., Any], tensors: Any, mask: Any) -> Any:
        """Hide the key from operators that torch dispatches in Python, which find no kernel of theirs on it."""
        return key_extractor(tensors, mask.remove(KEY))

    def pause(self) -> bool:
        """Exclude the key in this thread, if it was included."""
        included: bool = torch._C._dispatch_tls_is_dispatch_key_included(KEY)
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)
        return included

    def resume(self) -> None:
        """Include the key in this thread again."""
        if self._on:
            torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)

    @staticmethod
    @functools.cache
    def works() -> bool:
        """Probe once per process: register the kernels, run an op, see it, and compare its result."""
        if KEY is None:
            return False
        seen: set[str] = set()

        def see(kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            seen.add(kind.name)
            return kind.call(*args, **kwargs)

        interceptor = KeyInterceptor()
        try:
            total = probe(functools.partial(interceptor.start, see), interceptor.stop)
        except (RuntimeError, AttributeError, TypeError):
            return False
        return total == PROBED and {"aten.mul.Tensor", "aten.sum.default"} <= seen

    @staticmethod
    def put_kernels(native: Any) -> None:
        """Have the kernels of Python on the key, or the one of the native library; views pass both by."""
        known = KeyInterceptor._kernels
        if known is not None and known[0] is native:
            return
        if known is not None:
            _take_off(*known)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells of every kernel that takes another's place
            libraries = _libraries(python=native is None)
            if native is not None:
                native.put_kernel()
            else:
                later = torch.library.Library("_", "IMPL")  # for the ops that are defined later
                later.fallback(_later_kernel, "Fake", with_keyset=True)
                libraries["_"] = later
        KeyInterceptor._kernels = native, libraries


def _libraries(*, python: bool) -> dict[str, Any]:
    """Let views pass the key by, and put Python kernels there for all other ops if asked."""
    libraries: dict[str, Any] = {}
    for space, name, overload in _overloads():
        if space not in libraries:
            libraries[space] = torch._C._dispatch_library("IMPL", space, "", __file__, 0)
        if overload.is_view or overload._opname in _UNSEEN or space == "profiler":
            libraries[space].impl(name, "Fake", torch.library.fallthrough_kernel, False)
        elif python and space == "aten":
            libraries[space].impl(name, "Fake", functools.partial(_kernel, OpKind(overload)), False)
        elif python:
            libraries[space].impl(name, "Fake", functools.partial(_careful_kernel, OpKind(overload)), True)
    return libraries


def _take_off(native: Any, libraries: dict[str, Any]) -> None:
    if native is not None:
        native.take_kernel()
    elif "_" in libraries:
        libraries["_"]._destroy()
    libraries.clear()


PROBED: Final = 6


def probe(start: Callable[[], None], stop: Callable[[], None]) -> float:
    """Run ops while an interceptor is on, and give their result, which is `PROBED`."""
    with _unseen_by_the_program():
        start()
        try:
            total = (torch.ones(3, requires_grad=True) * 2).sum()
            total.backward()
        finally:
            stop()
        return total.item()


@contextlib.contextmanager
def _unseen_by_the_program() -> Iterator[None]:
    """Run ops of memwatch's own below every mode that the program has on, with autograd as usual."""
    below = (torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch())
    with below[0], below[1], torch.inference_mode(False), torch.enable_grad():
        yield


def _kernel(kind: OpKind, *args: Any, **kwargs: Any) -> Any:
    try:
        _set_excluded(KEY, True)  # within: a signal's handler may raise as it returns
        handler = KeyInterceptor._handler
        return kind.call(*args, **kwargs) if handler is None else handler(kind, args, kwargs)
    finally:
        _set_excluded(KEY, False)


def _careful_kernel(kind: OpKind, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """Go on below our key: kernels above it that Python wrote would run again, and count versions twice."""
    return _kernel(
        kind.calling(functools.partial(kind.overload.redispatch, keyset & _BELOW)), *args, **kwargs
    )


_later_kinds: Final[dict[Any, OpKind]] = {}


def _later_kernel(keyset: Any, overload: Any, *args: Any, **kwargs: Any) -> Any:
    kind = _later_kinds.get(overload)
    if kind is None:
        kind = _later_kinds[overload] = OpKind(overload)
    return _careful_kernel(kind, keyset, *args, **kwargs)


def _overloads() -> Iterator[tuple[str, str, Any]]:
    """Give every defined overload: its namespace, its name within, itself."""
    for qualified in torch._C._dispatch_get_all_op_names():
        space, name = qualified.split("::")
        if space in {"prim", "_"}:
            continue
        base, _, overload = name.partition(".")
        try:
            yield space, name, getattr(getattr(getattr(torch.ops, space), base), overload or "default")
        except (
            AttributeError,
            RuntimeError,
        ):  # some ops have no Python binding; nobody can call them from here
            continue


def _free_key() -> Any:
    try:
        return torch._C._dispatch_key_parse("Fake")
    except (RuntimeError, AttributeError):
        return None


KEY: Final = _free_key()
_BELOW: Final[Any] = None if KEY is None else torch._C._dispatch_keyset_full_after(KEY)
_set_excluded: Final[Any] = torch._C._dispatch_tls_set_dispatch_key_excluded
