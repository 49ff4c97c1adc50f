"""Find the roots: the places that keep objects of a Python process alive, such as running calls and modules.

gc does not show all of them. A snapshot of the heap takes all roots at once, from `find_roots`. A bounded search takes
the roots of `call_roots`, `namespace_roots` and the functions after them, each when the search reaches it. The roots
that help a user most come first: the program's own calls, from the innermost outward. A root's references are described
only if the search finds a tensor behind them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import contextvars
import dis
import functools
import gc
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, field
from enum import Enum
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch._torch.autograd import top_saved_hooks
from memwatch._torch.modes import active_function_modes, mode_stack
from memwatch.heap.classes import derives, is_a
from memwatch.heap.frames import (
    is_own_code,
    is_test_runner_code,
    may_be_traced,
    names_of_threads,
    read_locals,
    running_frames,
)
from memwatch.heap.names import binding_line, line_in_source, type_name
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.heap.vertices import frame_vertex
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.own_code import CodeOwner, code_owner, is_override, owner_of_function

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from types import FrameType

    OfTypes = Callable[[Callable[[type], bool]], list[Any]]


LAST_EXCEPTION: Final = ("last_value", "last_exc", "last_traceback")
_CELL_OF_SUPER: Final = "__class__"
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
    """The kinds of roots."""

    FRAME = "frame"
    MODULES = "modules"
    NAMESPACE = "namespace"  # variables of one module
    EXCEPTION = "exception"
    CONTEXT = "context"
    ATEXIT = "atexit"
    HANDLERS = "handlers"
    TORCH_STATE = "torch state"
    THREAD_LOCALS = "thread locals"
    CALLER = "caller"  # the objects of a check's caller


class Held(NamedTuple):
    """One object that a root holds.

    `edge` describes it only when it is read, because a bounded search lists far more objects than it reports.

    Attributes:
        kind: how the root refers to it.
        name: name of the variable. It is None for the namespace of a frame, and for kinds without names.
        value: the object.
        owner: the call or module that holds it, with the line to edit. It is None if `kind` says enough.
        position: index of an argument, if it has only an index.
        body: for a global variable of a module that is still running, the code of the module.
    """

    kind: EdgeKind
    name: str | None
    value: object
    owner: Vertex | None = None
    position: int | None = None
    body: CodeType | None = None

    @property
    def edge(self) -> Edge:
        """The description of the reference, with the line to edit."""
        owner = self.owner
        if owner is None:
            return Edge(self.kind, self.name, self.position)
        line = owner.line
        if self.name is not None and line is not None:
            if self.body is not None:
                line = binding_line(self.body, self.name, line)
            elif self.kind is EdgeKind.GLOBAL and owner.kind is VertexKind.MODULE and owner.file:
                line = line_in_source(owner.file, self.name, line)
        return Edge(self.kind, self.name, self.position, owner=owner, file=owner.file, line=line)

    @property
    def is_namespace(self) -> bool:
        """Whether the value is the dictionary of a frame's global variables."""
        return self.kind is EdgeKind.GLOBAL and self.name is None


@dataclass(slots=True, eq=False)
class Root:
    """One place that keeps objects alive by itself.

    A report prefers the program's own variables to a root that `explains`. Such roots have these references:

    - The variables of a call of torch or Python. Users cannot edit them, but they show why a `del` frees nothing.
    - In a snapshot, the arguments of a call, because its caller has a name for the same object.
    - In a snapshot, the variable `__class__`, which Python makes for `super()`. The class has a name already.

    Attributes:
        kind: its kind.
        entries: the objects that it holds. Clear the list soon, because it keeps them alive.
        runner: True for the roots of pytest, unittest and other test runners. They cause no leaks.
        frame_id: the ``id`` of the frame; 0 for other kinds.
        explains: True for the references above.
        thread_id: the identifier of the thread that runs the frame; 0 for the main thread and for other kinds.
        work: the outermost call of that thread that is not Python's own code.
    """

    kind: RootKind
    entries: list[Held] = field(default_factory=list)
    runner: bool = False
    frame_id: int = 0
    explains: bool = False
    thread_id: int = 0
    work: Vertex | None = None


def find_roots(of_types: OfTypes = lambda wanted: []) -> list[Root]:
    """Find every root of the process, except for :func:`callbacks_at_exit`.

    Args:
        of_types: returns the objects of the heap whose class is wanted; none by default.

    Returns:
        Roots, running calls first. Drop them soon, because they hold the listed objects.
    """
    roots = [*frame_roots(), *_module_roots()]
    roots += [
        _exceptions(),
        _context(),
        _handlers(),
        _torch_state(),
        _thread_locals(of_types),
    ]
    return [root for root in roots if root.entries]


def frame_roots() -> list[Root]:
    """Return the roots of the running calls of every thread, innermost first. Drop them soon, as in `find_roots`."""
    modules = {id(module.__dict__) for module in list(sys.modules.values()) if type(module) is ModuleType}
    calls = list(running_frames())
    main = threading.main_thread().ident
    work = {
        ident: frame_vertex(frame, thread)
        for frame, thread, ident in calls  # innermost first, so the outermost call stays
        if ident != main and code_owner(frame.f_code.co_filename) is not CodeOwner.PYTHON
    }
    roots = []
    for frame, thread, ident in calls:
        for root in _roots_of_call(frame, thread, modules):
            if ident != main:
                root.thread_id, root.work = ident, work.get(ident)
            roots.append(root)
    return roots


def ended_calls(errors: Iterable[BaseException]) -> list[Root]:
    """Return the roots of the calls that some errors ended, outermost first. Tracebacks keep their variables alive."""
    modules = {id(module.__dict__) for module in list(sys.modules.values()) if type(module) is ModuleType}
    frames = [frame for error in errors for frame, _ in traceback.walk_tb(error.__traceback__)]
    distinct = {id(frame): frame for frame in frames if not is_own_code(frame.f_code)}
    return [
        root for frame in distinct.values() for root in _roots_of_call(frame, "", modules) if root.entries
    ]


def _is_module(obj: object) -> bool:
    return is_a(obj, ModuleType)


def _roots_of_call(frame: FrameType, thread: str, modules: set[int]) -> Iterator[Root]:
    """Yield two roots of a call: its own variables, and the arguments that its caller may have a better name for.

    Args:
        frame: the call.
        thread: the name of its thread.
        modules: the `id` of each module's namespace.
    """
    code = frame.f_code
    in_main_thread = thread == threading.main_thread().name
    owner = frame_vertex(frame, "" if in_main_thread else thread)
    # The first calls of another thread are in `threading.py`, and no caller has better names for their arguments. So
    # these calls do not count as Python's. In all calls of other threads, an argument counts as a local variable.
    is_first = not in_main_thread and code.co_filename == threading.__file__
    is_librarys = code_owner(code.co_filename) in (CodeOwner.TORCH, CodeOwner.PYTHON)
    root = Root(
        RootKind.FRAME,
        runner=is_test_runner_code(code.co_filename),
        frame_id=id(frame),
        explains=is_librarys and not is_first,
    )
    arguments = Root(RootKind.FRAME, runner=root.runner, frame_id=id(frame), explains=True)
    given = arguments if in_main_thread else root
    at_module_level = code.co_name == "<module>"
    values = {} if at_module_level else read_locals(frame)  # a module's variables belong to its own root
    has_varargs, has_keywords = bool(code.co_flags & CO_VARARGS), bool(code.co_flags & CO_VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + has_varargs + has_keywords
    names = code.co_varnames[:count]
    assigned = _assigned_inside(code) if code.co_cellvars else frozenset()
    for name, value in values.items():
        is_argument = name in names
        kind = EdgeKind.ARGUMENT if is_argument else EdgeKind.LOCAL
        holder = given if is_argument and name not in assigned else root
        if name == _CELL_OF_SUPER and name in code.co_freevars:
            holder = arguments
        holder.entries.append(Held(kind, name, value, owner))
    # The globals of code that `exec` or `runpy` runs are not in a loaded module.
    if id(frame.f_globals) not in modules:
        namespace = Vertex(VertexKind.NAMESPACE, file=code.co_filename)
        root.entries.append(Held(EdgeKind.GLOBAL, None, frame.f_globals, namespace))
    yield root
    yield arguments


@functools.lru_cache(maxsize=256)  # functions; a guess
def _assigned_inside(code: CodeType) -> frozenset[str]:
    """Return the variables that inner functions assign. For an argument, the caller does not have the new value."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    stored = {
        each.argval for const in inner for each in dis.get_instructions(const) if each.opname == "STORE_DEREF"
    }
    return frozenset(stored).union(*map(_assigned_inside, inner))


@functools.cache
def is_runner_module(name: str) -> bool:
    """Return True if a module belongs to a test runner."""
    return name.partition(".")[0] in _TEST_RUNNERS


@functools.cache
def is_own_module(name: str) -> bool:
    """Return True if a module belongs to memwatch."""
    return name.partition(".")[0] == "memwatch"


@functools.cache
def is_tool_module(name: str) -> bool:
    """Return True if a module belongs to memwatch or to a test runner."""
    return is_own_module(name) or is_runner_module(name)


def is_tool_class(cls: type) -> bool:
    """Return True for a class of memwatch or of a test runner. Its objects are not the program's leaks."""
    module = type_dict(cls).get("__module__")
    return type(module) is str and is_tool_module(module)


def _module_roots() -> Iterator[Root]:
    ours, runners = Root(RootKind.MODULES), Root(RootKind.MODULES, runner=True)
    for name, module in list(sys.modules.items()):
        if type(name) is str and _is_module(module) and not is_own_module(name):
            root = runners if is_runner_module(name) else ours
            root.entries.append(Held(EdgeKind.MODULE, name, module))
    yield ours
    yield runners


def _root(kind: RootKind, held: Iterable[tuple[EdgeKind, str | None, object]]) -> Root:
    return Root(kind, [Held(edge_kind, name, value) for edge_kind, name, value in held])


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
    """An object that is unequal to every object and collects the objects that it is compared with."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def __eq__(self, other: object) -> bool:
        self.seen.append(other)
        return False

    __hash__ = object.__hash__


SHOWS_CALLBACKS_AT_EXIT: Final = sys.version_info >= (3, 14)
"""Whether atexit keeps its callbacks and their arguments in a Python list. Only C refers to it, but gc shows it."""


def _callback_of_ours() -> None:
    """Do nothing at exit. memwatch registers this function to find atexit's list, which must contain it."""


if SHOWS_CALLBACKS_AT_EXIT:
    atexit.register(_callback_of_ours)
_callbacks: Final[list[list[tuple[Any, ...]]]] = []
"""Has atexit's list of callbacks as its only item, once it is found. atexit keeps that list until the process ends."""


def _list_of_callbacks() -> list[tuple[Any, ...]]:
    """Return the list that atexit keeps. The result is empty if gc does not show the list, as after `gc.freeze`."""
    if not _callbacks:
        entries = [each for each in gc.get_referrers(_callback_of_ours) if _is_callback(each)]
        # Two more lists contain our entry: `entries` itself, and a search's list of all objects. The second also
        # contains objects other than callbacks.
        lists = [each for each in gc.get_referrers(*entries) if type(each) is list and each is not entries]
        _callbacks.extend(each for each in lists if all(map(_is_callback, each)))
    return _callbacks[0] if _callbacks else []


def _is_callback(entry: object) -> bool:
    """Return True for an entry of atexit's list: a tuple of a function, its arguments and its keyword arguments."""
    return type(entry) is tuple and len(entry) == 3 and type(entry[1]) is tuple


def callbacks_at_exit() -> Root:
    """Return the functions that run when the process exits, as a root.

    Up to Python 3.13 only C refers to these functions. ``atexit.unregister`` compares each function with its argument.
    Given an argument that collects the objects it is compared with, it shows them all. But it calls the function's own
    ``__eq__`` first. So, up to Python 3.13, call this only if no object :func:`may_answer`.
    """
    if SHOWS_CALLBACKS_AT_EXIT:
        parts = (part for entry in list(_list_of_callbacks()) for part in entry if part is not None)
        return _root(RootKind.ATEXIT, ((EdgeKind.ATEXIT_CALLBACK, None, part) for part in parts))
    listener = _Listener()
    atexit.unregister(listener)  # type: ignore[arg-type]
    return _root(RootKind.ATEXIT, ((EdgeKind.ATEXIT_CALLBACK, None, callback) for callback in listener.seen))


def count_hidden_callbacks_at_exit() -> int:
    """Return the number of registered callbacks with arguments that only C can see; 0 from Python 3.14 on."""
    return 0 if SHOWS_CALLBACKS_AT_EXIT else getattr(atexit, "_ncallbacks", int)()


def may_answer(cls: type) -> bool:
    """Return True if objects of a class may be atexit callbacks, and the program wrote the `__eq__` of the class."""
    namespaces = [type_dict(base) for base in mro_of(cls)]
    equal = next((names["__eq__"] for names in namespaces if "__eq__" in names), None)
    call = next((names["__call__"] for names in namespaces if "__call__" in names), None)
    return (
        type(equal) is FunctionType
        and owner_of_function(equal.__code__) is CodeOwner.PROGRAM
        # otherwise the objects cannot be called, or are classes, which are hardly ever callbacks
        and type(call) is FunctionType
        and not is_tool_class(cls)
    )


def _handlers() -> Root:
    """Return the functions that the interpreter itself calls, such as signal handlers.

    `signal.getsignal` would call the `__repr__` of a handler, which is the program's code. So this calls `_signal`.
    """
    entries: list[tuple[EdgeKind, str | None, object]] = [
        (EdgeKind.SIGNAL_HANDLER, number.name, _signal.getsignal(number)) for number in signal.Signals
    ]
    entries += [(EdgeKind.TRACE_FUNCTION, None, sys.gettrace())]
    entries += [(EdgeKind.PROFILE_FUNCTION, None, sys.getprofile())]
    entries += [(EdgeKind.ASYNC_GENERATOR_HOOK, None, hook) for hook in sys.get_asyncgen_hooks()]
    return _root(RootKind.HANDLERS, (entry for entry in entries if callable(entry[2])))


def _thread_locals(of_types: OfTypes) -> Root:
    found: list[tuple[EdgeKind, str | None, object]] = []
    for local in of_types(lambda cls: derives(cls, threading.local)):
        cls = type(local)
        # if a subclass has an `__init__`, the first access in this thread would run it
        if not _has_init(cls):
            values: Any = threading.local.__getattribute__(local, "__dict__")
            found += [(EdgeKind.THREAD_LOCAL, name, value) for name, value in dict.items(values)]
    return _root(RootKind.THREAD_LOCALS, found)


def _has_init(cls: type) -> bool:
    """Return True if a class or one of its bases except `object` defines `__init__`."""
    return any("__init__" in type_dict(base) for base in mro_of(cls) if base is not object)


def _torch_state() -> Root:
    found: list[tuple[EdgeKind, str | None, object]] = [
        (EdgeKind.DISPATCH_MODE, None, mode) for mode in mode_stack()
    ]
    found += [(EdgeKind.FUNCTION_MODE, None, mode) for mode in active_function_modes()]
    found += [(EdgeKind.DEFAULT_SAVED_HOOK, None, hook) for hook in top_saved_hooks() or ()]
    return _root(RootKind.TORCH_STATE, found)


_MAX_FRAMES: Final = 200
"""Running calls of one thread that are listed, innermost first. A guess."""
_MAX_KNOWN: Final = 1024
"""Descriptions that each cache of this module keeps. A guess."""
_LIBRARIES: Final = {CodeOwner.TORCH: "torch"}
_PYTHON: Final = "Python"
_BODY: Final = "<module>"
_ITERATED: Final = ".0"
"""The name that Python gives to the argument of a comprehension or a generator expression."""

_is_of_test_runner: Final = functools.cache(is_test_runner_code)


def running(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a call and its callers."""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def running_functions(frame: FrameType | None) -> set[tuple[str, str]]:
    """Return the functions that a call and its callers run, each as its file and its name."""
    return {(call.f_code.co_filename, _function_name(call.f_code)) for call in running(frame)}


def call_roots(frame: FrameType | None, spaces: dict[int, dict[str, Any]]) -> Iterator[Root]:
    """Yield the running calls, innermost first, then the exception being handled, then the calls of other threads.

    Args:
        frame: the innermost call.
        spaces: filled by this function, with the global variables of each running function of the program, by `id`.
    """
    yield from _calls(frame, "", spaces)
    handled = sys.exc_info()[1]
    if handled is not None:
        name = type_name(type(handled)).rpartition(".")[2]
        held = Held(EdgeKind.EXCEPTION_HANDLED, name, handled)
        yield Root(RootKind.EXCEPTION, [held])
    names = names_of_threads()
    others = sys._current_frames()
    del others[threading.get_ident()]  # this frame would refer to itself through its variable: a cycle
    for ident, innermost in others.items():
        if may_be_traced(innermost):  # reading its variables could unset them
            continue
        yield from _calls(innermost, names.get(ident, str(ident)), spaces)


def namespace_roots(spaces: dict[int, dict[str, Any]]) -> Iterator[Root]:
    """Yield a root for each module's namespace: its global variables."""
    for space in spaces.values():
        file = dict.get(space, "__file__")
        # line 1, unless the source has a line that binds the variable: see `Held.edge`
        yield _namespace(space, file if type(file) is str else "", 1)


def context_root() -> Root:
    """Return the values of the running task's context variables, as a root."""
    variables = contextvars.copy_context().items()
    return Root(
        RootKind.CONTEXT,
        [Held(EdgeKind.CONTEXT_VARIABLE, variable.name, value) for variable, value in variables],
    )


def last_exceptions_root() -> Root:
    """Return the last uncaught exception and its traceback, which Python keeps in `sys` for a debugger, as a root."""
    held = [
        Held(EdgeKind.LAST_EXCEPTION, name, value)
        for name in LAST_EXCEPTION
        if (value := getattr(sys, name, None)) is not None
    ]
    return Root(RootKind.EXCEPTION, held)


def _namespace(space: dict[str, Any], file: str, line: int, body: CodeType | None = None) -> Root:
    module = dict.get(space, "__name__")
    owner = Vertex(VertexKind.MODULE, module if type(module) is str else str(None), file, line)
    return Root(
        RootKind.NAMESPACE,
        [
            Held(EdgeKind.GLOBAL, name, value, owner, body=body)
            for name, value in list(dict.items(space))
            if type(name) is str and not name.startswith("__")
        ],
    )


def calls_with(frame: FrameType | None, names_in: Callable[[str, str], Collection[str]]) -> Iterator[Root]:
    """Yield the running calls that have wanted variables, each with only these. The program's calls come first.

    Calls of torch and Python are left out, because their variables are mostly arguments from their callers.

    Args:
        frame: the innermost call.
        names_in: returns the names of the wanted variables of a function, given its file and name.
    """
    found = []
    for call in running(frame):
        code = call.f_code
        names = names_in(code.co_filename, _function_name(code))
        # MEMWATCH: the condition below leaves the call out
        owner = owner_of_function(code) if names else CodeOwner.MEMWATCH
        if owner.calls_torch and code.co_name != _BODY:
            found.append((call, names, owner))
    for call, names, _ in sorted(found, key=lambda each: each[2] is not CodeOwner.PROGRAM):
        yield _call(call, "", explains=False, only=names)


def _calls(frame: FrameType | None, thread: str, spaces: dict[int, dict[str, Any]]) -> Iterator[Root]:
    """Yield the program's calls, innermost first, then the calls of torch and Python.

    A call of torch or Python that directly runs the program's code stays in its place, after the program's call. Its
    variables, such as the `args` of `nn.Module.__call__`, can be the reason that a `del` in the program's code frees
    nothing. All other calls of torch and Python come last, and so do overrides, such as `__torch_function__`.
    """
    inside: FrameType | None = None  # the program's or a package's call that the next call runs
    others, iterated = [], list[Held]()
    for call in running(frame):
        code = call.f_code
        owner = owner_of_function(code)
        if owner is CodeOwner.MEMWATCH or _is_of_test_runner(code.co_filename):
            continue
        if owner is CodeOwner.PROGRAM:
            spaces.setdefault(id(call.f_globals), call.f_globals)
        if is_override(code):  # torch calls it in place of an op, so its arguments are its caller's variables
            others.append(call)
            continue
        if code.co_name == _BODY and owner.calls_torch:
            yield _move_iterables(_namespace(call.f_globals, code.co_filename, call.f_lineno, code), iterated)
        elif owner.calls_torch or inside is not None:
            root = _call(call, thread, None if owner.calls_torch else inside, explains=not owner.calls_torch)
            yield _move_iterables(root, iterated)
        else:
            others.append(call)
        inside = call if owner.calls_torch else None
    for call in others:
        yield _call(call, thread, explains=True)


def _move_iterables(root: Root, iterated: list[Held]) -> Root:
    """Move the iterable of a running comprehension from its own call to the end of its caller's variables.

    Python names it `.0`. The caller often has a variable for the same object, which is the better name.

    Args:
        root: the call.
        iterated: the `.0` that was removed from the call inside this one. It is replaced by the `.0` of `root`.

    Returns:
        The call.
    """
    if iterated or _ITERATED in [held.name for held in root.entries]:
        ours = [held for held in root.entries if held.name == _ITERATED]
        root.entries[:] = [held for held in root.entries if held.name != _ITERATED] + iterated
        iterated[:] = ours
    return root


def _call(
    frame: FrameType, thread: str, inside: FrameType | None = None, *, explains: bool,
    only: Collection[str] | None = None,
) -> Root:  # fmt: skip
    """Return a call's variables as a root.

    Args:
        frame: the call.
        thread: name of its thread; empty for the thread that searches.
        inside: the call of the program or a package that this call of torch or Python runs. The report names its line.
        explains: see `Root`.
        only: the variables to list; by default all.
    """
    code, shown = frame.f_code, inside or frame
    library, runs = "", ""
    if inside is not None:
        library = _LIBRARIES.get(code_owner(code.co_filename), _PYTHON)
        runs = _function_name(inside.f_code)
    owner = _vertex(
        _function_name(code), shown.f_code.co_filename, shown.f_lineno, thread, runs=runs, library=library
    )
    arguments = _arguments(code.co_varnames, code.co_argcount + code.co_kwonlyargcount, code.co_flags)
    named = arguments.get
    entries = [
        Held(EdgeKind.LOCAL, name, value, owner)
        if (argument := named(name)) is None
        else Held(EdgeKind.ARGUMENT, argument, value, owner)
        for name, value in read_locals(frame).items()
        if only is None or name in only
    ]
    return Root(RootKind.FRAME, entries, explains=explains)


def _function_name(code: CodeType) -> str:
    """Return the name of a function in its `def`; for a comprehension, the name of the function that contains it."""
    return _name_in(getattr(code, "co_qualname", code.co_name))


@functools.lru_cache(maxsize=_MAX_KNOWN)
def _name_in(qualified: str) -> str:
    *around, name = qualified.replace(".<locals>", "").split(".")
    return around[-1] if name.endswith(("comp>", "genexpr>")) and around else name


@functools.lru_cache(maxsize=_MAX_KNOWN)
def _vertex(name: str, file: str, line: int, thread: str, *, runs: str, library: str) -> Vertex:
    """Describe a call. The result is cached, because the next sample usually finds the call at the same line."""
    inner = Vertex(VertexKind.FRAME, runs) if runs else None
    return Vertex(VertexKind.FRAME, name, file, line, thread=thread, inner=inner, library=library)


def forget_calls() -> None:
    """Clear the cached descriptions of calls."""
    _vertex.cache_clear()


@functools.lru_cache(maxsize=_MAX_KNOWN)
def _arguments(variables: tuple[str, ...], count: int, flags: int) -> Mapping[str, str]:
    """Return the names of a function's arguments: `args` as `*args`, `kwargs` as `**kwargs`, others unchanged."""
    names = {name: name for name in variables[:count]}
    for flag, stars in ((CO_VARARGS, "*"), (CO_VARKEYWORDS, "**")):
        if flags & flag:
            names[variables[count]] = stars + variables[count]
            count += 1
    return names
