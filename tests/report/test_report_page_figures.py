"""Each figure of the page says something new, and its name says what it counts."""

from __future__ import annotations

import pytest
import report_readings
import torch
from torch import nn

from memwatch import profile
from memwatch.report import html
from memwatch.report.facts import own_only_for_backward, saved_for_backward
from memwatch.report.page.model import page_model
from memwatch.sizes import format_bytes

CELLS = """
    const heads = [...document.querySelectorAll("#panel th")].map((head) => head.textContent.replace(/ [↑↓]$/, ""));
    return [...document.querySelectorAll("#panel tbody tr[data-key]")].map((row) =>
      Object.fromEntries([...row.cells].map((cell, at) => [heads[at], cell.textContent])));
"""
WIDTHS_OF_BARS = """
    return [...document.querySelectorAll("#panel td " + arguments[0])].map((bar) =>
      [...bar.querySelectorAll("rect")].reduce((sum, part) => sum + Number(part.getAttribute("width")), 0));
"""
TEXTS = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"


@pytest.fixture(scope="module")
def whole_program():
    """A program without a call of `prof.step()` that makes its model in the block, as under `memwatch run`."""
    torch.manual_seed(0)
    with profile() as prof:
        model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
        model.register_buffer("mask", torch.ones(100, dtype=torch.bool))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(30):
            model(torch.ones(1024, 64)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return prof


@pytest.fixture(scope="module")
def page(whole_program, tmp_path_factory):
    return html(whole_program, tmp_path_factory.mktemp("figures") / "page.html")


@pytest.fixture
def shown(browser, page):
    browser.open(page)
    yield browser
    assert browser.console() == []


@pytest.fixture
def steps(browser, training, tmp_path):
    """The page of a run with several steps, and with memory from before the block."""
    browser.open(html(training, tmp_path / "steps.html"))
    return browser


def test_a_row_of_a_module_includes_the_rows_under_it(shown, whole_program):
    """Parameters, buffers and what is there only for backward are summed like the bytes at the peak."""
    shown.click("#tab-modules")
    rows = dict(zip(shown.row_keys(), shown.js(CELLS), strict=True))
    modules = whole_program.modules
    root = modules.index[modules["parent"] == ""][0]
    own = own_only_for_backward(whole_program).reindex(modules.index, fill_value=0)
    assert (own > 0).sum() > 1
    assert rows[root]["Only for backward"] == format_bytes(own.sum())
    assert rows[root]["Parameters and buffers"] == format_bytes(modules["parameter_bytes"].sum())
    leaf = modules.index[modules["class_name"] == "Linear"][0]
    assert rows[leaf]["Parameters and buffers"] == format_bytes(modules["parameter_bytes"][leaf])


def test_only_for_backward_is_one_figure(whole_program):
    saved = saved_for_backward(whole_program)
    assert saved.held_anyway_bytes > 0
    assert own_only_for_backward(whole_program).sum() == saved.nbytes - saved.held_anyway_bytes


def test_saved_tensors_are_those_at_the_peak_until_all_are_wanted(shown, whole_program):
    at_peak = whole_program.saved[whole_program.saved["at_peak"]]
    assert 0 < len(at_peak) < len(whole_program.saved)
    shown.click("#tab-saved")
    assert sorted(map(int, shown.row_keys())) == sorted(at_peak["storage"])
    shown.click("#saved-listed")
    assert f"{len(whole_program.saved):,} rows" in shown.text("#row-count")
    shown.click("#saved-listed")
    assert len(shown.row_keys()) == len(at_peak)


def test_names_in_the_text_above_a_table_are_code(steps):
    steps.click("#tab-saved")
    assert "`" not in steps.text("#table-summary")
    assert steps.js(TEXTS, "#table-summary code")


def test_a_figure_at_the_top_is_not_said_twice(whole_program, training, tmp_path):
    """Where the block begins with nothing, the peak is the increase. A share may be in the bar of the parts."""
    text = html(whole_program, tmp_path / "one.html").read_text(encoding="utf-8")
    assert whole_program.baseline_bytes == 0
    assert 'id="baseline-bytes"' not in text
    assert 'id="increase-bytes"' not in text
    text = html(training, tmp_path / "two.html").read_text(encoding="utf-8")
    assert training.baseline_bytes > 0
    assert 'id="baseline-bytes"' in text
    assert 'id="increase-bytes"' in text
    for reading in (whole_program, training):
        model = page_model(reading)
        shares = [f"{100 * part['share_ratio']:.1f}" for part in model["made_of"]["parts"]]
        assert model["saved"]["is_new"] == (f"{100 * model['saved']['share_ratio']:.1f}" not in shares)


def test_numbers_of_ops_have_one_format():
    lives = [{"born": at, "dies": at + 0.5, "nbytes": 8} for at in range(1, 800)]
    reading = report_readings.from_lives([*lives, {"born": 900, "nbytes": 64}])
    peak = page_model(reading)["peak"]
    assert peak["op"] > 1000
    assert f"Op {peak['op']:,}" in peak["text"]


def test_a_change_says_its_peak_once(shown, whole_program):
    """A second line is there for a decision alone; the word for the basis is explained once."""
    decisions = [each for each in whole_program.ways["decision"] if each]
    told = shown.js(TEXTS, ".way .predicted")
    assert len(told) == len(decisions) > 0
    assert all(text.startswith("Before you make this change: ") for text in told)
    heads = shown.js(TEXTS, ".way > summary")
    assert all(f", {basis})" in " ".join(heads) for basis in whole_program.ways["basis"].unique())
    assert shown.text("#ways").count("Simulated:") == 1


def test_a_share_is_drawn_beside_the_largest(shown):
    widths = shown.js(WIDTHS_OF_BARS, ".share")
    assert max(widths) == 100
    assert sorted(widths, reverse=True) == widths


def test_a_life_of_one_step_of_many_can_be_seen(shown, whole_program):
    """Activations live for a thirtieth of the run; parameters fill their bars."""
    row = whole_program.at_peak.index.tolist()
    activations = whole_program.at_peak["category"] == "activation"
    sums = whole_program.at_peak.groupby("category")["nbytes"].sum()
    assert sums["activation"] > sums.sum() / 2
    shown.drawn()
    widths = dict(zip(row, shown.js(WIDTHS_OF_BARS, ".life"), strict=True))
    assert max(widths[each] for each in whole_program.at_peak.index[activations]) > 40
    parameters = whole_program.at_peak.index[whole_program.at_peak["category"] == "parameter"]
    assert all(widths[each] > 90 for each in parameters)


def test_a_long_name_is_cut_in_the_middle_and_can_be_copied(shown, whole_program):
    names = {name.replace("`", "") for name in whole_program.at_peak["name"]}
    shown.drawn()
    assert set(shown.js(TEXTS, "#panel td .from-middle")) == names


def test_the_smaller_parts_are_named_where_one_points_at_them(shown, whole_program):
    model = page_model(whole_program)["made_of"]
    assert model["small"]
    title = shown.text(f"[data-part-of-peak='{model['parts'][-1]['name']}'] title")
    assert all(f"{part['name']} {format_bytes(part['nbytes'])}" in title for part in model["small"])
    titles = shown.js(TEXTS, "#flame g.frame title")
    assert all(titles)
    assert len(titles) == shown.js("return document.querySelectorAll('#flame g.frame').length")


def test_the_table_of_steps_needs_several(shown, whole_program):
    """The row of a single step would repeat the figures of the run."""
    assert len(whole_program.steps) == 1
    assert shown.js(TEXTS, "#tabs button") == ["Live storages", "Saved for backward", "Modules"]
    shown.go("tab=steps")
    assert shown.js("return document.querySelector('#tab-live').getAttribute('aria-selected')") == "true"


def test_the_help_explains_what_the_page_shows(shown):
    words = shown.js(TEXTS, "#help dt")
    assert {"plan", "budget", "lower bound", "peak increase", "live at the start"}.isdisjoint(words)
    assert "holder" in words
    assert "Zoom to the peak's step" not in shown.text("#help")
    assert shown.js(
        "return document.querySelector('#help h3').compareDocumentPosition(document.querySelector('#help dl')) === 4"
    )


def test_the_help_explains_the_button_that_is_there(steps):
    assert "Zoom to the peak's step" in steps.text("#help")
    assert "peak increase" in steps.js(TEXTS, "#help dt")


def test_close_stays_in_view(shown):
    shown.js("document.getElementById('help-open').click()")
    place = "return document.querySelector('#help form button').getBoundingClientRect().top"
    before = shown.js(place)
    assert shown.js(
        "const help = document.getElementById('help'); help.scrollTop = 400; return help.scrollTop"
    )
    assert abs(shown.js(place) - before) < 2


def test_the_facts_leave_out_what_every_run_has(whole_program):
    facts = dict(page_model(whole_program)["facts"])
    assert {"versions", "duration"} <= facts.keys()
    assert {"interceptor", "of these, at work in it", "on fake tensors", "recorder"}.isdisjoint(facts)
    reading = report_readings.empty()
    reading.meta |= {"intercept": "mode", "threads_unheard": 2, "holders": False, "estimate": False}
    facts = dict(page_model(reading)["facts"])
    assert facts["interceptor"] == "mode"
    assert facts["threads not recorded"] == "2"
    assert facts["holders searched for"] == "no"
    assert "on fake tensors" not in facts
