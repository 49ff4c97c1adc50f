"""The starting points of a bounded search: running calls of all threads, modules' and context variables, exceptions.

A snapshot has more roots (`heap.roots`). These come in the order of interest to a reader: the program's own calls
first, the innermost before its callers. Each is made when the search reaches it, and described only if the search
finds a tensor behind it.
"""

from __future__ import annotations

import contextvars
import functools
import sys
import threading
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.edges_of import LAST_EXCEPTION
from memwatch.heap.frames import is_test_runner_code, may_be_traced, names_of_threads, read_locals
from memwatch.heap.names import type_name
from memwatch.heap.roots import Held, Root, RootKind
from memwatch.kinds.edges import EdgeKind, Vertex, VertexKind
from memwatch.own_code import CodeOwner, code_owner, is_override, owner_of_function

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from types import CodeType, FrameType

_MAX_FRAMES: Final = 200
"""Running calls of one thread that are listed, innermost first. A guess."""
_MAX_KNOWN: Final = 1024
"""Descriptions that each cache of this module keeps. A guess."""
_LIBRARIES: Final = {CodeOwner.TORCH: "torch"}
_PYTHON: Final = "Python"
_BODY: Final = "<module>"
_ITERATED: Final = ".0"
"""The name that Python gives to the argument of a comprehension or a generator expression."""

_is_plumbing: Final = functools.cache(is_test_runner_code)


def running(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a call and its callers."""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def running_functions(frame: FrameType | None) -> set[tuple[str, str]]:
    """Return the file and the name of the functions that run, of a call and its callers."""
    return {(call.f_code.co_filename, _function_name(call.f_code)) for call in running(frame)}


def call_roots(frame: FrameType | None, spaces: dict[int, dict[str, Any]]) -> Iterator[Root]:
    """Yield the running calls, innermost first, the exception being handled, and the calls of other threads.

    Args:
        frame: the innermost call.
        spaces: the namespaces of the program's running functions are put here.
    """
    yield from _calls(frame, "", spaces)
    handled = sys.exc_info()[1]
    if handled is not None:
        name = type_name(type(handled)).rpartition(".")[2]
        held = Held(EdgeKind.EXCEPTION_HANDLED, name, handled)
        yield Root(RootKind.EXCEPTION, [held])
    names = names_of_threads()
    others = sys._current_frames()
    del others[threading.get_ident()]  # a call that holds its own frame would never be freed
    for ident, innermost in others.items():
        if may_be_traced(innermost):
            continue
        yield from _calls(innermost, names.get(ident, str(ident)), spaces)


def namespace_roots(spaces: dict[int, dict[str, Any]]) -> Iterator[Root]:
    """Yield the variables of modules, given as namespaces."""
    for space in spaces.values():
        file = dict.get(space, "__file__")
        yield _namespace(space, file if type(file) is str else "", 1)


def context_root() -> Root:
    """Return the values of the context variables of the running task."""
    variables = contextvars.copy_context().items()
    return Root(
        RootKind.CONTEXT,
        [Held(EdgeKind.CONTEXT_VARIABLE, variable.name, value) for variable, value in variables],
    )


def last_exceptions_root() -> Root:
    """Return the objects of the last uncaught exception, which Python keeps for a debugger."""
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
    """Yield some running calls of the program and of packages with some of their variables, the program's own first.

    The calls of torch and Python only pass arguments on.

    Args:
        frame: the innermost call.
        names_in: returns the variables that are wanted, given the file and the name of a function.
    """
    found = []
    for call in running(frame):
        code = call.f_code
        names = names_in(code.co_filename, _function_name(code))
        owner = owner_of_function(code) if names else CodeOwner.MEMWATCH
        if owner.calls_torch and code.co_name != _BODY:
            found.append((call, names, owner))
    for call, names, _ in sorted(found, key=lambda each: each[2] is not CodeOwner.PROGRAM):
        yield _call(call, "", explains=False, only=names)


def _calls(frame: FrameType | None, thread: str, spaces: dict[int, dict[str, Any]]) -> Iterator[Root]:
    """Yield the program's calls, innermost first, then the calls of torch and Python.

    A call of torch that runs the program's code keeps its place: its variables, like the `args` of
    `nn.Module.__call__`, are why a `del` inside frees nothing. All other calls of torch and Python only explain, so
    they come last.
    """
    inside: FrameType | None = None
    others, iterated = [], list[Held]()
    for call in running(frame):
        code = call.f_code
        owner = owner_of_function(code)
        if owner is CodeOwner.MEMWATCH or _is_plumbing(code.co_filename):
            continue
        if owner is CodeOwner.PROGRAM:
            spaces.setdefault(id(call.f_globals), call.f_globals)
        if is_override(code):  # its arguments belong to its caller, as the arguments of torch's own calls do
            others.append(call)
            continue
        if code.co_name == _BODY and owner.calls_torch:
            yield _passed_on(_namespace(call.f_globals, code.co_filename, call.f_lineno, code), iterated)
        elif owner.calls_torch or inside is not None:
            root = _call(call, thread, None if owner.calls_torch else inside, explains=not owner.calls_torch)
            yield _passed_on(root, iterated)
        else:
            others.append(call)
        inside = call if owner.calls_torch else None
    for call in others:
        yield _call(call, thread, explains=True)


def _passed_on(root: Root, iterated: list[Held]) -> Root:
    """Return a call. Move the iterables of its running comprehension to the end: they are the worst names.

    Args:
        root: the variables of a call.
        iterated: the iterables of the previous call; replaced by this call's iterables.
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
    """List a call's variables.

    Args:
        frame: the call.
        thread: name of its thread, empty for the thread that searches.
        inside: the program's function that this call of torch or Python runs; the report shows its line.
        explains: whether the call is torch's or Python's.
        only: the variables to list, by default all.
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
    """Return the name of a function in its `def`; for a comprehension, the name of the function around it."""
    return _name_in(getattr(code, "co_qualname", code.co_name))


@functools.lru_cache(maxsize=_MAX_KNOWN)
def _name_in(qualified: str) -> str:
    *around, name = qualified.replace(".<locals>", "").split(".")
    return around[-1] if name.endswith(("comp>", "genexpr>")) and around else name


@functools.lru_cache(maxsize=_MAX_KNOWN)
def _vertex(name: str, file: str, line: int, thread: str, *, runs: str, library: str) -> Vertex:
    """Describe a call; the next sample mostly meets it at the same line."""
    inner = Vertex(VertexKind.FRAME, runs) if runs else None
    return Vertex(VertexKind.FRAME, name, file, line, thread=thread, inner=inner, library=library)


def forget_calls() -> None:
    """Drop the descriptions of calls that were met."""
    _vertex.cache_clear()


@functools.lru_cache(maxsize=_MAX_KNOWN)
def _arguments(variables: tuple[str, ...], count: int, flags: int) -> Mapping[str, str]:
    """Return the names of a function's arguments, each with the stars that its definition shows."""
    names = {name: name for name in variables[:count]}
    for flag, stars in ((CO_VARARGS, "*"), (CO_VARKEYWORDS, "**")):
        if flags & flag:
            names[variables[count]] = stars + variables[count]
            count += 1
    return names
