"""The sections on plans, leaks and modules in a real browser, and the page of leaks alone."""

from __future__ import annotations

import pytest
import report_readings
import torch
from report_readings import HOSTILE
from selenium.webdriver.common.keys import Keys

import memwatch
from memwatch.leaks import Leak
from memwatch.planner import Graph
from memwatch.report import html, leak_page
from memwatch.report.page.write import marked
from memwatch.sizes import format_bytes
from memwatch.text import visible

TEXTS = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
BYTES = "return [...document.querySelectorAll(arguments[0])].map((each) => Number(each.dataset.bytes))"


def bare(texts):
    """Return texts without backticks: the page shows what stands between two as code."""
    return [text.replace("`", "") for text in texts]


INK = """
const canvas = document.querySelector(`${arguments[0]} canvas`);
const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
const context = copy.getContext("2d", { willReadFrequently: true });
context.drawImage(canvas, 0, 0);
const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
const colors = new Set();
for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) colors.add(data.slice(i, i + 3).join());
return [...colors];
"""
"""The fully opaque colours drawn in a chart."""


@pytest.fixture(scope="module")
def page(planned, leaked, tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.html"
    return html(
        planned.reading,
        path,
        plan=planned.plan,
        tradeoff=planned.tradeoff,
        result=planned.result,
        leaks=leaked,
        title="one step",
    )


@pytest.fixture
def quiet(browser):
    """The browser; at the end the console must be silent and nothing but the page requested."""
    yield browser
    assert browser.console() == []
    assert {url for url in browser.requests() if not url.startswith(("file:", "data:,"))} == set()


@pytest.fixture
def shown(quiet, page):
    quiet.open(page)
    return quiet


def ink(browser, chart: str, name: str) -> bool:
    """Whether a chart is drawn with the colour of a name."""
    color = browser.js(
        "const i = document.createElement('i'); i.className = 'swatch'; i.dataset.category = arguments[0];"
        "document.body.append(i); const c = getComputedStyle(i).backgroundColor; i.remove(); return c",
        name,
    )
    return color.removeprefix("rgb(").removesuffix(")").replace(" ", "") in browser.js(INK, chart)


def test_the_plan_stands_beside_its_replay(shown, planned):
    """Program, plan, measured peak, budget, bound and the compared results are there in bytes and words."""
    plan, result = planned.plan, planned.result
    for element, nbytes in {
        "#plan-program": plan.program_peak_increase_bytes,
        "#plan-peak": plan.peak_increase_bytes,
        "#plan-measured": result.peak_increase_bytes,
        "#plan-budget": plan.budget_bytes,
        "#plan-bound": plan.lower_bound_bytes,
    }.items():
        assert shown.js(BYTES, element) == [nbytes]
        assert shown.text(element) == format_bytes(nbytes)
    assert f"{result.num_checked} storages bitwise equal (max_abs_diff 0)" in shown.text("#plan-replayed")
    assert shown.text("#plan-cost") == f"{100 * plan.extra_cost_ratio:.1f} %"
    assert "as planned, to the byte" in shown.text("#plan")


def test_the_curves_are_drawn_and_walked(shown, planned):
    """Both curves, budget and bound are drawn. Arrow keys announce each step and its live bytes."""
    for name in ("before", "after", "budget", "bound"):
        assert ink(shown, "#plan-curves", name), name
    curves = shown.driver.find_element("id", "plan-curves")
    said = set()
    for _ in range(3):
        curves.send_keys(Keys.ARROW_RIGHT)
        said.add(shown.text("#curves-status"))
    assert len(said) == 3
    curves.send_keys(Keys.SHIFT + Keys.ARROW_RIGHT * 120 + Keys.NULL)
    last = len(planned.plan.schedule) - 1
    assert f"at op {last:,} (" in shown.text("#curves-status")
    assert shown.text("#curves-status").startswith("program is done")


def test_every_budget_has_a_point_and_a_row(shown, planned):
    """The trade-off is a chart and, for those who cannot see it, a table with the plan shown marked."""
    assert ink(shown, "#plan-tradeoff", "after")
    rows = shown.js(BYTES, "#plan .plain-table [data-bytes]")
    assert planned.plan.peak_increase_bytes in rows
    assert rows == sorted(rows, reverse=True)
    marked = shown.js(TEXTS, "#plan tr[aria-current] td:nth-child(2)")
    assert marked == [format_bytes(planned.plan.peak_increase_bytes)]


def test_the_theme_repaints_the_charts(shown):
    """After a switch the charts wear the colours of the other theme."""
    dark = shown.js("return matchMedia('(prefers-color-scheme: dark)').matches")
    shown.js("document.getElementById('theme').click()")
    assert shown.js("return document.documentElement.dataset.theme") == ("light" if dark else "dark")
    assert ink(shown, "#plan-curves", "after")


def test_moves_open_to_single_steps(shown):
    """Each module's entry opens to the recomputed ops, one by one."""
    entry = shown.driver.find_element("css selector", ".move summary")
    shown.js("arguments[0].focus()", entry)
    entry.send_keys(Keys.ENTER)
    assert shown.js("return document.querySelector('.move').open")
    steps = shown.js(TEXTS, ".move[open] li")
    assert steps
    assert all(step.startswith("compute ") and " again before " in step for step in steps)


def test_a_plan_that_was_not_replayed_says_so(quiet, planned, tmp_path):
    """Predictions never look like measurements."""
    page = html(planned.reading, tmp_path / "page.html", plan=planned.plan, tradeoff=())
    quiet.open(page)
    assert "Not replayed" in quiet.text("#plan-replayed")
    assert quiet.js(BYTES, "#plan-measured") == []
    assert quiet.js(TEXTS, "#plan-tradeoff") == []


def test_hostile_op_names_of_a_plan_are_text(quiet, tmp_path):
    """Names of ops appear as spelled in moves and curves, and nothing of them runs."""
    ops = [(f"{text}", [HOSTILE[i - 1]] if i else [], {text: 100}, 1.0) for i, text in enumerate(HOSTILE)]
    back = [
        (f"back {i}", [text, *([f"grad {i + 1}"] if i + 1 < len(HOSTILE) else [])], {f"grad {i}": 100}, 1.0)
        for i, text in reversed(list(enumerate(HOSTILE)))
    ]
    plan = memwatch.plan(Graph.build([*ops, *back], keep=["grad 0"]), budget=700, order="program")
    again = [name for name in HOSTILE if plan.order.count(name) > 1]
    assert again
    quiet.open(html(report_readings.empty(), tmp_path / "page.html", plan=plan, tradeoff=()))
    steps = quiet.js(TEXTS, ".move li")
    assert all(any(step.startswith(f"compute {visible(name)} again") for step in steps) for name in again)
    assert quiet.js("return document.querySelectorAll('svg[onload], img, iframe').length") == 0


def test_leaks_have_a_section_on_the_page_of_a_profile(shown, leaked):
    """Each leak is an entry with its bytes; the title of the page is there too."""
    assert shown.js(BYTES, "#leaks .leak > summary [data-bytes]") == sorted(
        (leak.nbytes for leak in leaked), reverse=True
    )
    assert shown.text("#about") == "one step on cpu"


def test_the_page_of_leaks_names_holder_path_and_advice(quiet, leaked, tmp_path):
    """Every leak has its bytes, the line that made it, its path and the change to make. All fold at once."""
    quiet.open(leak_page(leaked, tmp_path / "leaks.html", title="tests/test_a.py::test_b"))
    assert quiet.js("return document.title").endswith("leaked by tests/test_a.py::test_b")
    assert quiet.js(BYTES, "#leaked-bytes") == [sum(leak.nbytes for leak in leaked)]
    ordered = sorted(leaked, key=lambda leak: -leak.nbytes)
    assert quiet.js(TEXTS, ".leak > summary .holder") == bare(leak.holder for leak in ordered)
    assert quiet.js(TEXTS, ".leak > summary .tag") == [leak.kind.row.label for leak in ordered]
    assert quiet.js(TEXTS, ".leak .advice") == bare(leak.advice for leak in ordered)
    assert quiet.js(TEXTS, ".leak .path li") == bare(edge for leak in ordered for edge in leak.path)
    opened = "return [...document.querySelectorAll('details.leak')].filter((each) => each.open).length"
    for button, number in ((2, 0), (1, len(leaked))):
        quiet.js(f"document.querySelector('.fold-all:nth-child({button})').click()")
        assert quiet.js(opened) == number
    before = quiet.js("return getComputedStyle(document.body).backgroundColor")
    quiet.js("document.getElementById('theme').click()")
    assert quiet.js("return getComputedStyle(document.body).backgroundColor") != before


def test_hostile_leaks_are_text(quiet, tmp_path):
    """Names in a leak appear as spelled, and nothing of them runs."""
    leaks = [
        Leak("retained", 8 * (len(HOSTILE) - i), 1, text, (text, text), text, text, tensor=text)
        for i, text in enumerate(HOSTILE)
    ]
    page = leak_page(leaks, tmp_path / "leaks.html", title=HOSTILE[0])
    quiet.open(page)
    wanted = [visible(text) for text in HOSTILE]
    for selector in (".leak > summary .holder", ".leak .advice"):
        assert quiet.js(TEXTS, selector) == bare(wanted)
    assert quiet.js(TEXTS, ".leak .site") == wanted
    assert quiet.js(TEXTS, ".leak .path li") == bare(text for text in wanted for _ in range(2))
    assert quiet.text("#about") == wanted[0]
    assert quiet.js("return document.title").startswith("memwatch")
    assert quiet.js("return document.scripts.length") == 2
    assert page.stat().st_size < 300_000


def test_no_leaks_are_a_page_too(quiet, tmp_path):
    """An empty list says that nothing leaked, and has no buttons for a list."""
    quiet.open(leak_page([], tmp_path / "leaks.html"))
    assert "No tensor leaked." in quiet.text("#leaks")
    assert quiet.js("return document.querySelectorAll('.fold-all').length") == 0


def test_an_arrow_in_a_path_is_not_broken():
    assert str(marked("`t` of a -> list")) == '<code>t</code> of a <span class="nowrap">-&gt;</span> list'


def test_modules_fold_by_mouse(shown, planned):
    """A click on the arrow hides all that is below a module, another shows it again; the address knows."""
    shown.click("#tab-modules")
    everything = shown.row_keys()
    assert everything[0] == "model"
    shown.click("[aria-label='Fold blocks.0']")
    assert shown.row_keys() == [name for name in everything if not name.startswith("blocks.0.")]
    assert shown.state()["fold"] == str(planned.reading.modules.index.get_loc("blocks.0"))
    shown.act(shown.driver.back)
    assert shown.row_keys() == everything
    shown.click("#fold-modules")
    parent = planned.reading.modules["parent"]
    roots = [name for name in everything if not parent[name]]
    assert shown.row_keys() == roots
    shown.click("#unfold-modules")
    assert shown.row_keys() == everything


def test_modules_fold_by_keyboard(shown):
    """Left folds, right unfolds, up and down move; the focus stays on the arrow that was used."""
    shown.click("#tab-modules")
    everything = shown.row_keys()
    focused = "return document.activeElement.getAttribute('aria-label')"
    shown.js("document.querySelector(\"[aria-label='Fold model']\").focus()")
    shown.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert shown.js(focused) == "Fold blocks"
    shown.act(lambda: shown.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT))
    assert shown.js(focused) == "Unfold blocks"
    assert shown.row_keys() == [name for name in everything if not name.startswith("blocks.")]
    shown.act(lambda: shown.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT))
    assert shown.row_keys() == everything
    shown.driver.switch_to.active_element.send_keys(Keys.ARROW_UP)
    assert shown.js(focused) == "Fold model"


def test_a_filter_looks_into_folded_modules(quiet, page):
    quiet.open(page, "#tab=modules&fold=0&q=gelu")
    found = [key for key in quiet.row_keys() if key.startswith("blocks.")]  # other tests may have left models
    assert sorted(found) == ["blocks.0.mlp.1", "blocks.1.mlp.1"]


def test_the_icicle_puts_the_root_module_on_top(quiet, page, planned):
    """In the order by module the root's cell is as large as its row in the tree, and lists the same storages."""
    quiet.open(page, "#by=module")
    tops = "document.querySelector('#flame g.frame').__data__.data.children.map((cell) => cell.name)"
    cell = quiet.js(f"return {tops}").index("model")  # beside it stands what other tests left in the process
    quiet.open(page, f"#by=module&cell={cell}")
    modules = planned.reading.modules
    assert quiet.live_bytes() == modules["inclusive_bytes"]["model"]
    labels = quiet.js(TEXTS, "#flame .d3-flame-graph-label")
    assert "model" in labels
    assert "blocks.0" in labels


def test_phases_and_holders_at_the_peak_split_it(quiet, page, planned):
    """The icicle by phase and the columns of the table hold what `at_peak` says."""
    quiet.open(page, "#by=life")
    cells = "[...document.querySelectorAll('#flame g.frame[data-level=phase]')]"
    drawn = dict(quiet.js(f"return {cells}.map((g) => [g.__data__.data.name, g.__data__.data.value])"))
    assert drawn == planned.reading.at_peak.groupby("phase")["nbytes"].sum().to_dict()
    at_peak = planned.reading.at_peak
    phases, holders = quiet.column(6), quiet.column(8)
    for key, phase, holder in zip(map(int, quiet.row_keys()), phases, holders, strict=True):
        assert phase == at_peak["phase"][key]
        assert holder == at_peak["holder"][key].replace("`", "")


def test_findings_say_what_the_peak_would_fall_to(quiet, tmp_path):
    """Each finding shows the peak with it alone mended, and above them stands the peak with all mended."""

    def wasteful() -> torch.Tensor:
        kept = torch.ones(100_000)
        other = torch.ones(80_000)
        total = kept.sum() + other.sum()
        return torch.ones(200_000) * total

    with memwatch.profile() as prof:
        wasteful()
    assert len(prof.findings) > 1
    quiet.open(html(prof, tmp_path / "page.html"))
    alone = [finding.predicted_peak_bytes for finding in prof.findings]
    assert quiet.js(BYTES, ".finding .predicted [data-bytes]") == alone
    assert quiet.js(BYTES, "#together-bytes") == [prof.findings[0].together_peak_bytes]
