"""Pages of unusual readings: an empty one, hostile names, a million events, no sources."""

from __future__ import annotations

import base64
import gzip
import re

import numpy as np
import pytest
import report_readings
import torch
from report_readings import HOSTILE

import memwatch
from memwatch.report import html
from memwatch.sizes import format_bytes
from memwatch.text import visible

MAX_EMPTY_BYTES = 300_000
MAX_MILLION_EVENTS_BYTES = 6_000_000
SHADOW = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"


@pytest.fixture
def quiet(browser):
    """The browser; at the end the console must be silent and nothing but the page requested."""
    yield browser
    assert browser.console() == []
    assert {url for url in browser.requests() if not url.startswith(("file:", "data:,"))} == set()


def unpacked(page: str) -> str:
    """Return all text of a page, packed blocks opened."""
    blocks = re.findall(r'"(H4sI[A-Za-z0-9+/=]+)"', page)
    return page + "".join(
        gzip.decompress(base64.b64decode(block)).decode("utf-8", "replace") for block in blocks
    )


def test_the_page_rounds_as_the_summary_does(quiet, tmp_path):
    """16,512 bytes are 16.125 KiB: a tie, which JavaScript rounds up and Python to the even digit."""
    sizes = (4128, 4126, 3104, 3232, 1032)
    with memwatch.profile() as prof:
        kept = [torch.empty(size) for size in sizes]
    del kept
    quiet.open(html(prof, tmp_path / "ties.html"))
    assert quiet.column(2) == [format_bytes(4 * size) for size in sorted(sizes, reverse=True)]


def test_a_page_of_nothing_is_small_and_works(quiet, tmp_path):
    """A block without any tensor gives a page under 300 kB that says so, and has no empty charts and tables."""
    page = html(report_readings.empty(), tmp_path / "empty.html")
    assert page.stat().st_size < MAX_EMPTY_BYTES
    quiet.open(page)
    assert quiet.text("#peak-bytes") == "0 B"
    assert quiet.row_keys() == []
    assert quiet.js("return document.getElementById('saved-share')") is None
    shown = "return [...document.querySelectorAll('main > section')].filter((each) => each.checkVisibility()).length"
    assert quiet.js(shown) == 1
    assert quiet.text("#headline").startswith("No tensor memory was recorded. The program made no tensor")
    assert quiet.js("return document.querySelectorAll('nav a, .instant-bar:not([hidden])').length") == 0


def test_a_million_events_make_a_page_under_six_megabytes(quiet, tmp_path):
    """The first chart needs only the overview. The events are decoded when a user chooses an instant."""
    reading = report_readings.many_events(1_000_000)
    page = html(reading, tmp_path / "million.html")
    assert page.stat().st_size < MAX_MILLION_EVENTS_BYTES
    quiet.open(page)
    marks = "return performance.getEntriesByType('mark').map((mark) => mark.name)"
    assert quiet.js(marks)[:2] == ["memwatch-first-chart", "memwatch-ready"]
    assert quiet.live_bytes() == reading.peak_bytes
    quiet.go("at=654321&zoom=1000000000_1100000000")
    assert quiet.live_bytes() == reading.timeline["live_bytes"].iloc[654_321]
    assert "memwatch-detail" in quiet.js(marks)
    assert sorted(map(int, quiet.row_keys())) == sorted(reading.live_at(654_321).index)


def irregular(count: int):
    """A run whose sizes, sites and lives have no pattern that could be packed."""
    reading = report_readings.many_events(count)
    random = np.random.default_rng(1)
    storages, timeline = reading.storages, reading.timeline
    storages["nbytes"] = random.integers(1, 2**31, len(storages))
    shuffled = random.permutation(len(storages))
    for column in ("category", "name", "tensor", "module", "op_name", "line", "stack"):
        storages[column] = storages[column].to_numpy()[shuffled]
    delta = np.sign(timeline["delta_bytes"]) * storages["nbytes"].to_numpy()[timeline["storage"]]
    timeline["delta_bytes"] = delta.where(timeline.index > 0, 0)
    timeline["live_bytes"] = storages["nbytes"].iloc[-1] + timeline["delta_bytes"].cumsum()
    return reading


@pytest.mark.whole
def test_a_million_events_without_any_pattern_fit_too(quiet, tmp_path):
    """Events that cannot be packed are thinned. The page stays small and reports it, and its maxima stay exact."""
    reading = irregular(1_000_000)
    page = html(reading, tmp_path / "irregular.html")
    assert page.stat().st_size < MAX_MILLION_EVENTS_BYTES
    quiet.open(page)
    assert quiet.live_bytes() == reading.peak_bytes
    peak = reading.peak_event
    quiet.go(f"at={peak}&axis=events&zoom={peak - 500}_{peak + 500}")
    assert quiet.live_bytes() == reading.peak_bytes
    assert sorted(map(int, quiet.row_keys())) == sorted(reading.at_peak.index)
    assert "left out" in quiet.text("#left-out")


def test_hostile_names_are_text(quiet, tmp_path):
    """Markup, quotes, control characters and endless paths appear as spelled, and nothing of them runs."""
    reading = report_readings.hostile()
    page = html(reading, tmp_path / "hostile.html")
    quiet.open(page)

    def bare(texts):
        """Return texts without backticks: the page shows what stands between two as code."""
        return sorted(text.replace("`", "") for text in texts)

    names = quiet.js(SHADOW, "#panel tbody td:first-child")
    assert bare(names) == bare(visible(f"name {text}") for text in HOSTILE)
    for number, word in ((8, "holder"), (9, "module"), (10, "tensor")):
        assert bare(quiet.column(number)) == bare(visible(f"{word} {text}") for text in HOSTILE)
    lines = "[...document.querySelectorAll('#panel tbody td:nth-child(7) .clip')]"
    spelled = sorted(visible(f"{text}:{index}")[:2000] for index, text in enumerate(HOSTILE))
    assert sorted(quiet.js(f"return {lines}.map((each) => each.title)")) == spelled
    for index, text in enumerate(HOSTILE):
        quiet.go(f"storage={index}")
        (rule,), (op,) = bare([visible(f"rule {text}")]), bare([visible(f"op {text}")])
        quiet.wait(lambda rule=rule: rule in quiet.text("#storage-body").replace("`", ""))
        shown = quiet.text("#storage-body").replace("`", "")
        titles = quiet.js(
            "return [...document.querySelectorAll('#storage-body .stack code')].map((each) => each.title)"
        )
        assert visible(f"{text}:7") in titles  # its end is visible
        assert op in shown
        path = quiet.js(SHADOW, "#storage-body .path li")
        assert bare(path) == bare([visible(f"root {text}"), "edge"])
    notes = [text.strip() for text in quiet.js(SHADOW, "#notes li")]
    assert bare(notes) == bare(f"hostile {visible(text)}" for text in HOSTILE)
    edges = [visible(line) for text in HOSTILE for _ in range(2) for line in text.splitlines() if line]
    assert bare(quiet.js(SHADOW, ".finding .path li")) == bare(edges)
    assert quiet.text(".brand .muted") == visible(HOSTILE[0])
    for tab, column in (("saved", 1), ("modules", 1)):
        quiet.go(f"tab={tab}")
        assert bare(quiet.column(column)) == bare(map(visible, HOSTILE))
    assert quiet.js("return document.title").startswith("memwatch")
    assert quiet.js("return document.querySelectorAll('svg[onload], img, iframe, object, embed').length") == 0
    assert quiet.js("return document.scripts.length") == 2


def test_a_hostile_address_changes_nothing(quiet, tmp_path):
    """The fragment is data too: nonsense in it leaves the page as it is without one."""
    reading = report_readings.hostile()
    page = html(reading, tmp_path / "page.html")
    nonsense = "at=-1&zoom=a_b&order=<b>&cell=9.9.x&tab=__proto__&sort=constructor:desc&storage=1e9&axis=%00"
    quiet.open(page, f"#{nonsense}")
    assert quiet.live_bytes() == reading.peak_bytes
    quiet.open(page, "#at=1.5&zoom=5_5&cell=-1&tab=toString&sort=:&storage=abc&%E0%A4%A")
    assert quiet.live_bytes() == reading.peak_bytes


def test_more_rows_than_fit_are_windowed(quiet, tmp_path):
    """Of 3,000 rows only those in view are in the document; scrolling reaches the last."""
    lives = [{"nbytes": 4096 - index, "born": index + 1, "name": f"storage {index}"} for index in range(3000)]
    reading = report_readings.from_lives(lives)
    quiet.open(html(reading, tmp_path / "long.html"))
    assert quiet.text("#row-count") == "3,000 rows"
    assert 10 < len(quiet.row_keys()) < 200
    assert quiet.row_keys()[0] == "0"
    quiet.js("const box = document.querySelector('.scroll'); box.scrollTop = box.scrollHeight")
    quiet.wait(lambda: "2999" in quiet.row_keys())
    assert "0" not in quiet.row_keys()


def test_a_resized_storage_counts_at_each_instant_what_it_had_then(quiet, tmp_path):
    """The live set follows a change of size between birth and death."""
    reading = report_readings.from_lives(
        [{"nbytes": 100, "born": 1}, {"nbytes": 10, "born": 2}, {"nbytes": 5, "born": 4}]
    )
    timeline = reading.timeline
    timeline.loc[2, ["storage", "delta_bytes"]] = [0, 60]  # the first storage grows instead of a birth
    reading.storages.loc[1, ["birth_event", "counted"]] = [-1, False]
    timeline["live_bytes"] = timeline["delta_bytes"].cumsum()
    quiet.open(html(reading, tmp_path / "resized.html"), "#at=2")
    assert quiet.live_bytes() == 160
    quiet.go("at=1")
    assert quiet.live_bytes() == 100


def test_a_page_without_sources_holds_no_path(quiet, training, tmp_path):
    """With `source=False` the page holds no file path, command or source line, packed or not. The figures stay."""
    page = html(training, tmp_path / "shared.html", source=False)
    text = unpacked(page.read_text(encoding="utf-8"))
    files = {line.rpartition(":")[0] for line in {*training.ops["line"], *training.storages["line"]} if line}
    files |= {
        frame[0]
        for stack in training.storages["stack"].unique()
        if stack >= 0
        for frame in training.stack(stack)
    }
    assert len(files) > 2
    assert [file for file in files if file in text] == []
    assert str(tmp_path) not in text
    assert all(word not in text for word in training.meta["argv"] if "/" in word)
    quiet.open(page)
    assert quiet.live_bytes() == training.peak_bytes
    assert any(re.fullmatch(r"file-\d+:\d+", line) for line in quiet.column(7))


def test_the_same_reading_makes_the_same_page(training, tmp_path):
    """A page is a function of its reading: two writes are equal byte by byte."""
    first, second = html(training, tmp_path / "1.html"), html(training, tmp_path / "2.html")
    assert first.read_bytes() == second.read_bytes()
