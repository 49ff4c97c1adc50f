"""Turn an examination into what the report of a test says: outcome, sentence, sections, data and page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_memwatch.options import SETTINGS
from pytest_memwatch.verdict import LEAK_SECTION, leak_data, leak_section

if TYPE_CHECKING:
    from pytest_memwatch.examine import Examination

EXAMINATION: Final = pytest.StashKey["Examination"]()


def attach(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Put what was found on the report as plain data, which travels from a worker to the controller."""
    examination = item.stash.get(EXAMINATION, None)
    error = None if call.excinfo is None else call.excinfo.value
    if examination is None:
        if report.failed and _is_leak_error(error):
            _attach_own(report, error)
        return
    del item.stash[EXAMINATION]
    examination.close()
    data = examination.data
    report.memwatch = data  # type: ignore[attr-defined]
    if error is not None and error is examination.error:
        report.sections += examination.sections
        if report.failed:
            report.longrepr = examination.sentence  # the traceback would show our own calls only
    elif report.failed and _is_leak_error(error):
        _attach_own(report, error)
    if not report.failed:
        data["failed"] = None
    elif item.config.stash[SETTINGS].html is not None:
        _add_page(item, examination, data)


def _is_leak_error(error: BaseException | None) -> bool:
    leaks = sys.modules.get("memwatch.leaks")
    return leaks is not None and isinstance(error, leaks.TensorLeakError)


def _attach_own(report: pytest.TestReport, error: Any) -> None:
    """Report a leak that the test itself asserted, at the place where it did."""
    data = getattr(report, "memwatch", {})
    leaks = [leak_data(leak) for leak in error.leaks]
    report.memwatch = {**data, "failed": "leak", "leaks": leaks}  # type: ignore[attr-defined]
    report.sections.append((LEAK_SECTION, leak_section(error.leaks)))


def _add_page(item: pytest.Item, examination: Examination, data: dict[str, Any]) -> None:
    if examination.measurement is None or not examination.measurement.readings:
        return
    from memwatch.errors import MemwatchError
    from pytest_memwatch.pages import write_page

    folder = item.config.stash[SETTINGS].html
    assert folder is not None
    try:
        page = write_page(folder, item.nodeid, examination.measurement.highest, examination.leaks)
        data["page"] = str(page)
    except (MemwatchError, OSError) as error:
        data["page_error"] = str(error)
