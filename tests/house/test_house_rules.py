"""Rules of the house that no linter knows: no import circle, public names that exist, and tables in one place."""

from __future__ import annotations

import ast
import enum
import functools
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grimp
import networkx
import pytest_memwatch

import memwatch
from memwatch.kinds import edges, findings, holders, leaks

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENUMS_OF_KINDS: Final = {
    name
    for module in (edges, findings, holders, leaks)
    for name, value in vars(module).items()
    if isinstance(value, enum.EnumMeta) and name != "Enum"
}


_OF_ONE_MODULE: Final = {
    "memwatch._torch.cpu": "private names of torch",
    "memwatch.analysis.findings.stale": "one kind of finding, with its own events",
    "memwatch.analysis.ways.autocast": "one change of a program",
    "memwatch.analysis.ways.loss_in_parts": "one change of a program",
    "memwatch.analysis.ways.sparse_gradients": "one change of a program",
    "memwatch.analysis.ways.unread_gradients": "one change of a program",
    "memwatch.cli.activation": "runs at the start of every Python, so it imports nothing that takes time",
    "memwatch.cli.captures": "the verbs that read a capture, which the command line loads by name",
    "memwatch.cli.mcp_tools": "the only module that imports mcp",
    "memwatch.devices.pretended": "a CUDA device without a GPU, with C++ code of its own",
    "memwatch.heap.known_ways": "part of heap/, beside the other searches",
    "memwatch.leaks.torchs_cycles": "what memwatch knows of torch's own cycles; the pytest plugin uses it too",
    "memwatch.live.app": "the only module that imports textual",
    "memwatch.memory_snapshot.plain_pickle": "decides which files are safe to read",
    "memwatch.monitor.table": "the only module of the monitor that imports pandas",
    "memwatch.planner.recompute.retention": "the only module of recompute/ that imports OR-tools",
    "memwatch.ranks.page": "one view of a job",
    "memwatch.ranks.terminal": "one view of a job",
    "memwatch.record.holders.sample": "the searches of one sample; the sampler decides when",
    "memwatch.record.python.packs": "the counterpart of src/saved.h",
    "memwatch.record.reads_in_python": "reads the bytecode of the program, which the rest of the recorder does not",
    "memwatch.record.torch_records": "what memwatch knows of DDP, FSDP and autocast",
    "memwatch.replay.budget_keeper": "the states of a step, without FX graphs",
    "memwatch.replay.step_budget": "the gradients that count as part of a budget",
    "memwatch.report.memory_viz": "one output format",
    "memwatch.report.out_of_memory": "a report that must need little memory",
    "memwatch.report.plot": "the only module of report/ that draws with matplotlib",
    "memwatch.report.pprof": "one output format",
}
"""The modules of which one other module imports one name, each with the reason for a file of its own."""


def test_a_module_with_one_user_has_a_reason_for_a_file_of_its_own():
    """If one other module imports one name of a module, the two tell one story, and the file would only hide that."""
    graph = _graph()
    alone = set()
    for module in graph.modules:
        users = graph.find_modules_that_directly_import(module)
        if len(users) == 1 and not graph.find_children(module):
            (user,) = users
            # a package that passes names on is not a user
            if not graph.find_children(user) and len(_names_imported(user, module)) == 1:
                alone.add(module)
    assert alone == set(_OF_ONE_MODULE)


@functools.cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("memwatch", exclude_type_checking_imports=False, cache_dir=None)


def _names_imported(user: str, module: str) -> set[str]:
    package, _, name = module.rpartition(".")
    path = Path(memwatch.__file__).parents[1].joinpath(*user.split(".")).with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            found |= {each.name for each in node.names if each.name == name}
    return found


def test_no_modules_import_each_other_in_a_circle():
    """If one module imports another, the other does not import it.

    Imports for types count, and a package's `__init__` too.

    The contract in pyproject.toml compares siblings. If a package imports its own submodule, and the submodule
    imports the package, only this test notices.
    """
    graph = _graph()
    imports = networkx.DiGraph(
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )
    circles = [sorted(group) for group in networkx.strongly_connected_components(imports) if len(group) > 1]
    assert circles == []


def test_every_public_name_can_be_imported():
    """Names are imported when they are first used, so a module that moved would be missed only then."""
    for package in ("memwatch", "memwatch.planner", "memwatch.replay"):
        module = sys.modules[package]
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_variables_of_calls_are_read_in_one_place():
    """Python up to 3.12 keeps the dictionary that `f_locals` returns, and each value in it, as long as the call runs.

    `read_locals` empties it again. The other files read calls of torch's compiler and of signal handlers.
    """
    root = Path(memwatch.__file__).parent
    reading = {
        path.relative_to(root).as_posix() for path in root.rglob("*.py") if ".f_locals" in path.read_text()
    }
    assert reading <= {"heap/frames.py", "_torch/dynamo.py", "signal_handlers.py"}


def test_what_depends_on_a_kind_stands_in_the_row_of_the_kind():
    """Outside `memwatch/kinds/`, no dictionary has kinds as keys, and no constant lists three kinds or more.

    A new kind would be forgotten there. Its row has a flag instead, which `memwatch/kinds/` documents.
    """
    tables = [
        f"{path}:{node.lineno}"
        for package in (memwatch, pytest_memwatch)
        for path in Path(package.__file__).parent.rglob("*.py")
        if path.parent.name != "kinds"
        for node in _tables_of_kinds(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert tables == []


def _tables_of_kinds(module: ast.Module) -> Iterator[ast.expr]:
    """Yield the dictionaries keyed by a kind, and the collections of kinds among the constants of a module."""
    for node in ast.walk(module):
        if isinstance(node, ast.Dict) and any(map(_is_kind, node.keys)):
            yield node
    for statement in module.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            for node in ast.walk(statement.value):
                if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and sum(map(_is_kind, node.elts)) > 2:
                    yield node


def _is_kind(node: ast.expr | None) -> bool:
    """Return True for a member of an enum of `memwatch/kinds/`, or its value, alone or as the first of a tuple."""
    while isinstance(node, ast.Tuple) and node.elts:
        node = node.elts[0]
    while isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Name):
        node = node.value
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in _ENUMS_OF_KINDS


def test_each_number_among_the_constants_of_a_module_has_a_comment():
    """The comment has the unit, and the measurement that chose the number or the word "guess".

    It stands in the line of the constant, above it, or below it as a docstring. Constants without an empty line between
    them may share one.
    """
    bare = [
        f"{path}:{line}"
        for package in (memwatch, pytest_memwatch)
        for path in Path(package.__file__).parent.rglob("*.py")
        for line in _bare_numbers(path.read_text(encoding="utf-8"))
    ]
    assert bare == []


def test_a_number_without_a_comment_is_found():
    """A comment counts for its own block of lines only."""
    blocks = ("# seconds\nA = 1\nB = -2", "C = 3, 4\nD = 5\n'Bytes.'\nE = 2 * 6", "F = 7  # calls\nG = 8")
    assert list(_bare_numbers("\n\n".join(blocks))) == [8, 11]


def _bare_numbers(source: str) -> Iterator[int]:
    """Yield the line of each number among the constants of a module that no comment explains."""
    lines = ["", *source.splitlines()]
    body = ast.parse(source).body
    for place, statement in enumerate(body):
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or not _is_number(statement.value):
            continue
        first, end = statement.lineno, statement.end_lineno or statement.lineno
        is_commented = any("#" in line for line in lines[first : end + 1])
        while lines[first - 1]:
            first -= 1
            is_commented |= lines[first].startswith("#")
        below = itertools.dropwhile(lambda each: isinstance(each, (ast.Assign, ast.AnnAssign)), body[place:])
        text = next(below, None)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            is_commented |= all(lines[statement.lineno : text.lineno])
        if not is_commented:
            yield statement.lineno


def _is_number(node: ast.expr | None) -> bool:
    """Return True for a number, arithmetic with numbers, and a tuple of numbers."""
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(_is_number, node.elts))
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
