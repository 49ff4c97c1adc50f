"""The native recorder as the session knows it: its rows, and what C++ leaves to Python."""

from __future__ import annotations

import functools
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from memwatch.capture.schema import NONE
from memwatch.record.interception.key import KEY, KeyInterceptor
from memwatch.record.interception.kinds import mode_kind
from memwatch.record.interception.mode import ModeInterceptor
from memwatch.record.interception.probe import PROBED, probe
from memwatch.record.python.ops import OpRecorder
from memwatch.record.tables.storages import BASELINE, address_of, plain_parts

if TYPE_CHECKING:
    from memwatch.record.context import Context
    from memwatch.record.native.stacks import NativeStacks
    from memwatch.record.native.storages import NativeStorages
    from memwatch.record.tables.strings import Strings


class NativeOpRecorder(OpRecorder):
    """Record ops in C++; look into wrappers, sparse and other tensors of parts here."""

    def __init__(
        self, storages: NativeStorages, stacks: NativeStacks, context: Context, strings: Strings,
        ops_started: list[int], *, library: Any,
    ) -> None:  # fmt: skip
        super().__init__(storages, stacks, context, strings, ops_started, rows=library.Rows)
        self.native: Final = library.Recorder(
            self, storages.native, stacks.native, context, strings, ops_started
        )
        self.run = self.native.run  # type: ignore[method-assign]  # the twin

    def flush_at(self, op: int, at: int) -> None:
        """Call `on_flush` after an op of that number, or that ended later than `at` ticks."""
        self.native.flush_at(op, at)

    def close(self) -> None:
        """Let C++ go of the Python objects that it holds."""
        self.native.close()

    def seen(self, tensor: Tensor) -> list[tuple[int, int]]:
        """Give the storages that hold the bytes of an argument: their numbers and addresses."""
        found = []
        with torch._C.DisableTorchFunction():
            for part in plain_parts(tensor):
                number = self._storages.number_of(part, NONE, BASELINE)
                if number != NONE:
                    found.append((number, address_of(part)))
        return found

    def made(self, op: int, result: Tensor, given: list[int]) -> None:
        """Note the storages of a result; `given` holds the addresses of those of the arguments."""
        with torch._C.DisableTorchFunction():
            self._made(op, result, given)

    def resized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what an op that may resize its arguments did."""
        with torch._C.DisableTorchFunction():
            self._resized(args, kwargs)


class NativeKeyInterceptor(KeyInterceptor):
    """Intercept with a compiled kernel on the dispatch key: no tensor becomes a Python object for it."""

    @staticmethod
    @functools.cache
    def works_with(library: Any) -> bool:
        """Probe once per process: put the kernel on the key, run ops, see them pass, and compare the result."""
        if KEY is None:
            return False
        passed = library.passed()
        key = KeyInterceptor()
        try:
            KeyInterceptor.put_kernels(library)
            total = probe(functools.partial(key.include, on=True), functools.partial(key.include, on=False))
        except (RuntimeError, AttributeError, TypeError):
            return False
        return total == PROBED and library.passed() > passed

    def __init__(self, library: Any, recorder: NativeOpRecorder) -> None:
        self._library = library
        self._recorder = recorder

    def start(self, handler: Any) -> None:
        """Include the key in this thread; `handler` is the recorder's own `run`, which the kernel does not need."""
        self.put_kernels(self._library)
        self._recorder.native.intercept()
        self.include(on=True)

    def stop(self) -> None:
        """Exclude the key again."""
        self.include(on=False)
        self._recorder.native.release()


class NativeModeInterceptor(ModeInterceptor):
    """Intercept with a mode whose `__torch_dispatch__` is native: dynamo has no frame of it to look at."""

    def __init__(self, recorder: NativeOpRecorder) -> None:
        super().__init__()
        self._native = recorder.native

    def start(self, handler: Any) -> None:
        """Push the mode."""
        self._native.set_mode(mode_kind, super().__torch_dispatch__)
        # torch wants a method of the mode
        self.__dict__["__torch_dispatch__"] = MethodType(self._native.dispatch(), self)
        super().start(handler)

    def stop(self) -> None:
        """Take the mode off the stack, leaving those that the program pushed later."""
        super().stop()
        self.__dict__.pop("__torch_dispatch__", None)
