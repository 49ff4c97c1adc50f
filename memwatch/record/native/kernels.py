"""The compiled kernel on the free dispatch key: no tensor becomes a Python object for it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from memwatch.record.interception.interceptor import passes
from memwatch.record.interception.key import KeyInterceptor, put_kernels

if TYPE_CHECKING:
    from memwatch.record.interception.interceptor import Handler
    from memwatch.record.interception.key import Libraries
    from memwatch.record.native.extension import Extension, OpRunner


class NativeKernels:
    """One boxed kernel for all overloads; views pass it by. See `memwatch.record.interception.key`."""

    def __init__(self, extension: Extension) -> None:
        self._extension = extension
        self._libraries: Libraries = {}
        self.work = functools.cache(self._probe)

    def put(self) -> None:
        """Register the kernel."""
        self._libraries = put_kernels(None)
        self._extension.put_kernel()

    def take_off(self) -> None:
        """Take the kernel off."""
        self._extension.take_kernel()
        self._libraries.clear()

    def _probe(self) -> bool:
        """Return True if ops pass the kernel and have the right result."""
        passed = self._extension.passed()
        interceptor = KeyInterceptor(self, _Nobody())
        works = passes(functools.partial(interceptor.start, _unused), interceptor.stop)
        return works and self._extension.passed() > passed


class NativeTarget:
    """Have the kernel call a recorder in C++: no handler of Python's is needed."""

    def __init__(self, recorder: OpRunner) -> None:
        self._recorder = recorder

    def begin(self, handler: Handler) -> None:
        """Have the kernel call the recorder."""
        self._recorder.intercept()

    def end(self) -> None:
        """Have the kernel call nobody."""
        self._recorder.release()


class _Nobody:
    """Have the kernel call nobody, and count the ops that pass."""

    def begin(self, handler: Handler) -> None:
        pass

    def end(self) -> None:
        pass


def _unused(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise AssertionError("the compiled kernel calls no handler of Python's")
