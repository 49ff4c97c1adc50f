"""Rules of the house that no linter knows: no import circle, and public names that exist."""

from __future__ import annotations

import sys

import grimp
import networkx


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


def test_every_public_name_can_be_imported():
    """Names are imported when they are first used, so a module that moved would be missed only then."""
    for package in ("memwatch", "memwatch.planner", "memwatch.replay"):
        module = sys.modules[package]
        assert [name for name in module.__all__ if not hasattr(module, name)] == []
