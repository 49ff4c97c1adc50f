"""The places from which a Python process keeps objects alive, gc's blind spots included."""

from __future__ import annotations

import atexit
import contextvars
import signal
import sys
import threading
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.frames import is_test_runner_code, read_locals, running_frames
from memwatch.heap.tensors import mro_of, type_dict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

_TEST_RUNNERS: Final = (
    "_pytest",
    "pytest",
    "pluggy",
    "pytest_memwatch",
    "xdist",
    "execnet",
    "pytest_asyncio",
)


@dataclass(slots=True, eq=False)
class Root:
    """One place that keeps objects alive by itself.

    Attributes:
        kind: "frame", "modules", "exception", "context", "atexit", "handlers", "thread local" or "torch state".
        name: what a person calls it, such as ``train (train.py:41)``.
        entries: the objects it holds, each with the words for the reference.
        file: source file of a frame, else None.
        line: current line of a frame, else None.
        runner: True for pytest, unittest and other test runners, whose references are discounted.
        frame_id: ``id`` of the frame, else 0.
    """

    kind: str
    name: str
    entries: list[tuple[str, object]] = field(default_factory=list)
    file: str | None = None
    line: int | None = None
    runner: bool = False
    frame_id: int = 0


def find_roots(objects: Iterable[object] = ()) -> list[Root]:
    """Find every root of the process.

    Args:
        objects: the objects of the heap, to find thread locals among them.

    Returns:
        Roots, running calls first; drop them soon, they hold what they list.
    """
    roots = [*frame_roots(), *_module_roots()]
    roots += [_exceptions(), _context(), _atexit(), _handlers(), _torch_state(), _thread_locals(objects)]
    return [root for root in roots if root.entries]


def frame_roots() -> list[Root]:
    """List the running calls of every thread, innermost first; drop the result soon."""
    modules = {id(module.__dict__) for module in list(sys.modules.values()) if type(module) is ModuleType}
    return [_frame_root(frame, thread, modules) for frame, thread in running_frames()]


def _is_module(obj: object) -> bool:
    return ModuleType in mro_of(type(obj))


def _frame_root(frame: FrameType, thread: str, modules: set[int]) -> Root:
    code = frame.f_code
    where = "" if thread == threading.main_thread().name else f" in thread {thread!r}"
    root = Root(
        "frame",
        f"{code.co_name}{where}",
        file=code.co_filename,
        line=frame.f_lineno,
        runner=is_test_runner_code(code.co_filename),
        frame_id=id(frame),
    )
    at_module_level = frame.f_code.co_name == "<module>"
    values = {} if at_module_level else read_locals(frame)
    arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    names = code.co_varnames[:arguments]
    root.entries = [
        (f"{'argument' if name in names else 'local'} `{name}`", value) for name, value in values.items()
    ]
    if id(frame.f_globals) not in modules:  # exec, runpy: a namespace that no module of sys.modules shows
        root.entries.append(("globals", frame.f_globals))
    return root


def is_runner_module(name: str) -> bool:
    """Say whether a module belongs to a test runner."""
    return name.partition(".")[0] in _TEST_RUNNERS


def is_own_module(name: str) -> bool:
    """Say whether a module belongs to memwatch."""
    return name.partition(".")[0] == "memwatch"


def _module_roots() -> Iterator[Root]:
    ours, runners = Root("modules", "modules"), Root("modules", "modules of the test runner", runner=True)
    for name, module in list(sys.modules.items()):
        if isinstance(name, str) and _is_module(module) and not is_own_module(name):
            (runners if is_runner_module(name) else ours).entries.append((f"module {name}", module))
    yield ours
    yield runners


def _exceptions() -> Root:
    handled: list[Any] = list(sys._current_exceptions().values())
    errors = [item[1] if type(item) is tuple else item for item in handled]  # tuples up to Python 3.11
    entries: list[tuple[str, object]] = [
        ("exception being handled", error) for error in errors if error is not None
    ]
    return Root("exception", "exceptions being handled", entries)


def _context() -> Root:
    entries = [
        (f"ContextVar {variable.name!r}", value) for variable, value in contextvars.copy_context().items()
    ]
    return Root("context", "the current context", entries)


class _Listener:
    """Compares unequal to everything and remembers what it was compared with."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def __eq__(self, other: object) -> bool:
        self.seen.append(other)
        return False

    __hash__ = object.__hash__


def _atexit() -> Root:
    # The callbacks live in C only. atexit.unregister compares each with its argument, which is how we see
    # them.
    listener = _Listener()
    if atexit._ncallbacks():
        atexit.unregister(listener)  # type: ignore[arg-type]
    return Root("atexit", "atexit", [("atexit callback", callback) for callback in listener.seen])


def _handlers() -> Root:
    """List the functions that the interpreter itself calls."""
    entries: list[tuple[str, object]] = [
        (f"handler of {number.name}", signal.getsignal(number)) for number in signal.Signals
    ]
    entries += [("trace function (sys.settrace)", sys.gettrace())]
    entries += [("profile function (sys.setprofile)", sys.getprofile())]
    entries += [
        ("asynchronous generator hook (sys.set_asyncgen_hooks)", hook) for hook in sys.get_asyncgen_hooks()
    ]
    return Root("handlers", "handlers", [entry for entry in entries if callable(entry[1])])


def _thread_locals(objects: Iterable[object]) -> Root:
    root = Root("thread local", "thread locals of this thread")
    for local in objects:
        cls = type(local)
        # a subclass with an __init__ would run it on first touch in this thread
        if cls is threading.local or (threading.local in mro_of(cls) and "__init__" not in type_dict(cls)):
            values: Any = threading.local.__getattribute__(local, "__dict__")  # type: ignore[arg-type]
            root.entries += [(f"thread local attribute .{name}", value) for name, value in values.items()]
    return root


def _torch_state() -> Root:
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    entries: list[tuple[str, object]] = [
        ("active dispatch mode", mode) for mode in _get_current_dispatch_mode_stack()
    ]
    for position in range(torch._C._len_torch_function_stack()):
        entries.append(("active function mode", torch._C._get_function_stack_at(position)))  # noqa: PERF401
    hooks: Iterable[object] | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    entries += [("active saved-tensor hook", hook) for hook in hooks or ()]
    return Root("torch state", "torch's thread state", entries)
