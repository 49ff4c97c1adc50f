"""The page at usual widths: nothing moves, and important texts are visible as a whole."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest
import report_readings

from memwatch.report import html

WIDTHS = (1400, 1000)
HEIGHT = 1200

PROGRAM = """
    import torch
    from torch import nn

    import memwatch

    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        with memwatch.profile() as prof:
            for _ in range(20):
                model(torch.ones(256, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                prof.step()
        return prof
"""

LISTEN = """
    window.written = [];
    const write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
      window.written.push(text);
      return write.call(this, text, ...more);
    };
"""
"""Keeps all texts that are drawn from now on: those of a chart are in no element."""

PLACES = """
    const tops = ["timeline", "icicle"].map((id) => document.getElementById(id).getBoundingClientRect().top);
    return [...tops, document.querySelector("header").offsetHeight];
"""

PARTS = """
    const parts = [...document.querySelectorAll("[data-part-of-peak]")];
    return Object.fromEntries(parts.map(({ dataset }) => [dataset.partOfPeak, Number(dataset.bytes)]));
"""
"""The parts of the bar under the headline, with their bytes."""

CUT_OFF = """
    return [...document.querySelectorAll(arguments[0])].flatMap((node) => {
      const box = node.closest(arguments[1]).getBoundingClientRect();
      const range = document.createRange();
      range.selectNodeContents(node);
      const text = range.getBoundingClientRect();
      return text.width && text.right > box.right + 0.5 ? [node.textContent] : [];
    });
"""
"""Returns the texts of some elements whose end lies outside a box around them."""


@pytest.fixture(scope="module")
def training_script(tmp_path_factory):
    """Train by a file in a deep folder, as most programs lie in one."""
    folder = tmp_path_factory.mktemp("home") / "projects" / "language_models" / "experiments"
    folder.mkdir(parents=True)
    file = folder / "train.py"
    file.write_text(textwrap.dedent(PROGRAM))
    spec = importlib.util.spec_from_file_location("train_in_a_deep_folder", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.train()


@pytest.fixture(scope="module")
def page(training_script, tmp_path_factory):
    return html(training_script, tmp_path_factory.mktemp("layout") / "layout.html")


@pytest.fixture(params=WIDTHS)
def shown(request, browser, page):
    """The page in a window of a usual width."""
    before = browser.driver.get_window_size()
    browser.driver.set_window_size(request.param, HEIGHT)
    browser.open(page)
    yield browser
    browser.driver.set_window_size(before["width"], before["height"])


def test_choosing_an_instant_moves_nothing(shown, training_script):
    """Bar, curve and icicle stay where they are: the pointer must stay on what was clicked."""
    last = len(training_script.timeline) - 1
    before = shown.js(PLACES)
    for fragment in (
        "at=1",
        f"at={last // 3}",
        f"at={last}",
        f"at={last // 2}&than=peak",
        f"than={last // 4}",
    ):
        shown.go(fragment)
        assert shown.js(PLACES) == before, fragment


NARROW = 420
CODE_LINES = """
    return [...document.querySelectorAll("#source tr[data-line] .code")]
      .filter((code) => code.getClientRects().length > 1).map((code) => code.textContent);
"""
"""Returns the lines of code that the page breaks."""
CLIPPED = """
    return ["instant", "plot-status", "process-status", "process-largest"].map((id) => document.getElementById(id))
      .filter((each) => each && (each.scrollHeight > each.clientHeight + 1 || each.scrollWidth > each.clientWidth + 1))
      .map((each) => each.id);
"""


def test_a_window_of_a_telephone_cuts_off_no_sentence_and_breaks_no_code(browser, page):
    """What is too wide scrolls in its own box. The page itself is as wide as the window."""
    device = {"width": NARROW, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    try:
        browser.open(page)
        browser.js(
            "document.querySelectorAll('section').forEach((each) => (each.style.contentVisibility = 'visible'))"
        )
        assert browser.js("return document.documentElement.scrollWidth") <= NARROW
        assert browser.js(CODE_LINES) == []
        assert browser.js(CLIPPED) == []
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


PAPER = 717  # pixels of a sheet of A4 between the margins
SCROLLS = """
    return [...document.querySelectorAll("main *")].filter((each) => each.checkVisibility() && each.clientWidth &&
      getComputedStyle(each).overflowX === "auto" && each.scrollWidth > each.clientWidth).map((each) => each.className);
"""
"""Returns the boxes whose content is wider than they are."""
COVERS = """
    return [...document.querySelectorAll("#panel .unfold")].filter((each) => each.checkVisibility() &&
      each.getBoundingClientRect().bottom > each.closest("tr").getBoundingClientRect().bottom + 1).length;
"""
"""Returns how many texts of a table reach into the row below them."""


def test_a_sheet_of_paper_cuts_nothing_off_and_repeats_the_headings_of_tables(browser, tmp_path):
    """Nothing scrolls on paper. A heading that is a button is not drawn again on the next sheet."""
    holder = "`exp_avg` of `blocks.0.linear1.weight` of a model with a long name (inferred: found in this role before)"
    lives = [
        {"born": 1, "nbytes": 64, "line": "train.py:1", "name": f"output of blocks.{n}"} for n in range(12)
    ]
    reading = report_readings.from_lives(lives, holders=dict.fromkeys(range(12), (holder, "local", "")))
    device = {"width": PAPER, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        browser.open(html(reading, tmp_path / "page.html"))
        browser.js("window.dispatchEvent(new Event('beforeprint'))")
        browser.drawn()
        assert browser.js("return document.querySelectorAll('#panel .unfold').length") == len(lives)
        assert browser.js("return document.documentElement.scrollWidth") <= PAPER
        assert browser.js(SCROLLS) == []
        assert browser.js(COVERS) == 0
        buttons = "[...document.querySelectorAll('#panel th button')]"
        assert set(browser.js(f"return {buttons}.map((each) => getComputedStyle(each).display)")) == {
            "contents"
        }
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_one_legend_follows_the_instant_and_the_totals_stay(shown, training_script):
    """The page has one legend, under the curve. The head, with the bar of the parts, shows the peak."""
    drawn = "[...document.querySelectorAll('main .legend')].filter((each) => each.getClientRects().length)"
    legends = shown.js(f"return {drawn}.map((each) => each.id)")
    assert legends == ["key"]
    peak = shown.text("#peak-bytes")
    for fragment, event in (("", training_script.peak_event), ("at=9", 9)):
        if fragment:
            shown.go(fragment)
        sizes = shown.js(
            "return [...document.querySelectorAll('#key button')].map((b) => Number(b.dataset.bytes))"
        )
        live = int(training_script.timeline["live_bytes"].iloc[event])
        assert sum(sizes) == live
        assert sum(shown.js(PARTS).values()) == training_script.peak_bytes
    assert shown.text("#peak-bytes") == peak
    said = shown.text("#help")
    assert "Everything on the page shows one instant" not in said
    assert "These parts always show the peak or the whole run" in said


def texts_drawn(shown, axis):
    """Return the texts on the canvas of the curve."""
    shown.go(f"axis={axis}")
    shown.js(LISTEN)
    shown.js("document.getElementById('theme').click()")
    texts = shown.js("return window.written")
    shown.js("document.getElementById('theme').click()")
    return texts


def test_the_axis_of_time_has_one_unit_and_steps_have_names(shown):
    """The zero has the unit of the other labels, and the line of a step names the step that begins there."""
    texts = texts_drawn(shown, "time")
    units = {text.split()[1] for text in texts if text.endswith((" s", " ms", " µs", " ns"))}
    assert len(units) == 1
    assert any(text == f"0 {unit}" for text in texts for unit in units)
    assert "step 0" in texts
    texts = texts_drawn(shown, "events")
    assert "allocations and frees" in texts
    assert sum(text.startswith("step ") for text in texts) >= 5


def test_the_slider_has_a_name_and_says_where_it_is(shown):
    scrub = shown.driver.find_element("id", "scrub")
    assert scrub.accessible_name
    assert scrub.get_attribute("title")
    assert "peak" in scrub.get_attribute("aria-valuetext")


def test_the_line_that_made_a_storage_is_in_view(shown):
    """File and line are readable in the table without scrolling.

    The icicle shows them without folders if they fit.
    """
    lines = shown.js(
        "return [...document.querySelectorAll('#panel .to-line')].map((line) => line.textContent)"
    )
    assert {line.partition(":")[0] for line in lines} == {"train.py"}
    assert shown.js(CUT_OFF, "#panel .to-line bdi", "td") == []
    assert shown.js(CUT_OFF, "#panel .to-line bdi", ".scroll") == []
    shown.go("by=line")
    cells = shown.js(
        "return [...document.querySelectorAll('#flame [data-level$=line] bdi')].map((cell) => cell.textContent)"
    )
    assert {cell.partition(":")[0] for cell in cells if ":" in cell} == {"train.py"}
    assert shown.js(CUT_OFF, "#flame [data-level$=line] bdi", ".d3-flame-graph-label") == []


def test_a_comparison_is_not_cut_off(shown, training_script):
    """At a usual width the bar shows all of its text about births and deaths."""
    shown.go(f"at={len(training_script.timeline) // 2}&than=peak")
    assert "freed" in shown.text("#compared")
    assert shown.js(CUT_OFF, "#compared", "#instant") == []


def test_names_in_the_icicle_have_no_backticks(shown):
    """Texts mark names by backticks, which are code elsewhere on the page; a label of a cell has plain text only."""
    shown.go("by=holder")
    labels = shown.js(
        "return [...document.querySelectorAll('#flame g.frame')].map((cell) => cell.getAttribute('aria-label'))"
    )
    assert any(label.startswith("held by parameter 0.weight") for label in labels)
    assert not any("`" in label for label in labels)


def test_the_title_of_a_storage_shows_names_as_code(shown):
    """As everywhere on the page: no backticks, a name is code."""
    shown.go("storage=0")
    assert "`" not in shown.text("#storage-body") + shown.text("#storage-title")
    names = shown.js("return [...document.querySelectorAll('#panel tbody tr')].map((row) => row.dataset.key)")
    titles = []
    for name in names[:8]:
        shown.go(f"storage={name}")
        titles.append(shown.text("#storage-title"))
    assert not any("`" in title for title in titles)
    assert any(title.startswith("output of ") for title in titles)


def test_an_axis_of_events_counts_in_whole_numbers(browser, tmp_path):
    """Between two allocations there is nothing, so 0.5 is no event."""
    lives = [{"born": 1, "dies": 3, "nbytes": 40}, {"born": 2, "dies": 3, "nbytes": 40}]
    browser.open(html(report_readings.from_lives(lives), tmp_path / "small.html"))
    texts = texts_drawn(browser, "events")
    assert {"0", "1", "2"} <= set(texts)
    assert not [text for text in texts if "." in text and text.replace(".", "").isdigit()]
