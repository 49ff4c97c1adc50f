"""Decide which leaks do not count: a rule of the user names them, or they may be caches or the work of test tools."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from memwatch.kinds.edges import EdgeKind, VertexKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.analysis.findings.finding import Finding
    from memwatch.kinds.edges import Edge, Vertex
    from memwatch.leaks import Leak


@dataclass(frozen=True)
class IgnoreRule:
    """A rule for leaks that do not count.

    Attributes:
        pattern: a shell-style pattern, or a plain text. The plain text matches wherever it occurs in the leak.
        reason: why such a leak does not count. The report shows it.
    """

    pattern: str
    reason: str

    def matches(self, leak: Leak) -> bool:
        """Return True if the cause, the kind, the holder, the site, the tensor or a line of the path matches."""
        from memwatch.leaks.leak import matches

        return matches(leak, self.pattern)

    def matches_finding(self, finding: Finding) -> bool:
        """Return True if the cause, the kind, the holder, the site or a line of the path of a finding matches."""
        from pytest_memwatch.verdict import finding_cause

        texts = (
            finding_cause(finding),
            str(finding.kind),
            finding.holder,
            finding.site,
            *finding.path.splitlines(),
        )
        return any(self.pattern in text or fnmatchcase(text, self.pattern) for text in texts)


def parse_rule(rule: object) -> IgnoreRule:
    """Return one rule.

    Args:
        rule: text `pattern: reason`, or a pair (pattern, reason).

    Raises:
        pytest.UsageError: the pattern or the reason is missing.
    """
    if isinstance(rule, str):
        pattern, _, reason = rule.partition(": ")
    elif isinstance(rule, (tuple, list)) and len(rule) == 2 and all(isinstance(part, str) for part in rule):
        pattern, reason = rule
    else:
        raise pytest.UsageError(f"memwatch: {rule!r} is not an ignore rule; write 'pattern: reason'")
    if not pattern.strip() or not reason.strip():
        raise pytest.UsageError(
            f"memwatch: the ignore rule {rule!r} has no reason; write 'pattern: reason', "
            "such as '*lr_scheduler*: the cycle is torch's own'"
        )
    return IgnoreRule(pattern.strip(), reason.strip())


def parse_rules(rules: object) -> tuple[IgnoreRule, ...]:
    """Return the rules of a marker or of the ini file: one, several, or a mapping of patterns to reasons."""
    if isinstance(rules, str):
        return (parse_rule(rules),)
    if isinstance(rules, Mapping):
        return tuple(parse_rule((pattern, reason)) for pattern, reason in rules.items())
    if isinstance(rules, Iterable):
        listed = tuple(rules)
        if len(listed) == 2 and all(isinstance(part, str) and ": " not in part for part in listed):
            return (parse_rule(listed),)
        return tuple(parse_rule(rule) for rule in listed)
    raise pytest.UsageError(
        f"memwatch: ignore={rules!r} is not a list of rules; write ['pattern: reason', ...]"
    )


_CACHE_NAME: Final = re.compile(r"cache|memo|lazy|registry|pool", re.IGNORECASE)
"""Parts of the names of caches, and of classes of caches."""
_TOOL_NAME: Final = re.compile(r"\bExceptionInfo\b|\b(Magic|Async|NonCallable)*(Mock|MagicProxy)\b")
"""Classes of pytest and unittest.mock that close cycles of their own."""
_IMPORT_SYSTEM: Final = "<frozen importlib"
_BUILT_BY_CLASS: Final = ("property", "getset_descriptor", "staticmethod", "classmethod")


def kept_by_cache(leak: Leak) -> bool:
    """Return True if one pass over this holder may be the first fill of a cache, or of a name that has one value.

    A list or a set that got longer is not a cache, and neither is a table of hooks. A cache never keeps the autograd
    graph of its values. One tensor that became larger is not a first fill.
    """
    if leak.kind != "retained" or leak.keeps_graph or leak.grows or leak.cut is None:
        return False
    from memwatch.leaks.cut import is_registration

    cut = leak.cut
    if is_registration(cut, leak.edges):
        return False
    is_bounded = any(vertex.limit is not None for vertex in _vertices(cut.owner))
    names = [cut.name or "", *(vertex.name for vertex in _vertices(cut.owner))]
    return (
        leak.one_value
        or cut.kind.row.is_filled_on_first_use
        or is_bounded
        or any(map(_CACHE_NAME.search, names))
    )


def made_by_machinery(leak: Leak) -> bool:
    """Return True if pytest, mock, the import system or torch closes the cycle, not the code under test.

    `with pytest.raises(...) as info` refers to the call it stands in. Every MagicMock refers to itself, and to
    the arguments it was called with. A module that a running call imports for the first time may keep the frames of
    that call until gc runs. torch.fx does so in the first optimizer step of a process.
    `torch.jit.script` and `torch.utils._pytree` define functions or classes on each call that refer to themselves, and
    a module that `torch.fx` traces refers to its graph, which refers to the module.

    If C++ holds a class that `torch.compile` defined for one call, gc cannot free the loops through the class. They
    are torch's own if nothing but the code of torch's classes and functions closes them.
    """
    cycle = leak.edges[: leak.cycle_length]
    if leak.kind == "uncollectable":
        return all(map(_is_fixed_in_code, cycle)) and _written_by_torch(cycle)
    if leak.kind != "cycle":
        return False
    return any(map(_is_tool, _ends(cycle))) or _written_by_torch(cycle)


def _is_fixed_in_code(edge: Edge) -> bool:
    """Return True for a reference that no other code can make or end.

    It belongs to a class, a function, a tuple, or the graph that the call made. A hook, an attribute of an object and
    an entry of another container are the work of any code.
    """
    owner = "" if edge.owner is None else edge.owner.name
    is_part = edge.kind is EdgeKind.ATTRIBUTE and not _set_anywhere(edge)
    is_of_tuple = edge.kind is EdgeKind.ITEM and owner.partition(" ")[0] == "tuple"
    return (
        is_part
        or is_of_tuple
        or edge.kind.row.is_written_in_file
        or edge.kind in (EdgeKind.CLASS_OF, EdgeKind.GRAD_FN)
    )


def _is_tool(vertex: Vertex) -> bool:
    imports = vertex.file is not None and vertex.file.startswith(_IMPORT_SYSTEM)
    return imports or _TOOL_NAME.search(vertex.name) is not None


def _written_by_torch(cycle: Iterable[Edge]) -> bool:
    import torch

    cycle = list(cycle)
    home = Path(torch.__file__).resolve().parent
    # an attribute of a class itself has no line in the code of its file
    places = [(edge.file, edge.line is not None or edge.kind.row.is_written_in_file) for edge in cycle]
    places += [(end.file, end.line is not None) for end in _ends(cycle)]
    files = [Path(file).resolve() for file, placed in places if file and placed and file.endswith(".py")]
    if not files or not all(file.is_relative_to(home) for file in files):
        return False
    folders = {file.parent for file in files}
    by_torch = [_is_stored_in(folders, edge.name) for edge in cycle if _set_anywhere(edge)]
    closed_by_torch = any(edge.kind.row.is_written_in_file or _is_private_attribute(edge) for edge in cycle)
    return closed_by_torch and all(by_torch)


def _set_anywhere(edge: Edge) -> bool:
    """Return True for an attribute of an instance, which any code may set."""
    if edge.kind is not EdgeKind.ATTRIBUTE or edge.owner is None:
        return False
    return edge.owner.kind is not VertexKind.FUNCTION and edge.owner.name not in _BUILT_BY_CLASS


def _is_private_attribute(edge: Edge) -> bool:
    return _set_anywhere(edge) and (edge.name or "").startswith("_")


def _is_stored_in(folders: Iterable[Path], name: str | None) -> bool:
    """Return True if a statement in some folders of torch sets an attribute of this name.

    `Graph._owning_module` is set by `torch.fx`; an attribute that the program puts on a module of torch is not.
    """
    return name is not None and any(name in _stored_attributes(folder, name) for folder in folders)


@functools.cache
def _stored_attributes(folder: Path, name: str) -> frozenset[str]:
    """Return the attributes that statements set in the files of a folder that contain a name."""
    found: set[str] = set()
    for file in folder.glob("*.py"):
        text = file.read_text(encoding="utf-8", errors="replace")
        if name in text:
            nodes = ast.walk(ast.parse(text))
            stored = (
                node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            )
            found.update(node.attr for node in stored)
    return frozenset(found)


def _ends(edges: Iterable[Edge]) -> Iterator[Vertex]:
    for edge in edges:
        for end in (edge.owner, edge.target, edge.reader):
            yield from _vertices(end)


def _vertices(vertex: Vertex | None) -> Iterator[Vertex]:
    """Yield an object and the function inside it."""
    while vertex is not None:
        yield vertex
        vertex = vertex.inner
