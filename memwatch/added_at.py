"""Find the lines of the program that add entries to a container which a leak goes through, or register its hooks.

Python does not record who added an entry. So memwatch reads the program's own files that the leak names, and looks for
lines that add to the variable or the attribute of the path. A line counts only if its name means the same object by the
rules of Python's scopes. Another name of a function, `log = self.log`, means the same object if the function binds it
once. A function that gets the container as an argument has no such line, and then memwatch says nothing. It also says
nothing if the program gives the container to a function that adds to an argument: that function may be the one.

For a hook, the lines are the calls of `register_..._hook` with the hook's function. Where each object keeps the one
before it, the lines are the statements that make an object from the one before.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.own_code import CodeOwner, code_owner, is_program_code
from memwatch.program_text import FUNCTIONS, first_line, lines_of, parse, variables_of
from memwatch.words.leaks import added_at_phrase, site_phrase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from memwatch.kinds.edges import Edge, Vertex

_module_dict: Final[Callable[[ModuleType], dict[str, Any]]] = vars(ModuleType)["__dict__"].__get__
"""Gives the variables of a module without a look at its class, which may have a `__getattribute__`."""
_MOST_LINES: Final = 2
"""A guess: three lines that add to a container are a list to read, and no answer."""
_MOST_REGISTRATIONS: Final = 4
"""Lines that register one hook, of which the report shows all: often one of them has no `remove()`. A guess."""
_MOST_CHARACTERS: Final = 100
"""Characters of a line that the report shows. A guess."""
_ADDS: Final = frozenset(
    {
        *("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault"),
        *("put", "put_nowait"),
        *("add_module", "register_module", "register_parameter", "register_buffer"),
    }
)
"""The methods of lists, deques, sets, dictionaries, queues and modules that add entries."""
_FUNCTIONS_THAT_ADD: Final = frozenset({"heappush", "insort", "insort_left", "insort_right"})
"""Functions of `heapq` and `bisect` that add an entry to their first argument."""
_REGISTER: Final = re.compile("register_.*hook")
"""The names of the functions and methods that register a hook."""
_REMOVE: Final = "remove"
_STACKS: Final = frozenset({"ExitStack", "AsyncExitStack"})
_ENTERS: Final = frozenset({"enter_context", "push"})
_GIVES: Final = ("pop_all",)
_LAMBDA: Final = "<lambda>"
_GETS: Final = frozenset({"get", "setdefault"})
"""The methods of a dictionary that return an entry, which may be a container in turn."""
_SELF: Final = ("self", "cls")
_SELVES: Final = tuple((name,) for name in _SELF)


@dataclass(frozen=True)
class Adding:
    """A line of a program that adds an entry to something.

    Attributes:
        file: its file.
        line: its number.
        function: the function with it, `<module>` outside functions.
        code: its text, without a comment; "..." stands for further lines.
    """

    file: str
    line: int
    function: str
    code: str


class _Scope(NamedTuple):
    """A function or a class around an expression: its name, its first and last line, and a function's variables."""

    name: str
    first: int
    last: int
    variables: frozenset[str] | None  # None for a class, whose names its methods do not see


@dataclass(frozen=True)
class _Change:
    """An expression that adds an entry. It holds no part of the syntax tree, because trees are large.

    Attributes:
        names: what it adds to: `("history",)`, or `("self", "history")` for an attribute of a variable. Of an
            expression that registers a hook, the names of the hook.
        line: its line.
        code: the first line of its text.
        scopes: the functions and classes around the place at which the names are read, outermost first.
        function: the function with the line, `<module>` outside functions.
        depth: the entries between the named object and the container: 1 for `history["loss"].append(1)`.
        hook_line: of an expression that registers a hook, the line of the hook's name or of its `lambda`.
    """

    names: tuple[str, ...]
    line: int
    code: str
    scopes: tuple[_Scope, ...]
    function: str
    depth: int = 0
    hook_line: int | None = None

    @property
    def functions(self) -> list[_Scope]:
        """The functions around it."""
        return [scope for scope in self.scopes if scope.variables is not None]

    @property
    def owner(self) -> _Scope | None:
        """The function that has the variable which the expression goes out from; None for a global."""
        owners = (scope for scope in reversed(self.functions) if self.names[0] in (scope.variables or ()))
        return next(owners, None)

    @property
    def of_class(self) -> str:
        """The qualified name of the class whose method has it, or an empty name."""
        classes = (at for at, scope in enumerate(self.scopes, start=1) if scope.variables is None)
        return _qualified(self.scopes[: max(classes, default=0)])

    @property
    def method(self) -> str:
        """The method of the class that has it, or an empty name."""
        classes = (at for at, scope in enumerate(self.scopes, start=1) if scope.variables is None)
        return next((scope.name for scope in self.scopes[max(classes, default=len(self.scopes)) :]), "")

    def may_mean(self, name: str, qualified_name: str) -> bool:
        """Return True if a name in the code may mean the class or function of a qualified name."""
        places = (self.scopes[:at] for at in range(len(self.scopes) + 1))
        return any(".".join([*(scope.name for scope in place), name]) == qualified_name for place in places)


def _qualified(scopes: Sequence[_Scope]) -> str:
    return ".".join(scope.name for scope in scopes)


class _File(NamedTuple):
    """What memwatch keeps of one file.

    Attributes:
        changes: its expressions that add entries.
        imported: for each imported name the module from which it comes, empty for `import`, and its name there.
        methods: the qualified names of its methods.
        links: its statements that make a value from the old one, `x = wrap(x)`, or put it into another object,
            `y.previous = x`; each with the names of the old value.
        registrations: its expressions that register a hook.
        functions: the functions of each first line, each with the scopes around it and its own one.
        given: the arguments of its calls of functions that it defines or imports, each with the name of the function.
            The name is empty if the function is the value of a variable.
        adders: the names of its functions that add to one of their arguments.
    """

    changes: tuple[_Change, ...]
    imported: dict[str, tuple[str, str]]
    methods: frozenset[str]
    links: tuple[_Change, ...] = ()
    registrations: tuple[_Change, ...] = ()
    functions: dict[int, tuple[_Scope, ...]] = {}  # noqa: RUF012
    given: tuple[tuple[str, _Change], ...] = ()
    adders: frozenset[str] = frozenset()


def lines_that_add(edges: Sequence[Edge], cut: Edge | None, files: Sequence[str]) -> tuple[Adding, ...]:
    """Return the lines that add to the container of the reference to cut; none if there are more than two.

    Args:
        edges: the path from the root.
        cut: the reference to cut.
        files: further files to look into, such as that of the line that made the tensor.
    """
    at = next((at for at, edge in enumerate(edges) if edge is cut), None)
    if at is None or not (edges[at].kind.row.is_entry or edges[at].kind.row.is_in_module):
        return ()
    # entries have no name of their own: `.outputs["val"]` has the name `.outputs`
    way = [edge for edge in edges[:at] if not edge.kind.row.is_entry]
    owner = edges[at].owner if edges[at].kind.row.is_in_module else None
    if owner is None and not (way and way[-1].name):
        return ()
    texts = _texts([*files_of(edges[: at + 1]), *files])
    found = [
        (file, change)
        for file, text in texts.items()
        for change in text.changes
        if (way and _adds_to(change.names, change, file, text, way))
        or (owner is not None and change.names in _SELVES and _is_in_method_of(owner, change, text.methods))
    ]
    if _is_given_to_adder(way, texts):
        return ()
    # of a dictionary of lists, the lists may grow, and each has a line that makes it
    named = (place for place in range(at) if not edges[place].kind.row.is_entry)
    depth = _growing(edges, at) - max(named, default=-1) - 1
    of_container = [(file, change) for file, change in found if change.depth == depth]
    return _lines(of_container or found, _MOST_LINES)


def lines_that_link(edges: Sequence[Edge], cut: Edge | None, files: Sequence[str]) -> tuple[Adding, ...]:
    """Return the lines that make the value of the reference to cut from its old value; none if more than two do.

    Args:
        edges: the path from the root to objects of which each keeps the one before.
        cut: the reference to cut, which leads to the newest of them.
        files: further files to look into.
    """
    at = next((at for at, edge in enumerate(edges) if edge is cut), None)
    if at is None or edges[at].kind.row.is_entry or edges[at].name is None:
        return ()
    way = [edge for edge in edges[: at + 1] if not edge.kind.row.is_entry]
    texts = _texts([*files_of(edges[: at + 1]), *files])
    found = [
        (file, change)
        for file, text in texts.items()
        for change in text.links
        if _adds_to(change.names, change, file, text, way)
    ]
    return _lines(found, _MOST_LINES)


def lines_that_register(hook: Vertex, edges: Sequence[Edge], files: Sequence[str] = ()) -> tuple[Adding, ...]:
    """Return the lines that register a function as a hook; none if there are more than four.

    Args:
        hook: the function.
        edges: the path from the root to the table of hooks.
        files: further files to look into.
    """
    if hook.file is None or hook.line is None:
        return ()
    texts = _texts([hook.file, *files_of(edges), *files])
    defined = texts[hook.file].functions.get(hook.line) if hook.file in texts else None
    found = [
        (file, change)
        for file, text in texts.items()
        for change in text.registrations
        if _is_hook(change, file, text, hook, defined)
    ]
    return _lines(found, _MOST_REGISTRATIONS)


def hook_behind(edges: Sequence[Edge], cut: Edge | None) -> Vertex | None:
    """Return the function of the hook to which a reference to cut leads; None if it is no function of Python.

    Some functions of torch register a hook of their own around the program's, which is the one to name.
    """
    at = next((at for at, edge in enumerate(edges) if edge is cut), len(edges))
    ends = (_innermost(end) for edge in edges[at:] for end in (edge.owner, edge.target) if end is not None)
    hook = next((end for end in ends if end.kind is VertexKind.FUNCTION), None)
    if hook is None or hook.file is None or code_owner(hook.file) is not CodeOwner.TORCH:
        return hook
    captured = [edge for edge in edges[at:] if edge.kind is EdgeKind.CLOSURE_CELL and edge.owner == hook]
    within = [_innermost(edge.target) for edge in captured if edge.target is not None]
    return next((end for end in within if end.kind is VertexKind.FUNCTION), hook)


def leads_to_function(edge: Edge) -> bool:
    """Return True if a reference leads to any function, or to a bound method or a partial of one."""
    return edge.target is not None and _innermost(edge.target).kind is VertexKind.FUNCTION


def _innermost(vertex: Vertex) -> Vertex:
    """Return the function inside a bound method or a partial."""
    while vertex.inner is not None:
        vertex = vertex.inner
    return vertex


def _is_given_to_adder(way: Sequence[Edge], texts: Mapping[str, _File]) -> bool:
    """Return True if the program gives an object on a way to a function that adds, or may add, to its argument."""
    adders = frozenset[str]().union(*(text.adders for text in texts.values()))
    return any(
        _adds_to(change.names, change, file, text, way[:end])
        for file, text in texts.items()
        for function, change in text.given
        if function in adders or not function
        for end in range(1, len(way) + 1)
    )


def words_of(lines: Iterable[Adding]) -> str:
    """Return lines of the program in words; empty if there are none."""
    return added_at_phrase([(site_phrase(line.file, line.line, line.function), line.code) for line in lines])


def _texts(files: Iterable[str]) -> dict[str, _File]:
    """Return what the program's own files have. Each has the methods of all, as a base class may be in another."""
    texts = {file: _read(file) for file in dict.fromkeys(files) if is_program_code(file)}
    methods = frozenset[str]().union(*(text.methods for text in texts.values()))
    return {file: text._replace(methods=methods) for file, text in texts.items()}


def _lines(found: Iterable[tuple[str, _Change]], most: int) -> tuple[Adding, ...]:
    added = (Adding(file, change.line, change.function, change.code) for file, change in found)
    lines = tuple(dict.fromkeys(added))
    return lines if len(lines) <= most else ()


def _growing(edges: Sequence[Edge], at: int) -> int:
    """Return the place of the entry, of the reference to cut and those right behind it, whose container has most.

    Keys do not count, because a record has them too.
    """
    places = [at]
    for place in range(at + 1, len(edges)):
        if not edges[place].kind.row.is_entry:
            break
        if edges[place].kind in (EdgeKind.ITEM, EdgeKind.MEMBER):
            places.append(place)

    def count(place: int) -> int:
        owner = edges[place].owner
        return 0 if owner is None else owner.count or 0

    return max(places, key=count)


def _is_hook(
    change: _Change, file: str, text: _File, hook: Vertex, defined: tuple[_Scope, ...] | None
) -> bool:
    """Return True if an expression registers a function.

    Args:
        change: the expression.
        file: its file.
        text: what memwatch keeps of the file.
        hook: the function.
        defined: the scopes around the function, and its own one; None for a lambda.
    """
    is_same_file = hook.file is not None and _absolute(file) == _absolute(hook.file)
    if change.names == (_LAMBDA,):
        return is_same_file and defined is None and change.hook_line == hook.line
    if defined is None or change.names[-1:] != (defined[-1].name,):
        return False
    around = defined[:-1]
    if around and around[-1].variables is None:  # a method
        if len(change.names) == 1:
            return False
        if change.names[:-1] in _SELVES and change.of_class == _qualified(around):
            return True
        # the object may be of any class with a method of this name
        return sum(method.rpartition(".")[2] == defined[-1].name for method in text.methods) == 1
    if is_same_file:
        owner = next((scope for scope in reversed(around) if scope.variables is not None), None)
        return len(change.names) == 1 and change.owner == owner
    module = os.path.splitext(os.path.basename(hook.file or ""))[0]
    source, name = text.imported.get(change.names[0], ("", ""))
    is_imported = (source, name) == (module, defined[-1].name) if len(change.names) == 1 else name == module
    return not around and change.owner is None and is_imported


def files_of(edges: Sequence[Edge]) -> Iterator[str]:
    """Yield the files of the references and of the objects at their ends."""
    for edge in edges:
        ends = (end.file for end in (edge.owner, edge.target, edge.reader) if end is not None)
        bases = () if edge.owner is None else (file for _, file in edge.owner.bases)
        yield from (file for file in (edge.file, *ends, *bases) if file is not None)


def _adds_to(
    names: tuple[str, ...],
    change: _Change,
    file: str,
    text: _File,
    way: Sequence[Edge],
) -> bool:
    """Return True if names of an expression mean the object at the end of a way."""
    last = way[-1]
    if names[-1] != last.name:
        return False
    owner = last.owner
    if last.kind.row.is_attribute:
        if len(names) == 1 or owner is None:
            return False
        base = names[:-1]
        if base[0] in _SELF and len(base) == 1:
            return _is_in_method_of(owner, change, text.methods)
        if len(base) == 1 and change.may_mean(base[0], owner.name):
            return True
        return len(way) > 1 and _adds_to(base, change, file, text, way[:-1])
    if last.kind is EdgeKind.GLOBAL:
        is_own = len(names) == 1 and change.owner is None and _is_of_module(file, last)
        return is_own or _is_imported(names, change, last, text.imported)
    if len(names) > 1 or owner is None:
        return False
    if last.kind is EdgeKind.CLOSURE_CELL:  # a function that captures the variable has it from one around
        within = [scope for scope in change.functions if _is_function(scope, owner, file)]
        return bool(within) and change.owner is not None and change.owner.first < within[-1].first
    return (
        last.kind.row.is_call_variable
        and change.owner is not None
        and _is(change.owner, owner.name, owner.line)
    )


def _is_in_method_of(owner: Vertex, change: _Change, methods: frozenset[str]) -> bool:
    """Return True if a line stands in a method of an object's class or of its base class.

    A method of a base class counts only if no class between the two has a method of its name, which may not call it.
    """
    classes = [owner.name, *(name for name, _ in owner.bases)]
    if change.of_class not in classes:
        return False
    nearer = classes[: classes.index(change.of_class)]
    return not any(f"{name}.{change.method}" in methods for name in nearer)


def _is_of_module(file: str, named: Edge) -> bool:
    """Return True if a file is the one of the module that has a global.

    A notebook's module has no file. Its code has names that are no module's file.
    """
    path = _absolute(file)
    if named.file is not None:
        return _absolute(named.file) == path
    own = _file_of_module(sys.modules.get("" if named.owner is None else named.owner.name))
    if own is not None:
        return own == path
    return path not in set(map(_file_of_module, list(sys.modules.values())))


def _file_of_module(module: Any) -> str | None:
    # the program's own objects may stand in for modules: their code must not run
    file = _module_dict(module).get("__file__") if issubclass(type(module), ModuleType) else None
    return _absolute(file) if isinstance(file, str) else None


def _absolute(file: str) -> str:
    """Return the whole path: the file of a script is absolute in its module, and as it was typed in its code."""
    try:
        return os.path.abspath(file)
    except OSError:  # the program has deleted its working directory
        return file


def _is_imported(
    names: tuple[str, ...], change: _Change, last: Edge, imported: dict[str, tuple[str, str]]
) -> bool:
    """Return True for `history` after `from module import history`, and for `module.history`."""
    module = "" if last.owner is None else last.owner.name.rpartition(".")[2]
    source, name = imported.get(names[0], ("", ""))
    if not module or change.owner is not None or len(names) > 2:
        return False
    return (source, name) == (module, last.name) if len(names) == 1 else name == module


def _is(scope: _Scope, qualified_name: str, line: int | None) -> bool:
    is_there = line is None or scope.first <= line <= scope.last
    return scope.name == qualified_name.rpartition(".")[2] and is_there


def _is_function(scope: _Scope, function: Vertex, file: str) -> bool:
    """Return True for the scope of a function. `functools.wraps` may have given it the name of another one."""
    if function.file is None or function.line is None or function.kind is not VertexKind.FUNCTION:
        return _is(scope, function.name, function.line)
    is_lambda = function.name.endswith(_LAMBDA)  # it has no scope here
    return not is_lambda and scope.first == function.line and _absolute(function.file) == _absolute(file)


def _read(file: str) -> _File:
    linecache.checkcache(file)  # a reload may have changed it
    return _changes("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=64)  # files
def _changes(text: str) -> _File:
    """Return the expressions of a file that add an entry to a variable or an attribute, in their order."""
    tree = parse(text)
    if tree is None:
        return _File((), {}, frozenset())
    lines = lines_of(text)
    found: list[_Change] = []
    links: list[_Change] = []
    registrations: list[_Change] = []
    defined: dict[int, tuple[_Scope, ...]] = {}
    imported: dict[str, tuple[str, str]] = {}
    methods: set[str] = set()
    arguments: set[tuple[_Scope, str]] = set()
    given: list[tuple[str, _Change]] = []
    names_of = _OtherNames()
    removed: set[int] = set()  # ids of expressions
    todo: list[tuple[ast.AST, tuple[_Scope, ...]]] = [(tree, ())]
    while todo:
        node, scopes = todo.pop()
        names_of.read(node, scopes)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            source = (getattr(node, "module", None) or "").rpartition(".")[2]
            for alias in node.names:
                imported[alias.asname or alias.name] = source, alias.name.rpartition(".")[2]
        functions = ["<module>", *(scope.name for scope in scopes if scope.variables is not None)]
        if isinstance(node, (ast.expr, ast.stmt)):
            place = node.lineno, scopes, functions[-1]
            added = [(names, depth) for names, depth in map(_names, _targets(node)) if names]
            found += [_change(names, node, lines, place, depth) for names, depth in added]
            links += [_change(names, node, lines, place) for names in _linked(node)]
            if isinstance(node, (ast.With, ast.AsyncWith)):  # at its end it calls the `remove()` of a handle
                removed.update(id(item.context_expr) for item in node.items)
                removed.update(map(id, _entered(node)))
            if isinstance(node, ast.Attribute) and node.attr == _REMOVE:
                removed.add(id(node.value))  # `module.register_forward_hook(f).remove()`
            elif id(node) not in removed:
                registrations += [
                    replace(_change(names, node, lines, place), hook_line=line)
                    for names, line in _registered(node)
                ]
        if isinstance(node, ast.Call):
            place = node.lineno, scopes, functions[-1]
            values = map(_plain, [*node.args, *(keyword.value for keyword in node.keywords)])
            given += [(_function(node), _change(names, node, lines, place)) for names in values if names]
        if isinstance(node, FUNCTIONS):
            last = node.end_lineno or node.lineno
            if scopes and scopes[-1].variables is None:
                methods.add(f"{_qualified(scopes)}.{node.name}")
            scopes = (*scopes, _Scope(node.name, first_line(node), last, frozenset(variables_of(node))))
            defined[first_line(node)] = scopes
            arguments.update((scopes[-1], arg.arg) for arg in ast.walk(node.args) if isinstance(arg, ast.arg))
        elif isinstance(node, ast.ClassDef):
            scopes = (*scopes, _Scope(node.name, node.lineno, node.end_lineno or node.lineno, None))
        todo += [(child, scopes) for child in ast.iter_child_nodes(node)]
    adders = {
        owner.name
        for change in found
        if (owner := change.owner) is not None
        and change.names[0] not in _SELF
        and (owner, change.names[0]) in arguments
    }
    found += [other for change in found if (other := names_of.other(change)) is not None]
    given += [(name, other) for name, change in given if (other := names_of.other(change)) is not None]
    known = {*imported, *(scopes[-1].name for scopes in defined.values())}
    return _File(
        _sorted(found),
        imported,
        frozenset(methods),
        _sorted(links),
        _sorted(registrations),
        defined,
        tuple(
            (function if function in known else "", change)
            for function, change in given
            if function in known or any(function in (scope.variables or ()) for scope in change.scopes)
        ),
        frozenset(adders),
    )


def _sorted(changes: Iterable[_Change]) -> tuple[_Change, ...]:
    return tuple(sorted(changes, key=lambda change: change.line))


def _change(
    names: tuple[str, ...],
    node: ast.expr | ast.stmt,
    lines: Sequence[str],
    place: tuple[int, tuple[_Scope, ...], str],
    depth: int = 0,
) -> _Change:
    line, scopes, function = place
    return _Change(names, line, _code(node, lines), scopes, function, depth)


class _OtherNames:
    """The variables of a file that mean an attribute or a variable of another name: `log` after `log = self.log`.

    A variable counts if its function binds it once, and if the function gives the other name no new value: after
    `old = self.log; self.log = []` they are two objects. It may also mean an entry: `log` after `log = self.logs[0]`.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[tuple[_Scope, ...], str, tuple[str, ...], int]] = []
        self._stored: set[tuple[tuple[_Scope, ...], tuple[str, ...]]] = set()
        self._bound: Counter[tuple[tuple[_Scope, ...], tuple[str, ...]]] = Counter()
        self._rebound: set[str] = set()

    def read(self, node: ast.AST, scopes: tuple[_Scope, ...]) -> None:
        """Note what a node binds."""
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            self._rebound.update(node.names)
        elif isinstance(node, ast.arg):
            self._bound[scopes, (node.arg,)] += 1
        elif isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            self._bound[scopes, _plain(node)] += 1
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            self._stored.add((scopes, _names(node.value)[0]))
        elif isinstance(node, ast.Assign):
            names, depth = _names(node.value)
            variables = (target.id for target in node.targets if isinstance(target, ast.Name) and names)
            self._pairs += [(scopes, variable, names, depth) for variable in variables]

    @functools.cached_property
    def _by_variable(self) -> dict[tuple[tuple[_Scope, ...], str], tuple[tuple[str, ...], int]]:
        return {
            (scopes, variable): (names, depth)
            for scopes, variable, names, depth in self._pairs
            if variable not in self._rebound
            and not (depth and (scopes, names) in self._stored)
            and self._bound[scopes, (variable,)] == 1
            and self._bound[scopes, names[:1]] <= 1  # an argument, or a variable of the function
            and not any(self._bound[scopes, names[:count]] for count in range(2, len(names) + 1))
        }

    def other(self, change: _Change) -> _Change | None:
        """Return an expression with the other name of its variable, if it has one."""
        owner = change.owner
        scopes = () if owner is None else change.scopes[: change.scopes.index(owner) + 1]
        names, depth = self._by_variable.get((scopes, change.names[0]), ((), 0))
        if not names:
            return None
        depth += change.depth
        return replace(change, names=(*names, *change.names[1:]), scopes=scopes, depth=depth)


def _plain(node: ast.expr) -> tuple[str, ...]:
    """Return the variable and the attributes of `a.b.c`; nothing for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return what a node adds an entry to: `x` of `x.append(1)`, `x[0] = 1` and `x += [1]`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
        return [node.func.value]
    if isinstance(node, ast.Call) and _function(node) in _FUNCTIONS_THAT_ADD:
        return node.args[:1]
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.value for target in targets if isinstance(target, ast.Subscript)]
    return []


def _entered(block: ast.With | ast.AsyncWith) -> list[ast.expr]:
    """Return the expressions whose results the exit stacks of a block close at its end: `stack.enter_context(x)`.

    A stack that gives its results away by `pop_all()` closes none of them.
    """
    stacks = {
        item.optional_vars.id
        for item in block.items
        if isinstance(item.context_expr, ast.Call)
        and _function(item.context_expr) in _STACKS
        and isinstance(item.optional_vars, ast.Name)
    }
    if not stacks:
        return []
    inner = [node for statement in block.body for node in ast.walk(statement)]
    stacks -= {
        _plain(node)[0] for node in inner if isinstance(node, ast.Attribute) and _plain(node)[1:] == _GIVES
    }
    calls = [node for node in inner if isinstance(node, ast.Call) and _function(node) in _ENTERS]
    return [
        arg
        for call in calls
        if _plain(call.func)[:1] and _plain(call.func)[0] in stacks
        for arg in call.args[:1]
    ]


def _function(call: ast.Call) -> str:
    """Return the name of a called function or method."""
    return (_plain(call.func) or ("",))[-1] or getattr(call.func, "attr", "")


def _linked(node: ast.AST) -> list[tuple[str, ...]]:
    """Return the names of the old value from which a statement makes a new one, or which it puts elsewhere."""
    if not isinstance(node, ast.Assign):
        return []
    whole = _plain(node.value)
    found = []
    for target in node.targets:
        names = _plain(target)
        if names and not whole and names in _read_by(node.value):
            found.append(names)
        elif whole and isinstance(target, (ast.Attribute, ast.Subscript)):
            found.append(whole)
    return found


def _read_by(node: ast.expr) -> set[tuple[str, ...]]:
    """Return the variables and attributes that an expression reads."""
    return {_plain(each) for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute))}


def _registered(node: ast.AST) -> list[tuple[tuple[str, ...], int]]:
    """Return the names of the function that an expression registers as a hook, and the line with them."""
    if not isinstance(node, ast.Call) or not _REGISTER.fullmatch(_function(node)):
        return []
    found = []
    for given in [*node.args, *(keyword.value for keyword in node.keywords)]:
        is_partial = isinstance(given, ast.Call) and _function(given) == functools.partial.__name__
        hook = given.args[0] if is_partial and given.args else given  # type: ignore[attr-defined]
        names = (_LAMBDA,) if isinstance(hook, ast.Lambda) else _plain(hook)
        found += [(names, hook.lineno)] * bool(names)
    return found


def _names(node: ast.expr) -> tuple[tuple[str, ...], int]:
    """Return the variable and the attributes of an expression: `self` and `x` of `self.x[0].get(1)`.

    An expression with other parts has none. The number is that of the entries on the way: 2 in this example.
    """
    names: list[str] = []
    depth = 0
    while True:
        if isinstance(node, ast.Subscript):
            node, depth = node.value, depth + 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GETS:
            node, depth = node.func.value, depth + 1
        elif isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Name):
            return (node.id, *reversed(names)), depth
        else:
            return (), 0


def _code(node: ast.expr | ast.stmt, lines: Sequence[str]) -> str:
    line = lines[node.lineno - 1].encode("utf-8")
    is_whole = node.end_lineno == node.lineno
    text = (
        line[node.col_offset : node.end_col_offset if is_whole else None].decode("utf-8", "replace").rstrip()
    )
    if len(text) > _MOST_CHARACTERS:
        return f"{text[:_MOST_CHARACTERS]}..."
    return text if is_whole else f"{text} ..."
