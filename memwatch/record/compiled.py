"""Calls of compiled functions: dynamo must not see the dispatch key, and the report says that they ran.

A compiled function guards on the dispatch keys of its thread, so our key would make it compile again. Its
wrapper first switches dynamo's frame evaluation off, and in the end puts back what was there before; both
happen through two names of `torch._dynamo.eval_frame`, which are replaced while a block is open.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MODULE: Final = "torch._dynamo.eval_frame"
_WRAPPER: Final = "compile_wrapper"


class CompiledCalls:
    """Pause the interceptor while a compiled function runs in this thread, and count such calls."""

    def __init__(self, pause: Callable[[], bool], resume: Callable[[], None], ours: Iterable[Any]) -> None:
        self.count = 0
        self._pause = pause
        self._resume = resume
        self._ours = tuple(ours)  # functions that torch calls back, even where dynamo evaluates frames
        self._patched: list[tuple[Any, str, Any]] = []
        self._outermost: int | None = None  # id of the running frame of the wrapper
        self._prior: Any = None

    def start(self) -> None:
        """Begin to see compiled calls; dynamo is patched when it is there, or once `torch.compile` brings it."""
        if _MODULE in sys.modules:
            self._patch_dynamo()
        else:
            self._replace(torch, "compile", self._compile)

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        while self._patched:
            owner, name, original = self._patched.pop()
            setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._patched.append((owner, name, original))
        replacement = make(original)
        if _MODULE in sys.modules:  # it runs while frames are evaluated by dynamo, which is not to compile it
            sys.modules[_MODULE].skip_code(replacement.__code__)
        setattr(owner, name, functools.wraps(original)(replacement))

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001  # it stands in for torch.compile
            compiled = original(*args, **kwargs)
            if len(self._patched) == 1 and _MODULE in sys.modules:
                self._patch_dynamo()
            return compiled

        return compile

    def _patch_dynamo(self) -> None:
        dynamo = sys.modules[_MODULE]
        for function in self._ours:
            dynamo.skip_code(function.__code__)
        self._replace(dynamo, "set_eval_frame", self._leaving)
        self._replace(dynamo, "_maybe_set_eval_frame", self._returning)

    def _leaving(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def set_eval_frame(callback: Any) -> Any:
            prior = original(callback)
            frame = sys._getframe(1)
            enters = callback is None and frame.f_code.co_name == _WRAPPER and self._outermost is None
            if enters and self._pause():
                self.count += 1
                self._outermost, self._prior = id(frame), prior
            return prior

        return set_eval_frame

    def _returning(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _maybe_set_eval_frame(callback: Any) -> Any:
            if self._outermost == id(sys._getframe(1)) and callback is self._prior:
                self._outermost = self._prior = None
                self._resume()
            return original(callback)

        return _maybe_set_eval_frame
