"""The rules of the house that no linter knows: no import circle, small files, functions that fit on a screen."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import networkx
import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("memwatch", "plugins")
    for path in (ROOT / folder).rglob("*.py")
)
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 50


def test_no_modules_import_each_other_in_a_circle():
    """Of two modules one knows the other, never both: imports for types alone count, and a package's own file too.

    The contract in pyproject.toml compares siblings; a package that imports its own submodule, which imports the
    package, is a circle that only this test sees.
    """
    graph = grimp.build_graph("memwatch", exclude_type_checking_imports=False, cache_dir=None)
    imports = networkx.DiGraph(
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )
    circles = [sorted(group) for group in networkx.strongly_connected_components(imports) if len(group) > 1]
    assert circles == []


@pytest.mark.parametrize("source", SOURCES)
def test_a_file_holds_one_concept(source):
    """A file of more than 400 lines, or a function of more than 50, is split."""
    text = (ROOT / source).read_text()
    assert len(text.splitlines()) <= MOST_LINES_OF_A_FILE
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, FUNCTIONS))
    assert [node.name for node in functions if lines_of_code(node) > MOST_LINES_OF_A_FUNCTION] == []


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(function):
    """Count the lines of a function without those of its docstring."""
    docstring = ast.get_docstring(function, clean=False) or ""
    return function.end_lineno - function.lineno + 1 - len(docstring.splitlines())
