"""Writing the page: whole or not at all, and over an existing file only with `force`."""

from __future__ import annotations

import os
import resource

import pytest
import report_readings

from memwatch.errors import MemwatchError
from memwatch.report import ReportError, html
from memwatch.report.page import write as files


def test_an_existing_file_is_kept(tmp_path):
    """Without `force` the file stays as it is and the error names it and the way out."""
    path = tmp_path / "page.html"
    path.write_text("mine")
    with pytest.raises(ReportError, match=r"page\.html.* exists; .*force"):
        html(report_readings.empty(), path)
    assert path.read_text() == "mine"


def test_force_replaces_it(tmp_path):
    """With `force` the new page takes its place, and nothing else is left in the folder."""
    path = tmp_path / "page.html"
    path.write_text("mine")
    assert html(report_readings.empty(), path, force=True) == path
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_failure_leaves_no_half_page(tmp_path):
    """If writing fails in the middle, the old file and only the old file is there."""
    path = tmp_path / "page.html"
    path.write_text("mine")

    with pytest.raises(TypeError):
        files.write_whole(path, 3, force=True)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_file_that_appears_meanwhile_is_kept(tmp_path):
    """The last moment counts: a file made while the page was written is not replaced."""
    path = tmp_path / "page.html"
    path.write_text("theirs")
    with pytest.raises(ReportError, match="exists"):
        files.write_whole(path, "text")
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_full_disk_is_told_with_the_file(tmp_path):
    """The begun file is removed. The error names the file and the remedy."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ReportError, match=r"cannot write .*page\.html.*make room"):
            files.write_whole(tmp_path / "page.html", "text" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["missing/page.html", "."])
def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path, target):
    """A missing folder or a directory in the way is a MemwatchError that names it."""
    with pytest.raises(MemwatchError, match="name a file"):
        html(report_readings.empty(), tmp_path / target)


def test_the_page_has_the_permissions_of_any_new_file(tmp_path):
    """The temporary file's narrow permissions do not stay."""
    (tmp_path / "plain").touch()
    page = html(report_readings.empty(), tmp_path / "page.html")
    assert page.stat().st_mode == (tmp_path / "plain").stat().st_mode
