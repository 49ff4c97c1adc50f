"""Reports of a reading: the HTML page, the terminal summary, exports.

Figures are computed in `facts`, `layers`, `stats`, `plan/figures` and the page model. Views only lay them out.
"""

from __future__ import annotations

from memwatch.report.page.files import ReportError
from memwatch.report.page.write import diff_page, html, leak_page
from memwatch.report.plan.figures import PlanMismatchError
from memwatch.report.plan.terminal import plan_summary
from memwatch.report.plan.tradeoff import trade_off

__all__ = ["PlanMismatchError", "ReportError", "diff_page", "html", "leak_page", "plan_summary", "trade_off"]
