"""The memory of the whole process in a recording: its table, the line of the summary, and the band of the page."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import report_readings
from forked import run_forked

from memwatch.report import html
from memwatch.report.facts import process_text
from memwatch.report.page.model import page_model
from memwatch.words.processes import PARTS

MIB = 1 << 20
PROGRAM = """
import ctypes, json, sys
import numpy as np, torch, memwatch
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def malloc(nbytes):
    address = libc.malloc(nbytes)
    ctypes.memset(address, 1, nbytes)
    return address
def tensors():
    return [torch.ones(1 << 18) for _ in range(320)]
def small_objects():
    return [[number] for number in range(700_000)]
def fragments():
    blocks = [malloc(2000) for _ in range(40_000)]
    for number, block in enumerate(blocks):
        if number % 10:
            libc.free(block)
def native():
    return [malloc(1 << 20) for _ in range(320)]
def file():
    with open("data", "wb") as file:
        file.write(bytes(64 << 20))
    mapped = np.memmap("data", mode="r")
    mapped[::4096].sum()
    return mapped
found = {}
for make in (tensors, small_objects, fragments, native, file):
    with memwatch.profile() as prof:
        prof.step()
        kept = make()
    found[make.__name__] = [prof.process.to_dict("list"), prof.summary(following="", width=300)]
    del kept
prof.save("run.memwatch")
loaded = memwatch.load("run.memwatch").process
print(json.dumps([found, loaded.to_dict("list") == prof.process.to_dict("list")]))
"""
GROWS = {
    "tensors": "tensor_bytes",
    "small_objects": "python_bytes",
    "fragments": "malloc_free_bytes",
    "native": "other_bytes",
    "file": "file_bytes",
}


@pytest.fixture(scope="module")
def programs(_fork_server, tmp_path_factory):
    """Run blocks that make 64 MiB or more of a kind; return for each the table `process` and the summary."""
    folder, outputs = (tmp_path_factory.mktemp(name) for name in ("program", "outputs"))
    done = run_forked(_fork_server, PROGRAM, folder=folder, outputs=outputs)
    assert done.returncode == 0, done.stderr
    found, is_same_when_loaded = json.loads(done.stdout.splitlines()[-1])
    assert is_same_when_loaded
    return {name: (pd.DataFrame(rows), text) for name, (rows, text) in found.items()}


@pytest.mark.parametrize("name", GROWS)
def test_memory_is_in_the_part_of_its_kind(programs, name):
    """One part grows by the bytes of the block, and no other by a third of 64 MiB."""
    process, _ = programs[name]
    assert (process[list(PARTS)].sum(axis="columns") == process["rss_bytes"]).all()
    assert process["coverage_ratio"].to_numpy() == pytest.approx(
        1 - process["other_bytes"] / process["rss_bytes"]
    )
    grown = (process[list(PARTS)].iloc[-1] - process[list(PARTS)].iloc[0]).to_dict()
    assert grown.pop(GROWS[name]) > 50 * MIB
    assert max(grown.values()) < 20 * MIB, grown


def test_the_summary_has_a_line_if_much_memory_is_not_in_tensors(programs):
    """Its twin has as many bytes in tensors."""
    assert (
        "MiB without a known cause"
        in programs["native"][1].partition("The process when it was largest: RSS")[2]
    )
    assert "The process" not in programs["tensors"][1]


def reading_of(**parts):
    """Return a reading whose process was read three times."""
    columns = {name: [0, 0, 0] for name in PARTS} | {"tensor_bytes": [MIB, 9 * MIB, MIB]} | parts
    rss_bytes = np.sum(list(columns.values()), axis=0).tolist()
    process = {
        **columns,
        "rss_bytes": rss_bytes,
        "time_ns": [0, 1000, 2000],
        "coverage_ratio": [1.0, 1.0, 1.0],
    }
    return report_readings.from_lives(
        [{"born": 1, "dies": 2, "nbytes": 8}], process=report_readings.table("process", process)
    )


def test_the_line_needs_a_tenth_of_rss_and_more_than_imports_take():
    told = process_text(reading_of(tensor_bytes=[0, 2400 * MIB, 0], python_bytes=[0, 270 * MIB, 0]))
    assert told == "RSS 2.61 GiB (2.34 GiB tensors, 270.00 MiB Python's small objects)"
    assert not process_text(reading_of(tensor_bytes=[0, 2800 * MIB, 0], python_bytes=[0, 270 * MIB, 0]))
    assert not process_text(reading_of(python_bytes=[0, 160 * MIB, 0]))
    assert not process_text(report_readings.empty(), always=True)


def test_a_process_that_was_read_once_has_no_band():
    reading = reading_of()
    assert page_model(reading)["process"]["event"] == [0, 1, 2]
    reading.process = reading.process.head(1)
    assert page_model(reading)["process"] is None


def test_the_band_shows_the_readings(browser, tmp_path):
    """The arrow keys walk from reading to reading. Each is shown with its parts and its share that is explained.

    The band has the same axis as the curve above it.
    """
    reading = reading_of(other_bytes=[0, MIB, MIB])
    reading.process["coverage_ratio"] = [1.0, 0.9, 0.5]
    browser.open(html(reading, tmp_path / "page.html"))
    assert "RSS 10.00 MiB (9.00 MiB tensors, 1.00 MiB without a known cause)" in browser.text(
        "#process-largest"
    )
    band = browser.driver.find_element("css selector", "#process-plot")
    assert (
        browser.js("return document.getElementById('process-status').style.minHeight") == ""
    )  # no room left free
    band.send_keys("\ue014")  # the right arrow
    assert "RSS 10.00 MiB, 90 % explained: 9.00 MiB tensors" in browser.text("#process-status")
    band.send_keys("\ue014")
    assert "RSS 2.00 MiB, 50 % explained" in browser.text("#process-status")
    assert browser.console() == []
    edges = browser.js(
        "return ['#plot', '#process-plot'].map((id) => document.querySelector(id + ' .u-over').getBoundingClientRect())"
        ".map(({ left, right }) => [left, right])"
    )
    assert edges[0] == edges[1]
    browser.js(
        "window.written = []; const write = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {"
        " if (this.canvas.closest('#process-plot')) window.written.push(text);"
        " return write.call(this, text, ...more); };"
        "document.getElementById('theme').click(); document.getElementById('theme').click();"
    )
    written = browser.js("return window.written")
    assert {"0 B", "4 MiB", "10 MiB"} <= set(written), "the maximum has a label"
    assert sum(text.endswith((" s", " ns", " µs")) for text in written) >= 2
    browser.open(html(report_readings.empty(), tmp_path / "empty.html"))
    assert not browser.driver.find_elements("css selector", "#process-plot")


LABELS = """
    const written = [], write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
      if (this.canvas.closest("#process-plot")) written.push(text);
      return write.call(this, text, ...more);
    };
    document.getElementById("theme").click(); // draws the charts again
    document.getElementById("theme").click();
    return written;
"""


@pytest.mark.parametrize(
    ("most_mib", "labels"),
    [
        (404, ["0 B", "128 MiB", "256 MiB", "404 MiB"]),
        (512, ["0 B", "256 MiB", "512 MiB"]),
        (300, ["0 B", "128 MiB", "300 MiB"]),
    ],
)
def test_the_band_names_even_steps_and_the_largest_size(browser, tmp_path, most_mib, labels):
    reading = reading_of(tensor_bytes=[0, most_mib * MIB, 0])
    browser.open(html(reading, tmp_path / "page.html"))
    assert list(dict.fromkeys(text for text in browser.js(LABELS) if text.endswith("B"))) == labels
