"""The places from which a Python process keeps objects alive, gc's blind spots included."""

from __future__ import annotations

import atexit
import contextvars
import signal
import sys
import threading
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.heap.frames import is_test_runner_code, read_locals, running_frames
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.heap.vertices import frame_vertex

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


class RootKind(Enum):
    """What keeps the objects of a root alive."""

    FRAME = "frame"
    MODULES = "modules"
    EXCEPTION = "exception"
    CONTEXT = "context"
    ATEXIT = "atexit"
    HANDLERS = "handlers"
    TORCH_STATE = "torch state"
    THREAD_LOCALS = "thread locals"
    CALLER = "caller"  # what the caller of a check holds


class Held(NamedTuple):
    """One object that a root holds.

    Attributes:
        edge: the reference from the root.
        value: the object.
        is_namespace: True if the value is the namespace of a frame: what it holds are globals.
    """

    edge: Edge
    value: object
    is_namespace: bool = False


@dataclass(slots=True, eq=False)
class Root:
    """One place that keeps objects alive by itself.

    Attributes:
        kind: what it is.
        entries: the objects it holds; clear it soon.
        runner: True for pytest, unittest and other test runners, whose references are discounted.
        frame_id: ``id`` of the frame, else 0.
    """

    kind: RootKind
    entries: list[Held] = field(default_factory=list)
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
    owner = frame_vertex(frame, "" if thread == threading.main_thread().name else thread)
    root = Root(RootKind.FRAME, runner=is_test_runner_code(code.co_filename), frame_id=id(frame))
    at_module_level = frame.f_code.co_name == "<module>"
    values = {} if at_module_level else read_locals(frame)
    arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    names = code.co_varnames[:arguments]
    for name, value in values.items():
        kind = EdgeKind.ARGUMENT if name in names else EdgeKind.LOCAL
        root.entries.append(Held(Edge(kind, name, owner=owner, file=owner.file, line=owner.line), value))
    if id(frame.f_globals) not in modules:  # exec, runpy: a namespace that no module of sys.modules shows
        edge = Edge(EdgeKind.GLOBAL, owner=Vertex(VertexKind.NAMESPACE, file=code.co_filename))
        root.entries.append(Held(edge, frame.f_globals, is_namespace=True))
    return root


def is_runner_module(name: str) -> bool:
    """Say whether a module belongs to a test runner."""
    return name.partition(".")[0] in _TEST_RUNNERS


def is_own_module(name: str) -> bool:
    """Say whether a module belongs to memwatch."""
    return name.partition(".")[0] == "memwatch"


def _module_roots() -> Iterator[Root]:
    ours, runners = Root(RootKind.MODULES), Root(RootKind.MODULES, runner=True)
    for name, module in list(sys.modules.items()):
        if isinstance(name, str) and _is_module(module) and not is_own_module(name):
            root = runners if is_runner_module(name) else ours
            root.entries.append(Held(Edge(EdgeKind.MODULE, name), module))
    yield ours
    yield runners


def _root(kind: RootKind, held: Iterable[tuple[EdgeKind, str | None, object]]) -> Root:
    return Root(kind, [Held(Edge(edge_kind, name), value) for edge_kind, name, value in held])


def _exceptions() -> Root:
    handled: list[Any] = list(sys._current_exceptions().values())
    errors = [item[1] if type(item) is tuple else item for item in handled]  # tuples up to Python 3.11
    return _root(
        RootKind.EXCEPTION,
        ((EdgeKind.EXCEPTION_HANDLED, None, error) for error in errors if error is not None),
    )


def _context() -> Root:
    variables = contextvars.copy_context().items()
    return _root(
        RootKind.CONTEXT,
        ((EdgeKind.CONTEXT_VARIABLE, variable.name, value) for variable, value in variables),
    )


class _Listener:
    """Compares unequal to everything and remembers what it was compared with."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def __eq__(self, other: object) -> bool:
        self.seen.append(other)
        return False

    __hash__ = object.__hash__


def _atexit() -> Root:
    # The callbacks live in C only. atexit.unregister compares each with its argument, which is how we see them.
    listener = _Listener()
    if atexit._ncallbacks():
        atexit.unregister(listener)  # type: ignore[arg-type]
    return _root(RootKind.ATEXIT, ((EdgeKind.ATEXIT_CALLBACK, None, callback) for callback in listener.seen))


def _handlers() -> Root:
    """List the functions that the interpreter itself calls."""
    entries: list[tuple[EdgeKind, str | None, object]] = [
        (EdgeKind.SIGNAL_HANDLER, number.name, signal.getsignal(number)) for number in signal.Signals
    ]
    entries += [(EdgeKind.TRACE_FUNCTION, None, sys.gettrace())]
    entries += [(EdgeKind.PROFILE_FUNCTION, None, sys.getprofile())]
    entries += [(EdgeKind.ASYNC_GENERATOR_HOOK, None, hook) for hook in sys.get_asyncgen_hooks()]
    return _root(RootKind.HANDLERS, (entry for entry in entries if callable(entry[2])))


def _thread_locals(objects: Iterable[object]) -> Root:
    found: list[tuple[EdgeKind, str | None, object]] = []
    for local in objects:
        cls = type(local)
        # a subclass with an __init__ would run it on first touch in this thread
        if cls is threading.local or (threading.local in mro_of(cls) and "__init__" not in type_dict(cls)):
            values: Any = threading.local.__getattribute__(local, "__dict__")  # type: ignore[arg-type]
            found += [(EdgeKind.THREAD_LOCAL, name, value) for name, value in values.items()]
    return _root(RootKind.THREAD_LOCALS, found)


def _torch_state() -> Root:
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    found: list[tuple[EdgeKind, str | None, object]] = [
        (EdgeKind.DISPATCH_MODE, None, mode) for mode in _get_current_dispatch_mode_stack()
    ]
    for position in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(position)
        found.append((EdgeKind.FUNCTION_MODE, None, mode))
    hooks: Iterable[object] | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    found += [(EdgeKind.DEFAULT_SAVED_HOOK, None, hook) for hook in hooks or ()]
    return _root(RootKind.TORCH_STATE, found)
