"""Reports of a reading: the HTML page, the terminal summary, exports.

Figures are computed in `facts`, `stats`, `plan` and the page model. Views only lay them out.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from memwatch.progress import import_rich

if TYPE_CHECKING:
    from memwatch.report.page.write import ReportError, diff_page, html, leak_page
    from memwatch.report.plan import PlanMismatchError
    from memwatch.report.plan_terminal import plan_summary, trade_off

import_rich()  # before any module of this package

_HOMES = {
    "PlanMismatchError": "memwatch.report.plan",
    "ReportError": "memwatch.report.page.write",
    "diff_page": "memwatch.report.page.write",
    "html": "memwatch.report.page.write",
    "leak_page": "memwatch.report.page.write",
    "plan_summary": "memwatch.report.plan_terminal",
    "trade_off": "memwatch.report.plan_terminal",
}
"""Where each public name lives; who needs a figure or a colour does not import the page and the planner."""

__all__ = ["PlanMismatchError", "ReportError", "diff_page", "html", "leak_page", "plan_summary", "trade_off"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
