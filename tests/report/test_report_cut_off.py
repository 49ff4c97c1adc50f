"""Summary and page say near the top that a recording was cut off, and promise no peak of the whole program."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re

import pytest
import torch
from torch import nn

import memwatch
from memwatch.report.facts import cut_off_text, headline
from memwatch.report.page.model import page_model


def train(iterations):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 512))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(iterations):
        result = net(torch.ones(256, 64))
        result.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def whole():
    with memwatch.profile() as prof:
        train(2)
    return prof


def cut(at_bytes):
    prof = memwatch.profile(limit_bytes=at_bytes)
    with contextlib.suppress(memwatch.MemoryLimitError), prof:
        train(2)
    return prof


@pytest.fixture(scope="module")
def stopped(whole):
    """Return a recording that a limit ended in its first iteration."""
    prof = cut(whole.peak_bytes * 3 // 4)
    assert prof.cut_off == ("MemoryLimitError", 0)
    return prof


@pytest.mark.words
def test_the_third_line_of_the_summary_says_how_the_recording_ended(stopped, whole):
    lines = stopped.summary(width=200).splitlines()
    assert lines[2] == (
        "The recorded code ended with MemoryLimitError, in its first iteration. "
        "The whole program may have a higher peak, before and after each change."
    )
    assert "The recorded code ended" not in whole.summary()
    assert cut_off_text(whole) == ""


@pytest.mark.words
def test_predicted_peaks_are_those_so_far(stopped, whole):
    told = stopped.summary(width=200)
    assert "the peak so far" in told
    assert "the peak falls" not in headline(stopped)
    assert "so far" not in whole.summary(width=200)


@pytest.mark.words
def test_the_heading_of_the_changes_on_the_page_says_so_far(stopped, whole):
    assert page_model(stopped)["ways_heading"] == "What would lower the peak so far"
    assert page_model(whole)["ways_heading"] == "What would lower the peak"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [60, 90])
def test_the_text_of_an_exceeded_limit_keeps_to_the_width_of_the_terminal(whole, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stderr", Terminal())
    with (
        pytest.raises(memwatch.MemoryLimitError) as raised,
        memwatch.profile(limit_bytes=whole.peak_bytes * 3 // 4),
    ):
        train(2)
    (note,) = raised.value.__notes__
    lines = note.splitlines()
    assert lines
    assert max(map(len, lines)) <= width
    assert any(re.match(r" +[\d.]+ \w+  activation", line) for line in lines)


def test_the_text_of_an_exceeded_limit_needs_no_search_for_ways(whole, monkeypatch):
    """The program waits for it, and a search takes seconds for a long recording."""

    def fail(*_):
        raise AssertionError("the text searches for ways")

    monkeypatch.setattr("memwatch.analysis.ways.search.find_ways", fail)
    with (
        pytest.raises(memwatch.MemoryLimitError) as raised,
        memwatch.profile(limit_bytes=whole.peak_bytes * 3 // 4),
    ):
        train(2)
    (note,) = raised.value.__notes__
    assert "activation" in note


@pytest.mark.words
def test_memory_with_an_unknown_future_is_neither_drag_nor_void(stopped, whole):
    told = stopped.summary(width=200)
    assert "use not known: " in told
    assert "(drag)" not in told
    assert "(void)" not in told
    assert "(drag)" in whole.summary(width=200)


@pytest.mark.words
@pytest.mark.parametrize("source", [True, False])
def test_the_page_begins_with_how_the_recording_ended(stopped, tmp_path, source):
    stopped.report(tmp_path / "page.html", source=source)
    page = (tmp_path / "page.html").read_text()
    (told,) = re.findall(r'<p class="headline"[^>]*>(.*?)</p>', page)
    error = "MemoryLimitError" if source else "an error"
    assert told.startswith(f"The recorded code ended with {error}, in its first iteration.")
    assert ("The largest part of the peak" in told) == source


@pytest.mark.words
def test_a_recording_without_an_error_is_a_part_too(stopped):
    """As of a program that was killed, or that still runs."""
    capture = dataclasses.replace(stopped.capture, notes=[], meta=stopped.capture.meta | {"complete": False})
    reading = memwatch.reading.Reading(capture)
    assert cut_off_text(reading).startswith("The recording has only the first part of the program, in its")


class SecretError(Exception):
    """An error of the program's own, whose name may say what the program does."""


def test_a_page_without_source_does_not_name_the_error():
    """Neither in its headline nor in a note."""
    prof = memwatch.profile()
    with contextlib.suppress(SecretError), prof:
        train(1)
        raise SecretError
    named, hidden = (page_model(prof, source=source) for source in (True, False))
    for part in ("headline", "notes"):
        assert "SecretError" in str(named[part])
    assert "SecretError" not in str(hidden)
    assert "ended with an error" in hidden["headline"]
    assert [
        "failed",
        "An error ended the recorded code, so its later peaks are not in this recording",
    ] in hidden["notes"]
