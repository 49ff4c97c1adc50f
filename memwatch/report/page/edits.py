"""The lines of the program that a finding asks to change: as they are, and as they would be.

A rule changes a line only if the line's text and the path of references leave one possible change. Otherwise it shows
the line as it is, or the finding has only its advice. The rules are in one list, `_RULES`, and the first rule that
returns an edit wins.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypedDict

from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.findings import FindingKind
from memwatch.program_text import FUNCTIONS, lines_of, names_bound_by, parse, variables_of
from memwatch.words.places import split_site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.analysis.findings.finding import Finding
    from memwatch.report.page.parts import CodeReader

KEPT: Final = " "
REMOVED: Final = "-"
ADDED: Final = "+"
_VARIABLES: Final = (EdgeKind.LOCAL, EdgeKind.GLOBAL)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_SCOPES: Final = (*FUNCTIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NEEDS_NO_BRACKETS: Final = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_TENSORS: Final = (*_NEEDS_NO_BRACKETS, ast.BinOp, ast.UnaryOp)
"""Expressions that a tensor may come from. A conditional expression may be None, and a list has no `detach`."""
_CONTAINERS: Final = (
    "list",
    "tuple",
    "dict",
    "set",
    "float",
    "int",
    "str",
    "zip",
    "map",
    "sorted",
    "reversed",
)
"""Functions of Python whose result has no `detach`."""
_DETACH: Final = ".detach()"
_GRAPHLESS: Final = ("detach", "item", "tolist", "numpy")
"""Methods of tensors whose result has no graph, so that `.detach()` would change nothing."""


class EditLine(TypedDict):
    """One line of an edit. Its sign says whether the edit keeps, removes or adds it."""

    sign: str
    text: str


class Edit(TypedDict):
    """Neighbouring lines of one file."""

    site: str
    """`file:line` of the first line that is in the file."""
    lines: list[EditLine]


@dataclass(frozen=True)
class _Program:
    """The text of one file of the program."""

    file: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return lines_of(self.text)

    @cached_property
    def tree(self) -> ast.Module | None:
        return parse(self.text)  # None for a notebook's cell with magics

    def scope(self, line: int) -> ast.AST | None:
        """Return the innermost function around a line, or the module."""
        if self.tree is None:
            return None
        around = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, FUNCTIONS) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        return max(around, key=lambda node: node.lineno, default=self.tree)

    def class_at(self, line: int) -> ast.AST | None:
        """Return the innermost class around a line."""
        around = [
            node
            for node in ast.walk(self.tree or ast.Module([], []))
            if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        return max(around, key=lambda node: node.lineno, default=None)

    def replaced(self, line: int, column: int, end_column: int, text: str) -> Edit | None:
        """Return the edit that replaces a part of a line by a text. Columns count bytes, as in `ast`."""
        before = self.lines[line - 1]
        coded = before.encode("utf-8")
        after = (coded[:column] + text.encode("utf-8") + coded[end_column:]).decode("utf-8")
        return self._edit(line, [(REMOVED, before), (ADDED, after)])

    def added_below(self, first: int, last: int, text: str) -> Edit:
        """Return the edit that adds a line, indented as the first of some lines, below the last of them."""
        kept = self.lines[first - 1 : last]
        indent = kept[0][: len(kept[0]) - len(kept[0].lstrip())]
        return self._edit(first, [*((KEPT, line) for line in kept), (ADDED, indent + text)])

    def _edit(self, line: int, lines: Sequence[tuple[str, str]]) -> Edit:
        return Edit(
            site=f"{self.file}:{line}",
            lines=[EditLine(sign=sign, text=text.rstrip()) for sign, text in lines],
        )


class _Sources:
    """The files of the program, each parsed once.

    An instance lives only until one finding's edit is found: kept syntax trees would slow down heap searches.
    """

    def __init__(self, code: CodeReader) -> None:
        self._code = code
        self._programs: dict[str, _Program] = {}

    def program(self, site: str) -> _Program | None:
        """Return the file of a `file:line`; None if there is no line, or if the file cannot be read."""
        file, line = split_site(site)
        if file not in self._programs and (text := self._code.text(file)):
            self._programs[file] = _Program(file, text)
        return self._programs.get(file) if line else None

    def as_it_is(self, site: str) -> Edit | None:
        """Return the line at a `file:line`, unchanged."""
        return _as_it_is(site, self._code)


def edit_of(finding: Finding, code: CodeReader) -> Edit | None:
    """Return the lines of the program that a finding asks to change; None if none are known.

    Args:
        finding: the finding.
        code: reads the sources of the program.
    """
    sources = _Sources(code)
    edits = (rule(finding, sources) for rule in _RULES)
    return next((edit for edit in edits if edit is not None), None)


def _as_it_is(site: str, code: CodeReader) -> Edit | None:
    file, line = split_site(site)
    text = code.indented(file, line).strip() if line else ""
    return Edit(site=site, lines=[EditLine(sign=KEPT, text=text)]) if text else None


def _detached(finding: Finding, sources: _Sources) -> Edit | None:
    """A list or a sum that keeps the graph of each pass: keep `.detach()` of what it gets."""
    program = sources.program(finding.site)
    if finding.kind != FindingKind.GRAPH or program is None:
        return None
    value = _value_kept(finding, program)
    if value is None or value.lineno != value.end_lineno or not _is_tensor(value):
        return None
    start, end = value.col_offset, value.end_col_offset or 0
    text = program.lines[value.lineno - 1].encode("utf-8")[start:end].decode("utf-8")
    new = text if isinstance(value, _NEEDS_NO_BRACKETS) else f"({text})"
    return program.replaced(value.lineno, start, end, new + _DETACH)


def _value_kept(finding: Finding, program: _Program) -> ast.expr | None:
    """Return the expression whose result a list or a sum keeps in each pass; None if there is not exactly one."""
    edges = finding.edges
    if not edges or edges[0].kind not in _VARIABLES or not edges[0].name:
        return None
    name = edges[0].name
    scope = program.scope(_line_of(finding.site)) if edges[0].kind is EdgeKind.LOCAL else program.tree
    kinds = [edge.kind for edge in edges[1:]]
    if scope is None or not _binds_itself(scope, name):
        return None  # such as a global variable of another module
    nodes = _nodes_that_see(scope, name)
    if kinds in ([EdgeKind.ITEM], [EdgeKind.ITEM, EdgeKind.GRAPH]):
        return _only_appended(nodes, name)
    return _only_summand(nodes, name) if kinds == [EdgeKind.GRAPH] else None


def _binds_itself(scope: ast.AST, name: str) -> bool:
    """Return True if a function or module itself gives a variable its value, so that the variable belongs to it."""
    if isinstance(scope, FUNCTIONS):
        return name in variables_of(scope)
    return isinstance(scope, ast.Module) and name in names_bound_by(scope.body)


def _nodes_that_see(scope: ast.AST, name: str) -> list[ast.AST]:
    """Return the nodes of a scope without the functions inside it that have another variable of that name."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = [scope]
    while todo:
        node = todo.pop()
        found.append(node)
        todo += [
            child
            for child in ast.iter_child_nodes(node)
            if not (isinstance(child, FUNCTIONS) and name in variables_of(child))
        ]
    return found


def _filled(finding: Finding, sources: _Sources) -> Edit | None:
    """Another list that grows: the line that fills it, as it is."""
    program = sources.program(finding.site)
    value = None if program is None or not finding.growth_bytes else _value_kept(finding, program)
    if program is not None and value is not None:
        return sources.as_it_is(f"{program.file}:{value.lineno}")
    return sources.as_it_is(finding.added_at[0]) if len(finding.added_at) == 1 else None


def _only_appended(nodes: Sequence[ast.AST], name: str) -> ast.expr | None:
    """Return the argument of the only call in a scope that puts something into a list; None if there are several."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and _is_method_of(node, name)]
    fills = [call for call in calls if getattr(call.func, "attr", "") in ("append", "extend", "insert")]
    is_filled_otherwise = any(
        (isinstance(node, ast.AugAssign) and _is_name(node.target, name))
        or (
            isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _is_name(node.value, name)
        )
        for node in nodes
    )
    if len(fills) != 1 or is_filled_otherwise or getattr(fills[0].func, "attr", "") != "append":
        return None
    values = fills[0].args
    return values[0] if len(values) == 1 and not fills[0].keywords else None


def _only_summand(nodes: Sequence[ast.AST], name: str) -> ast.expr | None:
    """Return what is added to a variable that otherwise only gets numbers; None if there are several."""
    sums = [node for node in nodes if isinstance(node, ast.AugAssign) and _is_name(node.target, name)]
    others = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign) and any(_is_name(target, name) for target in node.targets)
    ]
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    stores = [node for node in names if isinstance(node.ctx, ast.Store)]
    is_number = all(isinstance(value, ast.Constant) for value in others)
    if len(sums) != 1 or not isinstance(sums[0].op, ast.Add) or not is_number:
        return None
    return sums[0].value if len(stores) == len(sums) + len(others) else None


def _is_tensor(value: ast.expr) -> bool:
    """Return True if an expression must return a tensor, so that its value has `detach`.

    The search of the heap has found an autograd graph that its value keeps, so it is neither a number nor None.
    """
    function = getattr(value, "func", None)
    called = getattr(function, "attr", getattr(function, "id", ""))
    return isinstance(value, _TENSORS) and called not in (*_GRAPHLESS, *_CONTAINERS)


def _deleted(finding: Finding, sources: _Sources) -> Edit | None:
    """A local variable that nothing reads after a line: `del` it below that line."""
    edges, last_used = finding.edges, finding.last_used
    program = sources.program(last_used)
    if (
        finding.kind.row.del_order is None
        or program is None
        or [edge.kind for edge in edges] != [EdgeKind.LOCAL]
    ):
        return None
    name, line = edges[0].name, _line_of(last_used)
    scope = program.scope(line)
    is_same = split_site(finding.site)[0] == program.file and program.scope(_line_of(finding.site)) is scope
    if not name or not is_same or not isinstance(scope, FUNCTIONS):
        return None
    statement = _statement_at(scope, line)
    if statement is None or not _may_be_deleted_after(scope, statement, name):
        return None
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    stands_alone = not program.lines[first - 1][: statement.col_offset].strip()
    ends_alone = (
        not program.lines[last - 1].encode("utf-8")[statement.end_col_offset or 0 :].lstrip().startswith(b";")
    )
    return program.added_below(first, last, f"del {name}") if stands_alone and ends_alone else None


def _statement_at(scope: ast.AST, line: int) -> ast.stmt | None:
    """Return the simple statement at a line, below which `del` can stand; None if there are none or several."""
    simple = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)
    found = [
        node
        for node in ast.walk(scope)
        if isinstance(node, simple) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return found[0] if len(found) == 1 else None


def _may_be_deleted_after(scope: ast.AST, statement: ast.stmt, name: str) -> bool:
    """Return True if no code of a function can read a variable after a statement.

    In a loop, each pass must give the variable its value before it reads it.
    """
    names = _names(scope, name)
    inner = [node for node in ast.walk(scope) if isinstance(node, _SCOPES) and node is not scope]
    is_captured = any(_is_name(node, name) for each in inner for node in ast.walk(each))
    is_declared = any(
        isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names for node in ast.walk(scope)
    )
    if is_captured or is_declared or any(isinstance(node.ctx, ast.Del) for node in names):
        return False
    end = statement.end_lineno or statement.lineno
    loads = [node.lineno for node in names if isinstance(node.ctx, ast.Load)]
    in_statement = _names(statement, name)
    is_stored = any(isinstance(node.ctx, ast.Store) for node in in_statement)
    # If the statement does not mention the variable, it uses only a view of the tensor. The variable may then have no
    # value when it runs, and `del` would raise.
    if is_stored or not in_statement or max(loads) > end:
        return False
    for loop in (node for node in ast.walk(scope) if isinstance(node, _LOOPS)):
        if not loop.lineno <= statement.lineno <= (loop.end_lineno or 0):
            continue
        bound = [each.lineno for each in loop.body if isinstance(each, ast.Assign) and _binds(each, name)]
        first = min((load for load in loads if load >= loop.lineno), default=end)
        if not bound or min(bound) >= first or min(bound) >= statement.lineno:
            return False
    return True


def _binds(statement: ast.Assign, name: str) -> bool:
    return any(
        isinstance(node.ctx, ast.Store) for target in statement.targets for node in _names(target, name)
    )


def _set_to_none(finding: Finding, sources: _Sources) -> Edit | None:
    """Gradients that `zero_grad(set_to_none=False)` fills with zeros: the same call with True."""
    program = sources.program(finding.site)
    if finding.kind != FindingKind.SET_TO_NONE or program is None or program.tree is None:
        return None
    values = [
        keyword.value
        for call in ast.walk(program.tree)
        if isinstance(call, ast.Call) and call.lineno <= _line_of(finding.site) <= (call.end_lineno or 0)
        for keyword in call.keywords
        if getattr(call.func, "attr", "") == "zero_grad" and keyword.arg == "set_to_none"
    ]
    if len(values) != 1 or not isinstance(values[0], ast.Constant) or values[0].value is not False:
        return None
    return program.replaced(values[0].lineno, values[0].col_offset, values[0].end_col_offset or 0, "True")


def _optimizer_flag(finding: Finding, sources: _Sources) -> Edit | None:
    """An optimizer that the same file makes: the same call with one keyword more."""
    program = sources.program(finding.site)
    flag = finding.kind.row.optimizer_argument
    if flag is None or program is None or program.tree is None:
        return None
    made = _calls_of_optimizers(program.tree)
    if len(made) != 1 or any(keyword.arg is None for keyword in made[0].keywords):
        return None
    if not _is_stepped(program, made[0], _line_of(finding.site)):
        return None  # the optimizer that steps comes from elsewhere
    given = [keyword for keyword in made[0].keywords if keyword.arg in ("foreach", "fused")]
    if given:
        old = given[0].value
        is_same = len(given) == 1 and given[0].arg == flag[0] and old.lineno == old.end_lineno
        return (
            program.replaced(old.lineno, old.col_offset, old.end_col_offset or 0, flag[1])
            if is_same
            else None
        )
    call, line = made[0], program.lines[made[0].lineno - 1].encode("utf-8")
    end = (call.end_col_offset or 0) - 1
    has_room = call.lineno == call.end_lineno and line[:end].rstrip()[-1:] not in (b",", b"(")
    return program.replaced(call.lineno, end, end, f", {flag[0]}={flag[1]}") if has_room else None


def _is_stepped(program: _Program, made: ast.Call, line: int) -> bool:
    """Return True if the `step()` at a line belongs to the object that the call `made` returns.

    The object must be in the same variable, or in the same attribute of `self`.
    """
    assigned = (node for node in ast.walk(program.tree or made) if isinstance(node, ast.Assign))
    targets = [target for node in assigned if node.value is made for target in node.targets]
    steps = [
        node.func.value
        for node in ast.walk(program.tree or made)
        if isinstance(node, ast.Call) and node.lineno == line and getattr(node.func, "attr", "") == "step"
        if isinstance(node.func, ast.Attribute)
    ]
    return any(_are_same(program, target, made.lineno, step, line) for target in targets for step in steps)


def _are_same(program: _Program, made: ast.expr, made_at: int, used: ast.expr, used_at: int) -> bool:
    """Return True if a name at one line and a name at another one are the same variable or attribute of `self`."""
    if ast.unparse(made) != ast.unparse(used):
        return False
    if isinstance(made, ast.Attribute):
        return _is_name(made.value, "self") and program.class_at(made_at) is program.class_at(used_at)
    scope = program.scope(used_at)
    if not isinstance(scope, FUNCTIONS) or not isinstance(made, ast.Name):
        return program.scope(made_at) is scope
    if made.id in names_bound_by(scope.body):
        return program.scope(made_at) is scope
    # a name that this function gets as an argument is assumed to be the same object; any other name is a global
    return made.id in variables_of(scope) or program.scope(made_at) is program.tree


def _calls_of_optimizers(tree: ast.Module) -> list[ast.Call]:
    """Return the calls that make an optimizer of torch: their names are from `torch.optim`."""
    nodes = [*ast.walk(tree)]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "torch.optim"]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}

    def makes_optimizer(function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute):
            return function.attr[:1].isupper() and ast.unparse(function.value) in ("torch.optim", "optim")
        return isinstance(function, ast.Name) and function.id in imported and function.id[:1].isupper()

    return [node for node in nodes if isinstance(node, ast.Call) and makes_optimizer(node.func)]


def _line_of(site: str) -> int:
    return split_site(site)[1]


def _names(scope: ast.AST, name: str) -> list[ast.Name]:
    return [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name]


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_method_of(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and _is_name(call.func.value, name)


def calls_of_backward(line: str, code: CodeReader) -> Edit | None:
    """Return the edit that removes a line which only calls `backward()`; None if the line does more.

    Args:
        line: its `file:line`.
        code: reads the sources of the program.
    """
    edit = _as_it_is(line, code)
    if edit is None:
        return None
    text = edit["lines"][0]["text"]
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    statement = tree.body[0] if len(tree.body) == 1 else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") != "backward" or call.args:
        return None
    return Edit(site=line, lines=[EditLine(sign=REMOVED, text=text)])


_RULES: Final[tuple[Callable[[Finding, _Sources], Edit | None], ...]] = (
    _detached,
    _deleted,
    _set_to_none,
    _optimizer_flag,
    _filled,
)
