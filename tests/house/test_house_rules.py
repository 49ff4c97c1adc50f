"""Rules of the house that no linter knows: no import circle, and public names that exist."""

from __future__ import annotations

import sys
from pathlib import Path

import grimp
import networkx

import memwatch


def test_no_modules_import_each_other_in_a_circle():
    """If one module imports another, the other does not import it.

    Imports for types count, and a package's `__init__` too.

    The contract in pyproject.toml compares siblings. If a package imports its own submodule, and the submodule
    imports the package, only this test notices.
    """
    graph = grimp.build_graph("memwatch", exclude_type_checking_imports=False, cache_dir=None)
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
