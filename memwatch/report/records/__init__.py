"""The output of the verbs as plain values for programs: `--json`, and the answers of `memwatch mcp`."""

from memwatch.report.records.reading import (
    difference_record,
    findings_record,
    holders_record,
    live_record,
    plan_record,
    summary_record,
    tree_record,
    ways_record,
)

__all__ = [
    "difference_record",
    "findings_record",
    "holders_record",
    "live_record",
    "plan_record",
    "summary_record",
    "tree_record",
    "ways_record",
]
