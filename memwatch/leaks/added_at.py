"""Find the lines of the program that add entries to a container which a leak goes through.

Python does not record who added an entry. So memwatch reads the program's own files that the leak names, and looks for
lines that add to a variable or an attribute of the container's name. What it says of such a line is true whatever
other lines do. A container that a function gets under another name has no such line, and then memwatch says nothing.
"""

from __future__ import annotations

import ast
import functools
import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from memwatch.kinds.edges import EdgeKind
from memwatch.own_code import is_program_code

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memwatch.kinds.edges import Edge

    _Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_MOST_LINES: Final = 2
"""A guess: three lines that add to a container are a list to read, and no answer."""
_ADDS: Final = frozenset(
    {
        *("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault"),
        *("put", "put_nowait"),
    }
)
"""The methods of lists, deques, sets, dictionaries and queues that add entries."""
_GETS: Final = frozenset({"get", "setdefault"})
"""The methods of a dictionary that return an entry, which may be a container in turn."""
_ATTRIBUTES: Final = (EdgeKind.ATTRIBUTE, EdgeKind.CLASS_ATTRIBUTE)
_VARIABLES: Final = (EdgeKind.LOCAL, EdgeKind.ARGUMENT, EdgeKind.CLOSURE_CELL)
_SELF: Final = ("self", "cls")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Adding:
    """A line of a program that adds an entry to something.

    Attributes:
        file: its file.
        line: its number.
        function: the function with it, `<module>` outside functions.
        code: its text, without a comment.
    """

    file: str
    line: int
    function: str
    code: str


@dataclass(frozen=True)
class _Change:
    """An expression that adds an entry. It holds no part of the syntax tree, because trees are large.

    Attributes:
        name: the variable or the attribute to which it adds.
        line: its line.
        code: the first line of its text.
        is_attribute: True for an attribute.
        of_self: True for an attribute of `self` or `cls`.
        is_local: True for a variable of a function around it.
        functions: the functions around it, outermost first: the name, the first and the last line.
        classes: the names of the classes around it.
    """

    name: str
    line: int
    code: str
    is_attribute: bool
    of_self: bool
    is_local: bool
    functions: tuple[tuple[str, int, int], ...]
    classes: tuple[str, ...]


def lines_that_add(edges: Sequence[Edge], cut: Edge | None, files: Sequence[str]) -> tuple[Adding, ...]:
    """Return the lines that add to the container of the reference to cut; none if there are more than two.

    Args:
        edges: the path from the root.
        cut: the reference to cut.
        files: further files to look into, such as that of the line that made the tensor.
    """
    at = next((at for at, edge in enumerate(edges) if edge is cut), None)
    if at is None or not edges[at].kind.row.is_entry:
        return ()
    named = next((edge for edge in reversed(edges[:at]) if not edge.kind.row.is_entry), None)
    if named is None or named.name is None:
        return ()
    in_files = dict.fromkeys([*_files(edges[: at + 1]), *files])
    found = [
        Adding(
            file,
            change.line,
            change.functions[-1][0] if change.functions else "<module>",
            change.code,
        )
        for file in in_files
        if is_program_code(file)
        for change in _changes(file)
        if _is_of(change, named)
    ]
    lines = tuple(dict.fromkeys(found))
    return lines if len(lines) <= _MOST_LINES else ()


def _files(edges: Sequence[Edge]) -> Iterator[str]:
    for edge in edges:
        for file in (
            edge.file,
            *(end.file for end in (edge.owner, edge.target, edge.reader) if end is not None),
        ):
            if file is not None:
                yield file


def _is_of(change: _Change, named: Edge) -> bool:
    """Return True if an expression adds to something of the name of a reference, in its scope."""
    if change.name != named.name:
        return False
    if named.kind is EdgeKind.GLOBAL:
        return change.is_attribute or not change.is_local
    if named.owner is None:
        return False
    owner, line = named.owner.name.rpartition(".")[2], named.owner.line
    if named.kind in _ATTRIBUTES:  # `self` of another class is another object
        return change.is_attribute and (not (change.of_self and change.classes) or owner in change.classes)
    return (
        named.kind in _VARIABLES
        and not change.is_attribute
        and any(
            name == owner and (line is None or first <= line <= last)
            for name, first, last in change.functions
        )
    )


@functools.lru_cache(maxsize=128)
def _changes(file: str) -> tuple[_Change, ...]:
    """Return the expressions of a file that add an entry to a variable or an attribute."""
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # no Python file
        return ()
    found: list[_Change] = []
    todo: list[tuple[ast.AST, tuple[_Scope, ...]]] = [(tree, ())]
    while todo:
        node, scopes = todo.pop()
        functions = [scope for scope in scopes if isinstance(scope, _FUNCTIONS)]
        for target in _targets(node):
            base = _base(target)
            if not isinstance(base, (ast.Name, ast.Attribute)):
                continue
            is_attribute = isinstance(base, ast.Attribute)
            name = base.attr if isinstance(base, ast.Attribute) else base.id
            change = _Change(
                name,
                target.end_lineno or target.lineno,
                (ast.get_source_segment(source, node) or "").partition("\n")[0],
                is_attribute=is_attribute,
                of_self=isinstance(base, ast.Attribute)
                and isinstance(base.value, ast.Name)
                and base.value.id in _SELF,
                is_local=any(name in _variables(function) for function in functions),
                functions=tuple(map(_lines, functions)),
                classes=tuple(scope.name for scope in scopes if isinstance(scope, ast.ClassDef)),
            )
            found.append(change)
        inner = (*scopes, node) if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else scopes
        todo += [(child, inner) for child in ast.iter_child_nodes(node)]
    return tuple(sorted(found, key=lambda change: change.line))


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, int, int]:
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    return function.name, first, function.end_lineno or function.lineno


def _variables(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the arguments of a function, and the names that it assigns and does not declare global."""
    found: set[str] = set()
    declared: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Global):
            declared.update(node.names)
    return found - declared


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return what a node adds an entry to: `x` of `x.append(1)`, `x[0] = 1` and `x += [1]`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
        return [node.func.value]
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.value for target in targets if isinstance(target, ast.Subscript)]
    return []


def _base(node: ast.expr) -> ast.expr:
    """Return the variable or attribute that an expression goes out from: `x` of `x[0]` and of `x.get(0)`."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GETS:
            node = node.func.value
        else:
            return node
