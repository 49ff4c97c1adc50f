"""Decide which leaks do not count: a rule of the user matches them, or a cache or a test tool may be the cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from memwatch.analysis.findings.finding import Finding
    from memwatch.kinds.edges import Vertex
    from memwatch.leaks import Leak


@dataclass(frozen=True)
class IgnoreRule:
    """A rule for leaks that do not count.

    Attributes:
        pattern: a shell-style pattern, or a plain text, which may occur anywhere in a text of the leak.
        reason: the reason why such a leak does not count. The report shows it.
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


def kept_by_cache(leak: Leak) -> bool:
    """Return True if the leak may be the first value of a cache, or of a name that has one value.

    Some leaks are never this: a list or a set that got longer, a table of hooks, values that keep their autograd graph,
    and a tensor that became larger.
    """
    if leak.kind != "retained" or leak.keeps_graph or leak.grows or leak.cut is None:
        return False
    from memwatch.leaks.cause import is_registration
    from memwatch.leaks.torchs_cycles import vertices_of

    cut = leak.cut
    if is_registration(cut, leak.edges):
        return False
    is_bounded = any(vertex.limit is not None for vertex in vertices_of(cut.owner))
    names = [cut.name or "", *(vertex.name for vertex in vertices_of(cut.owner))]
    return (
        leak.one_value
        or cut.kind.row.is_filled_on_first_use
        or is_bounded
        or any(map(_CACHE_NAME.search, names))
    )


def made_by_machinery(leak: Leak) -> bool:
    """Return True if pytest, mock, the import system or torch closes the cycle, not the code under test.

    The `info` of `with pytest.raises(...) as info` refers to the running call. Every MagicMock refers to itself, and to
    the arguments of its calls. If a running call imports a module for the first time, the module may keep the frames of
    this call until gc runs. For example, the first optimizer step of a process imports torch.fx.
    """
    from memwatch.leaks.torchs_cycles import ends_of, is_closed_by_torch

    if is_closed_by_torch(leak):
        return True
    return leak.kind == "cycle" and any(map(_is_tool, ends_of(leak.edges[: leak.cycle_length])))


def _is_tool(vertex: Vertex) -> bool:
    imports = vertex.file is not None and vertex.file.startswith(_IMPORT_SYSTEM)
    return imports or _TOOL_NAME.search(vertex.name) is not None
