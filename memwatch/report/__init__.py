"""Reports of a reading: the HTML page, the terminal summary, exports. Views hold no logic."""

from __future__ import annotations

from memwatch.report.page.write import ReportError, html

__all__ = ["ReportError", "html"]
