"""Put the findings of an examination into a test's report: outcome, sentence, sections, data, and the HTML page."""

from __future__ import annotations

import hashlib
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from memwatch.errors import MemwatchError
from pytest_memwatch.causes import LEAK_SECTION
from pytest_memwatch.options import SETTINGS
from pytest_memwatch.verdict import leak_data, leak_section

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memwatch.leaks import Leak
    from memwatch.reading import Reading
    from pytest_memwatch.examine import Examination


class PeakError(MemwatchError, AssertionError):
    """The body of a test added more memory than its limit, or than its baseline, allows."""


class FindingsError(MemwatchError, AssertionError):
    """The body of a test held memory that it could free or avoid."""


class FixtureError(MemwatchError):
    """A test read a peak from the `memwatch` fixture before it measured one."""


_LONGEST = 80


def page_path(folder: Path, nodeid: str) -> Path:
    """Return the path of a test's page: readable, of bounded length, and different for different tests."""
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", nodeid.rpartition("/")[2]).strip("-.")
    digest = hashlib.sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return folder / f"{words[:_LONGEST]}-{digest}.html"


def write_page(folder: Path, nodeid: str, reading: Reading | None, leaks: Sequence[Leak]) -> Path:
    """Write the page of a test and return its path.

    Args:
        folder: the folder for pages; it is created if it is missing.
        nodeid: the test.
        reading: the profile of its body, None if it was not measured.
        leaks: its leaks.
    """
    from memwatch.report import html, leak_page

    folder.mkdir(parents=True, exist_ok=True)
    path = page_path(folder, nodeid)
    if reading is None:
        return leak_page(leaks, path, title=nodeid, force=True)
    return html(reading, path, leaks=leaks, title=nodeid, force=True)


EXAMINATION: Final[pytest.StashKey[Examination]] = pytest.StashKey()


def attach(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> Examination | None:
    """Attach the findings to the report as plain data, which xdist sends from a worker to the controller.

    Returns:
        The examination that has ended, if the test had one.
    """
    examination = item.stash.get(EXAMINATION, None)
    if examination is not None and not examination.is_over:
        examination = None  # one subtest has ended, and the test goes on
    error = None if call.excinfo is None else call.excinfo.value
    data: dict[str, Any] = {"failed": None}
    leaks: Sequence[Leak] = ()
    reading = None
    if examination is not None:
        del item.stash[EXAMINATION]
        examination.close()
        data, leaks, reading = examination.data, examination.leaks, examination.reading
    if examination is not None and error is not None and error is examination.error:
        report.sections += examination.sections
        if report.failed:
            report.longrepr = examination.sentence  # the traceback would only show calls of memwatch
    elif report.failed and _is_leak_error(error):
        leaks = error.leaks  # type: ignore[union-attr]
        # the test itself checked for leaks: its traceback stays and shows where
        data.update(failed="leak", leaks=[leak_data(leak) for leak in leaks])
        report.sections.append((LEAK_SECTION, leak_section(leaks)))
    elif examination is None:
        return None
    if not report.failed:
        data["failed"] = None
    elif reading is not None or leaks:
        _add_page(item, reading, leaks, data)
    report.memwatch = data  # type: ignore[attr-defined]
    return examination


def _is_leak_error(error: BaseException | None) -> bool:
    leaks = sys.modules.get("memwatch.leaks")
    return leaks is not None and isinstance(error, leaks.TensorLeakError)


def _add_page(
    item: pytest.Item, reading: Reading | None, leaks: Sequence[Leak], data: dict[str, Any]
) -> None:
    folder = item.config.stash[SETTINGS].html
    if folder is None:
        return
    from memwatch.errors import MemwatchError
    from pytest_memwatch.outcome import write_page

    try:
        data["page"] = str(write_page(folder, item.nodeid, reading, leaks))
    except (MemwatchError, OSError) as error:
        data["page_error"] = str(error)
