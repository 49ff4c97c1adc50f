"""Reports of a reading: the HTML page, the terminal summary, exports.

Figures are computed in `facts`, `layers`, `stats`, `plan/figures` and the page model. Views only lay them out.
"""

from __future__ import annotations

from memwatch.quiet_rich import import_rich

import_rich()  # before any module of this package

from memwatch.report.page.files import ReportError  # noqa: E402
from memwatch.report.page.write import diff_page, html, leak_page  # noqa: E402
from memwatch.report.plan.figures import PlanMismatchError  # noqa: E402
from memwatch.report.plan.terminal import plan_summary  # noqa: E402
from memwatch.report.plan.tradeoff import trade_off  # noqa: E402

__all__ = ["PlanMismatchError", "ReportError", "diff_page", "html", "leak_page", "plan_summary", "trade_off"]
