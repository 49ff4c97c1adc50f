"""Ignore rules: a pattern, and the reason why leaks that match it do not count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from memwatch.analysis.findings.finding import Finding
    from memwatch.leaks import Leak


@dataclass(frozen=True)
class IgnoreRule:
    """A rule for leaks that do not count.

    Attributes:
        pattern: shell-style pattern, or plain text that may stand anywhere in the leak.
        reason: why such a leak does not count; shown in the report.
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
