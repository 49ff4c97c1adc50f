"""Where a look starts: the running calls of all threads, the modules' variables, the exception being handled."""

from __future__ import annotations

import contextvars
import functools
import os
import sys
import threading
from dataclasses import dataclass, field
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.frames import is_own_code, is_test_runner_code, may_be_traced, read_locals
from memwatch.own_code import code_owner, is_program_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

_MAX_FRAMES: Final = 200


@dataclass
class Source:
    """Where looking starts: a running call, a module's namespace, context variables, or the exception being handled.

    Attributes:
        kind: ``frame``, ``globals``, ``context`` or ``exception``.
        name: the function, the module, or the exception's class.
        site: `file:line` that the call has reached.
        values: what it refers to, each with its kind and its words.
        owner: the frame or dictionary itself.
        own: whether it is the program's, not a call of torch or Python.
    """

    kind: str
    name: str
    site: str
    values: list[tuple[str, str, Any]] = field(default_factory=list)
    owner: Any = None
    own: bool = True


_is_plumbing: Final = functools.cache(is_test_runner_code)


def running(frame: FrameType | None) -> Iterator[FrameType]:
    """Give a call and its callers."""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def sources(frame: FrameType | None, spaces: dict[int, dict[str, Any]]) -> Iterator[Source]:
    """Give where to start: calls innermost first, the exception being handled, other threads.

    Args:
        frame: the innermost call.
        spaces: the namespaces of the program's running functions are put here.
    """
    yield from _calls(frame, "", spaces)
    handled = sys.exc_info()[1]
    if handled is not None:
        name = type(handled).__name__
        yield Source("exception", name, "", [("exception", f"the {name} that is being handled", handled)])
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    others = sys._current_frames()
    del others[threading.get_ident()]  # a call that holds its own frame would never be freed
    for ident, innermost in others.items():
        if may_be_traced(innermost):
            continue
        yield from _calls(innermost, f" in thread `{names.get(ident, ident)}`", spaces)


def namespaces(spaces: dict[int, dict[str, Any]]) -> Iterator[Source]:
    """Give the variables of modules as places to start from."""
    for space in spaces.values():
        yield _namespace(space, f"{space.get('__file__') or ''}:1")


def context_variables() -> Source:
    """Give what the context variables of the running task are set to as a place to start from."""
    source = Source("context", "context", "")
    source.values = [
        ("global", f"context variable `{variable.name}`", value)
        for variable, value in contextvars.copy_context().items()
    ]
    return source


def _namespace(space: dict[str, Any], site: str) -> Source:
    name = str(space.get("__name__"))
    source = Source("globals", name, site, owner=space)
    source.values = [
        ("global", f"global `{key}` of module `{name}`", value)
        for key, value in list(space.items())
        if type(key) is str and not key.startswith("__")
    ]
    return source


def _calls(frame: FrameType | None, thread: str, spaces: dict[int, dict[str, Any]]) -> Iterator[Source]:
    """Give the program's calls, innermost first, then those of torch and Python.

    A call of torch that runs the program's code comes where it is: its variables, like the `args` of
    `nn.Module.__call__`, are why a `del` inside frees nothing. All others explain, and nobody edits them.
    """
    inside: FrameType | None = None
    others = []
    for call in running(frame):
        code = call.f_code
        if is_own_code(code) or _is_plumbing(code.co_filename):
            continue
        user = code_owner(code.co_filename).calls_torch
        if is_program_code(code.co_filename):
            spaces.setdefault(id(call.f_globals), call.f_globals)
        if code.co_name == "<module>" and user:
            yield _namespace(call.f_globals, f"{code.co_filename}:{call.f_lineno}")
        elif user or inside is not None:
            yield _call(call, thread, None if user else inside, own=user)
        elif not user:
            others.append(call)
        inside = call if user else None
    for call in others:
        yield _call(call, thread, own=False)


def _call(frame: FrameType, thread: str, inside: FrameType | None = None, *, own: bool) -> Source:
    """Describe a call; one of torch's that runs a function of the program is told under that function's line."""
    code, shown = frame.f_code, inside or frame
    function = _spoken(code)
    source = Source("frame", function, f"{shown.f_code.co_filename}:{shown.f_lineno}", owner=frame, own=own)
    owner = "torch" if f"{os.sep}torch{os.sep}" in code.co_filename else "Python"
    called = f" ({owner}'s, which runs `{_spoken(shown.f_code)}`)" if inside is not None else ""
    arguments = _arguments(code)
    for name, value in read_locals(frame).items():
        kind = "argument" if name in arguments else "local"
        what = "argument" if kind == "argument" else "local variable"
        source.values.append(
            (kind, f"`{arguments.get(name, name)}`, {what} of `{function}`{called}{thread}", value)
        )
    return source


def _spoken(code: CodeType) -> str:
    """Give the name of a function as its `def` has it; a comprehension is told under the function around it."""
    *around, name = getattr(code, "co_qualname", code.co_name).replace(".<locals>", "").split(".")
    return around[-1] if name.endswith(("comp>", "genexpr>")) and around else name


def _arguments(code: CodeType) -> dict[str, str]:
    """Give the names of a function's arguments, each as its definition shows it."""
    count = code.co_argcount + code.co_kwonlyargcount
    names = {name: name for name in code.co_varnames[:count]}
    for flag, stars in ((CO_VARARGS, "*"), (CO_VARKEYWORDS, "**")):
        if code.co_flags & flag:
            names[code.co_varnames[count]] = stars + code.co_varnames[count]
            count += 1
    return names
