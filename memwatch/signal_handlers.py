"""Exceptions of the program's signal handlers: recognise them, and never swallow them.

Python runs a signal handler in the main thread between two bytecodes of the running code, which may be memwatch's.
Then an exception of the handler looks like an error of memwatch. memwatch notes its own errors and drops them. But it
must pass a handler's exception on to the program. So each `except` around code that runs within the program's calls
first hands the error to `pass_on`.

Nothing here runs code of the program. To read an attribute, this module calls the descriptor of the built-in type and
never the object's own `__getattribute__`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal.getsignal` takes the `repr` of a handler
import contextlib
import ctypes
import functools
import inspect
import signal
import sys
from types import FrameType, FunctionType, MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

_MRO: Final = type.__dict__["__mro__"].__get__
_TYPE_DICT: Final = type.__dict__["__dict__"].__get__
_TRACEBACK: Final = BaseException.__dict__["__traceback__"].__get__
_PARTIAL_FUNC: Final = functools.partial.__dict__["func"].__get__
_NUMBERS: Final = sorted(map(int, signal.valid_signals()))
_FUNCTION_FLAGS: Final = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
_DELETED: Final = object()
_LIBRARIES: Final = frozenset(
    {"builtins", "memwatch", "numpy", "pandas", "psutil", "pytest_memwatch", "torch"}
    | sys.stdlib_module_names
)
"""The packages whose C code memwatch calls: an exception of one of their classes may be memwatch's own error."""
_DEEPEST: Final = 8
"""Wrappers, such as `functools.partial`, that are followed to the function of a handler. A guess."""


def raised_by_handler(error: BaseException) -> bool:
    """Return True for an exception that a signal handler of the program raised while code of memwatch ran.

    An exception that another thread sent with `PyThreadState_SetAsyncExc` also counts, if the program defined its
    class.
    """
    trace: TracebackType | None = _TRACEBACK(error)
    code = None
    while trace is not None:
        frame = trace.tb_frame
        code = frame.f_code
        if code is _RUN_CODE or not (code.co_filename.startswith(_FOLDER) or not _is_call_of_handler(frame)):
            return True
        trace = trace.tb_next
    # another thread's exception has no frame: the innermost one is where it arrived
    return code is not None and code.co_filename.startswith(_FOLDER) and _is_of_program(type(error))


def pass_on(error: BaseException) -> None:
    """Raise the exception again if a signal handler raised it. Call this first in every `except` that drops errors."""
    if raised_by_handler(error):
        raise error


class suppress(contextlib.suppress):  # noqa: N801  # as the one of contextlib
    """Drop errors of some classes like `contextlib.suppress`, but pass on the errors of signal handlers."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Return True for an error to drop."""
        if error is None or not super().__exit__(kind, error, trace):
            return False
        return not raised_by_handler(error)


def run_handler(
    handler: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None
) -> None:
    """Run a delayed handler. An exception whose traceback contains this function comes from the program."""
    handler(number, frame)


def python_handlers() -> dict[int, Any]:
    """Return the installed handlers that are Python callables, by the number of their signal."""
    found = {}
    for number in _NUMBERS:
        handler = _signal.getsignal(number)
        if handler is not None and type(handler) is not int and type(handler) is not signal.Handlers:
            found[number] = handler
    return found


_FOLDER: Final = run_handler.__code__.co_filename.removesuffix("signal_handlers.py")
_RUN_CODE: Final = run_handler.__code__


def _is_call_of_handler(frame: FrameType) -> bool:
    """Return True if a frame got a signal number and a frame, or if it runs the code of an installed handler."""
    code = frame.f_code
    if code.co_flags & _FUNCTION_FLAGS == _FUNCTION_FLAGS:
        before: object = None
        for value in _positional_values(frame):
            if (type(value) is FrameType or value is _DELETED) and _is_signal(before):
                return True
            before = value
    return any(code is each for each in _installed_codes())


def _positional_values(frame: FrameType) -> Iterator[object]:
    """Yield the positional arguments of a call, and the items of each argument that is a tuple, such as `*args`."""
    code, values = frame.f_code, frame.f_locals
    count = code.co_argcount
    names = list(code.co_varnames[:count])
    if code.co_flags & inspect.CO_VARARGS:
        names.append(code.co_varnames[count + code.co_kwonlyargcount])
    for name in names:
        value = values.get(name, _DELETED)
        if type(value) is tuple:
            yield from value
        else:
            yield value


def _is_signal(value: object) -> bool:
    cls = type(value)
    return (
        cls is not bool
        and any(base is int for base in _MRO(cls))
        and int.__index__(cast("int", value)) in _NUMBERS
    )


def _installed_codes() -> list[CodeType]:
    codes = (_code_of(handler) for handler in python_handlers().values())
    return [code for code in codes if code is not None]


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of the function that a handler is, wraps or is called by."""
    for _ in range(_DEEPEST):
        bases = _MRO(type(handler))
        if type(handler) is FunctionType:
            return handler.__code__
        if type(handler) is MethodType:
            handler = handler.__func__
        elif any(base is functools.partial for base in bases):
            handler = _PARTIAL_FUNC(handler)
        elif any(base is staticmethod or base is classmethod for base in bases):
            handler = _unwrapped(handler)
        else:
            handler = next(
                (_TYPE_DICT(base)["__call__"] for base in bases if "__call__" in _TYPE_DICT(base)), None
            )
    return None


def _unwrapped(method: Any) -> Any:
    kind = staticmethod if any(base is staticmethod for base in _MRO(type(method))) else classmethod
    return kind.__dict__["__func__"].__get__(method)


def _is_of_program(cls: type) -> bool:
    module = _TYPE_DICT(cls).get("__module__")
    return type(module) is str and module.partition(".")[0] not in _LIBRARIES


class _Late:
    """An object whose truth test makes a call. While code of memwatch runs, the call is put off."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __bool__(self) -> bool:
        if _is_in_own_code(sys._getframe(1)):
            _add_pending_call(_is_true, self)
        else:
            _late.remove(self)
            self._call()
        return False


def _is_in_own_code(frame: FrameType | None) -> bool:
    """Return True if memwatch or `contextlib` is the innermost call, or if a callback runs that loses exceptions."""
    if frame is not None and frame.f_code.co_filename.startswith((_FOLDER, contextlib.__file__)):
        return True
    while frame is not None:
        if frame.f_code is _CALLBACK_CODE:
            return True
        frame = frame.f_back
    return False


_late: Final[list[_Late]] = []
_Function = TypeVar("_Function", bound="Callable[..., None]")


def call_later(call: Callable[[], None]) -> None:
    """Call a function in the main thread, before the program's next bytecode. Its exception is raised in the program.

    Only a pending call (`Py_AddPendingCall`) can raise an exception at the point where the main thread is. It takes a C
    function with one argument. That is `PyObject_IsTrue`, called on an object of ours whose `__bool__` makes the call.
    """
    late = _Late(call)
    _late.append(late)  # a pending call does not count as a reference
    _add_pending_call(_is_true, late)


_add_pending_call: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object)(
    ("Py_AddPendingCall", ctypes.pythonapi)
)
_is_true: Final = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)


def _raise(error: BaseException) -> None:
    raise error


def raises_later(function: _Function) -> _Function:
    """Decorate a callback of a weak reference or of gc: raise its exceptions in the main thread later.

    Without this, Python would print the exception and continue.
    """

    @functools.wraps(function)
    def callback(*args: Any) -> None:
        try:
            function(*args)
        except BaseException as error:
            call_later(functools.partial(_raise, error))

    return cast("_Function", callback)


_CALLBACK_CODE: Final = raises_later(lambda: None).__code__
