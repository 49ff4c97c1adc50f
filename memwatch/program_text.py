"""Read the text of the program's files: whether it changed, its syntax tree, and which function has which variables."""

from __future__ import annotations

import ast
import linecache
import os
import stat
import warnings
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType

Read = TypeVar("Read")
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OTHER_SCOPES = (ast.ClassDef, ast.Lambda)


def is_unchanged(file: str, started_s: float) -> bool:
    """Return True for a Python file that nobody has changed since a run started.

    Args:
        file: its name. A capture from another machine may name any file of this one.
        started_s: unix time of the start of the run, seconds.
    """
    try:
        status = os.stat(file)
    except (OSError, ValueError):  # a missing file, or a name such as "a\0b", which is not a path
        return False
    is_python = file.endswith((".py", ".pyw")) and stat.S_ISREG(status.st_mode)
    if is_python:
        linecache.checkcache(file)
    return is_python and status.st_mtime <= started_s


def parse(text: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is no Python, or too deep for the parser.

    The program has had the parser's warnings when it was imported. They are not emitted again, and no filter of the
    program makes an error of them.
    """
    return _without_warnings(lambda: ast.parse(text))


def compiled(text: str, file: str) -> CodeType | None:
    """Return the code of a file's text, which is not run; None as `parse` does."""
    return _without_warnings(lambda: compile(text, file, "exec", dont_inherit=True))


def _without_warnings(read: Callable[[], Read]) -> Read | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return read()
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def lines_of(text: str) -> list[str]:
    """Return the lines as the parser counts them.

    `str.splitlines` would also split at form feeds and at Unicode's separators.
    """
    return text.split("\n")


def variables_of(function: Function) -> set[str]:
    """Return the arguments of a function and the names that it binds itself, without those that it declares global."""
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {argument.arg for argument in every if argument is not None} | names_bound_by(function.body)


def names_bound_by(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that the body of a function or a module binds, without those that it declares global.

    The names of functions and classes inside it count. What these bind in turn does not.
    """
    bound: set[str] = set()
    declared: set[str] = set()
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            declared.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        if isinstance(node, (*FUNCTIONS, *_OTHER_SCOPES)):
            bound.add(getattr(node, "name", ""))
        else:
            todo += ast.iter_child_nodes(node)
    return bound - declared


def first_line(function: Function) -> int:
    """Return the first line of a function, as its code object has it: that of its first decorator."""
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])
