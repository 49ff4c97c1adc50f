"""One instant for the whole page, and the links from one part of it to another, in a real browser."""

from __future__ import annotations

from pathlib import Path

import axe_core_python
import pytest
import torch
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from torch import nn

import memwatch
from memwatch.report import html
from memwatch.sizes import format_bytes

AXE = Path(axe_core_python.__file__).with_name("axe.min.js")
CHART_WIDTHS = """
    const charts = [...document.querySelectorAll("#plot .uplot, #process-plot .uplot, #flame svg")];
    return charts.map((chart) => chart.getBoundingClientRect().width);
"""
"""The widths of the curve, of the band of the process and of the picture of the parts."""
DRAWN = "return document.querySelector(arguments[0]).getClientRects().length > 0"


@pytest.fixture(scope="module")
def reading():
    """Three steps of a small network whose outputs are kept for nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    with memwatch.profile() as prof:
        for _ in range(3):
            hidden = model[1](model[0](torch.ones(256, 64)))
            outputs.append(hidden)
            optimizer.zero_grad()
            model[2](hidden).sum().backward()
            optimizer.step()
            prof.step()
    return prof


@pytest.fixture(scope="module")
def page(reading, tmp_path_factory):
    return html(reading, tmp_path_factory.mktemp("page") / "links.html")


@pytest.fixture(scope="module")
def opened(browser, page):
    browser.open(page)
    return browser


@pytest.fixture
def shown(opened, page):
    """The page as it is at the peak; whatever a test does, nothing is requested and the console stays silent."""
    if opened.js("return location.href.split('#')[0]") != page.as_uri():
        opened.open(page)
    if opened.state():
        opened.go("")
    opened.forget()
    yield opened
    assert opened.console() == []
    assert opened.requests() <= {page.as_uri(), "data:,"}


def everywhere(browser) -> dict[str, int | str]:
    """Return the instant as each part of the page says it."""
    cells = "document.querySelector('#flame g.frame').__data__.data.value"
    legend = "[...document.querySelectorAll('#key button')].reduce((sum, each) => sum + Number(each.dataset.bytes), 0)"
    return {
        "table": browser.live_bytes(),
        "icicle": browser.js(f"return {cells}"),
        "legend": browser.js(f"return {legend}"),
        "name": browser.text("#instant-name").lower(),
        "header": browser.text("#instant-bytes"),
        "where": browser.text("#instant-where"),
        "lines": browser.text("#source-title"),
        "findings": browser.text(".finding .now"),
        "marks": browser.js("return document.querySelector('#plot canvas.marks').toDataURL()"),
    }


def same_instant(browser, reading, event: int) -> str:
    """Check that every part shows one event: its bytes, and in the header its step, phase, time and device.

    Returns:
        The picture of the marks on the curve.
    """
    told, live = everywhere(browser), int(reading.timeline["live_bytes"].iloc[event])
    assert (told["table"], told["icicle"], told["legend"]) == (live, live, live)
    assert told["header"] == f"{format_bytes(live)} live on {reading.device}"
    assert told["name"] == ("peak" if event == reading.peak_event else f"event {event:,}")
    assert "after the start" in told["where"]
    when = "at the peak" if told["name"].startswith("peak") else f"at event {event:,}"
    assert told["lines"].endswith(when)
    assert told["findings"].endswith(when)
    op = int(reading.timeline["op"].iloc[event])
    if op >= 0:
        assert f"step {reading.ops['step'][op]} · {reading.ops['phase'][op]} ·" in told["where"]
        assert f"op {op}" in told["where"]
    return str(told["marks"])


def test_an_instant_chosen_anywhere_is_shown_everywhere(shown, reading):
    """Address, slider, keys, a step's peak: curve, icicle, table, legend, lines, findings and header move together."""
    peak = reading.peak_event
    marks = [same_instant(shown, reading, peak)]
    shown.go("at=7")
    marks.append(same_instant(shown, reading, 7))
    body = shown.driver.find_element("css selector", "body")
    shown.act(lambda: body.send_keys("]"))
    marks.append(same_instant(shown, reading, 8))
    shown.act(lambda: shown.driver.find_element("id", "scrub").send_keys(Keys.ARROW_RIGHT))
    same_instant(shown, reading, 9)
    shown.click("#tab-steps")
    shown.act(
        lambda: shown.js("document.querySelectorAll('#panel tbody tr')[1].querySelector('button').click()")
    )
    op = int(reading.steps["peak_op"][1])
    assert reading.timeline["op"].iloc[int(shown.state()["at"])] == op
    shown.go("at=3")
    shown.click("#back-to-peak")
    same_instant(shown, reading, peak)
    assert len({*marks}) == len(marks)


def test_dragging_the_mark_moves_the_instant(shown, reading):
    """The mark of the instant can be taken and moved along the curve; the rest of the page goes with it."""
    area = shown.driver.find_element("css selector", ".u-over")
    chain = ActionChains(shown.driver, duration=10).key_down(Keys.SHIFT)
    chain.move_to_element_with_offset(area, -300, 20).click_and_hold().move_by_offset(60, 0).move_by_offset(
        60, 0
    )
    shown.act(chain.release().key_up(Keys.SHIFT).perform)
    shown.wait(lambda: "at" in shown.state())
    assert "zoom" not in shown.state()
    same_instant(shown, reading, int(shown.state()["at"]))


def test_two_instants_are_compared(shown, reading):
    """Births and deaths between two instants are listed with their bytes.

    The header and the icicle show the sums.
    """
    before, after = 6, reading.peak_event
    shown.go(f"at={before}")
    shown.click("#compare")
    shown.click("#back-to-peak")
    old, new = reading.live_at(before), reading.live_at(after)
    born, died = new.index.difference(old.index), old.index.difference(new.index)
    changes = dict(zip(map(int, shown.row_keys()), shown.column(1), strict=True))
    assert changes == dict.fromkeys(born, "born") | dict.fromkeys(died, "died")
    words = shown.text("#compared")
    assert f"{format_bytes(new['nbytes'][born].sum())} allocated" in words
    assert f"{format_bytes(old['nbytes'][died].sum())} freed" in words
    levels = "return [...document.querySelectorAll('#flame g.frame')].map((g) => g.__data__.data.level)"
    assert "change" in shown.js(levels)
    assert shown.text("#icicle-title") == "what changed from event 6 to the peak"
    assert "since event 6" in words
    assert (
        shown.text("#key-title") == "By category: the change from event 6 to the peak, and the bytes after it"
    )
    activation = shown.text("#key button[data-group=activation]")
    assert activation.endswith(f"to {format_bytes(new['nbytes'][new['category'] == 'activation'].sum())}")
    shown.go(f"at={before}&than={after}")
    assert dict(zip(map(int, shown.row_keys()), shown.column(1), strict=True)) == changes, (
        "later is not born first"
    )
    assert shown.text("#icicle-title") == "what changed from event 6 to the peak"
    assert "until the peak" in shown.text("#compared")
    shown.go(f"than={before}")
    shown.click("#compare")
    assert "than" not in shown.state()
    assert shown.live_bytes() == reading.peak_bytes


@pytest.mark.parametrize("name", ["module", "phase", "dtype", "device", "holder", "line", "category"])
def test_each_dimension_groups_and_colours(shown, reading, name):
    """The cells of the icicle and the colours of the legend split the live set by it without a rest."""
    shown.go(f"by={name}&color={name}")
    top = "[...document.querySelectorAll('#flame g.frame')].filter((g) => g.__data__.depth === 1)"
    cells = shown.js(f"return {top}.map((g) => [g.__data__.data.name, g.__data__.data.value])")
    # cells under a pixel
    assert sum(value for _, value in cells) == pytest.approx(reading.peak_bytes, rel=0.005)
    assert everywhere(shown)["legend"] == reading.peak_bytes
    if name in ("dtype", "device"):
        wanted = {"dtype": "float32", "device": "cpu"}[name]
        assert cells == [[wanted, reading.peak_bytes]]
    elif name == "category":
        assert dict(cells).items() <= reading.at_peak.groupby("category")["nbytes"].sum().to_dict().items()
    first = shown.js("return document.querySelector('#key button').dataset.group")
    shown.click("#key button")
    assert shown.state()["pick"] == f"group:{first}"
    assert 0 < shown.live_bytes() <= reading.peak_bytes


def test_the_colours_are_those_of_the_curve(shown, reading):
    """Coloured by another dimension the curve has its groups, and the live bytes of the event pointed at."""
    plot = shown.driver.find_element("id", "plot")
    for color, group in (("category", "activation "), ("phase", "forward ")):
        shown.go(f"color={color}&axis=events")
        shown.js("arguments[0].focus()", plot)
        plot.send_keys(Keys.ARROW_LEFT)
        said = shown.text("#plot-status")
        event = int(said.removeprefix("event ").partition(":")[0])
        assert f": {format_bytes(reading.timeline['live_bytes'][event])} live" in said
        assert group in said


def test_findings_storages_lines_and_modules_lead_to_each_other(shown, reading):
    """From a finding to its storages, from one of them to its line, from the line to its storages, and back."""
    finding = reading.findings[0]
    alive = sorted(set(finding.storages) & set(reading.at_peak.index))
    shown.click(".finding .to-storages")
    assert sorted(map(int, shown.row_keys())) == alive
    assert int(shown.js("return document.querySelector('.finding .now').dataset.bytes")) == shown.live_bytes()
    shown.click("#panel tbody td button.link")
    assert f"(finding {1})" in shown.text("#storage-body")
    own = reading.storages["own_line"][int(shown.state()["storage"])]
    shown.click("#storage-body .to-line")
    assert shown.state()["pick"] == f"line:{own}"
    made_here = reading.at_peak["own_line"] == own
    assert sorted(map(int, shown.row_keys())) == sorted(reading.at_peak.index[made_here])
    current = "[...document.querySelectorAll('#source tr[aria-current]')]"
    assert shown.js(f"return {current}.map((row) => row.dataset.line)") == [own]
    shown.click("#panel tbody .to-module")
    module = shown.state()["pick"].removeprefix("module:")
    inside = reading.at_peak["module"].map(lambda name: name == module or name.startswith(f"{module}."))
    assert shown.live_bytes() == reading.at_peak["nbytes"][inside].sum()
    shown.click("#tab-modules")
    shown.js("document.querySelector('#panel tbody .tag').click()")
    shown.wait(lambda: shown.state().get("pick") == "finding:0")
    assert shown.js("return document.querySelector('.finding').open")
    shown.click("#clear-pick")
    assert shown.live_bytes() == reading.peak_bytes


def test_a_finding_can_be_read_without_a_click(browser, page, reading):
    """The first findings are open; names are shown as code, and the line without its outer folders."""
    browser.open(page)
    assert browser.js("return document.querySelector('.finding').open")
    place, site = browser.text(".finding summary > code:last-child"), reading.findings[0].site
    assert site.endswith(f"/{place}")
    assert "`" not in browser.text(".finding") + browser.text(".totals")
    assert "`" in reading.findings[0].holder
    assert browser.js("return [...document.querySelectorAll('.finding span code')].length") > 0


def test_a_finding_leads_to_the_instant_at_which_it_is_largest(shown, reading):
    """There all bytes that the finding is about are alive, as many as they ever are at once."""
    finding, timeline = reading.findings[0], reading.timeline
    shown.go("at=1")
    shown.click(".finding .to-instant")
    mine = timeline["delta_bytes"].where(timeline["storage"].isin(finding.storages), 0).cumsum()
    assert int(shown.js("return document.querySelector('.finding .now').dataset.bytes")) == mine.max()


def test_own_lines_stand_beside_their_bytes(shown, reading):
    """Each line of the program shows what it made of the live set; the longest bar is that of the line with most."""
    rows = "[...document.querySelectorAll('#source tr[data-line]')]"
    told = shown.js(
        f"return {rows}.map((r) => [r.dataset.line, Number(r.querySelector('button')?.dataset.bytes ?? 0), "
        "Number(r.querySelector('.heat rect')?.getAttribute('width') ?? 0), r.querySelector('.code').textContent])"
    )
    sums = reading.at_peak.groupby("own_line")["nbytes"].sum()
    assert {line: nbytes for line, nbytes, *_ in told if nbytes} == sums[sums.index != ""].to_dict()
    hottest = max(told, key=lambda row: row[1])
    assert [width for _, _, width, _ in told] == pytest.approx(
        [100 * nbytes / hottest[1] for _, nbytes, *_ in told]
    )
    assert "model" in hottest[3]


def test_your_lines_are_lines_of_your_own_code(shown, reading):
    """The frames of pytest, which called this program, and of torch are not listed; callers count what they called."""
    assert any(
        "site-packages" in frame[0]
        for frame in reading.stack(int(reading.at_peak.join(reading.storages["stack"])["stack"].max()))
    )
    lines = shown.js(
        "return [...document.querySelectorAll('#source tr[data-line]')].map((row) => row.dataset.line)"
    )
    files = shown.js(
        "return [...document.querySelectorAll('#source .file summary code')].map((file) => file.textContent)"
    )
    of_xdist = "<string>"  # the code that starts its workers
    assert [file for file in files if file != of_xdist] == [__file__]
    assert {line.rpartition(":")[0] for line in lines} - {of_xdist} == {__file__}


def test_the_life_of_a_storage_leads_to_its_instants(shown, reading):
    """From the dialog to its birth and its death: it is alive in the first live set and not in the second."""
    timeline = reading.timeline
    storage = next(
        int(row.Index) for row in reading.storages.itertuples()
        if row.birth_event > 0 and row.death_event > 0 and row.first_use_op >= 0
    )  # fmt: skip
    for step, event in ((0, "birth_event"), (-1, "death_event")):
        shown.go(f"storage={storage}")
        shown.wait(lambda: shown.js("return document.querySelector('.biography canvas') !== null"))
        shown.act(lambda step=step: shown.js(
            "[...document.querySelectorAll('#storage-body .to-instant')].at(arguments[0]).click()", step
        ))  # fmt: skip
        assert int(shown.state()["at"]) == reading.storages[event][storage]
        assert (str(storage) in shown.row_keys()) == (event == "birth_event")
        assert shown.live_bytes() == timeline["live_bytes"].iloc[int(shown.state()["at"])]


def test_a_holder_can_be_read_whole(shown, reading):
    """The cell unfolds with a click or the keyboard; a switch unfolds all of them."""
    cell = shown.driver.find_element("css selector", "#panel tbody .unfold")
    shown.js("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", cell)
    width = "return arguments[0].scrollWidth > arguments[0].clientWidth"
    holder = reading.at_peak["holder"].iloc[0]
    assert cell.text == holder.replace("`", "")
    names = [code.text for code in cell.find_elements("css selector", "code")]
    assert names == holder.split("`")[1::2]  # text between backticks is shown as code
    shown.js("arguments[0].focus()", cell)
    cell.send_keys(Keys.ENTER)
    assert cell.get_attribute("aria-expanded") == "true"
    assert not shown.js(width, cell)
    shown.act(lambda: shown.js("document.getElementById('wrap').click()"))
    cells = shown.driver.find_elements("css selector", "#panel tbody .unfold")
    assert not any(shown.js(width, each) for each in cells)
    assert shown.state() == {"wrap": "yes"}


def test_the_search_is_that_of_developer_tools(shown, reading):
    """`/` opens it; it filters, marks and counts, Enter walks through the matches, Escape lets go of them."""
    shown.driver.find_element("css selector", "body").send_keys("/")
    box = shown.driver.switch_to.active_element
    assert box.get_attribute("id") == "find"
    shown.act(lambda: box.send_keys("gelu"))
    shown.wait(lambda: shown.state().get("q") == "gelu")
    rows = reading.at_peak
    is_gelu = (
        rows.select_dtypes(["object", "string"]).apply(lambda each: each.str.contains("gelu")).any(axis=1)
    )
    shown.wait(lambda: len(shown.row_keys()) == is_gelu.sum())
    assert shown.text("#find-count").startswith(f"{is_gelu.sum()} row")
    box.send_keys(Keys.ENTER)
    box.send_keys(Keys.ENTER)
    assert shown.text("#find-count").startswith("2 of ")
    assert shown.js("return document.querySelectorAll('.hit-now').length") == 1
    shown.act(lambda: box.send_keys(Keys.ESCAPE))
    assert "q" not in shown.state()
    shown.go("q=/^activation$/")
    assert {rows["category"][int(key)] for key in shown.row_keys()} == {"activation"}
    shown.go("q=/(/")
    assert shown.row_keys() == []


def test_a_printed_page_is_a_summary(shown):
    """On paper there are the figures, the curve and the findings, open and light; no buttons."""
    shown.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown.js("window.dispatchEvent(new Event('beforeprint'))")
    try:
        assert not any(shown.js(DRAWN, each) for each in ("#find", "#tabs", ".top nav", "#axis"))
        assert all(shown.js(DRAWN, each) for each in ("#peak-bytes", "#plot", "#instant", ".finding p"))
        assert shown.js("return document.documentElement.dataset.theme") == "light"
        assert shown.js("return document.querySelector('.finding').open")
        sheet = "return document.body.getBoundingClientRect().width"
        assert all(width <= shown.js(sheet) + 1 for width in shown.js(CHART_WIDTHS))
    finally:
        shown.js("window.dispatchEvent(new Event('afterprint'))")
        shown.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown.js("return document.documentElement.dataset.theme ?? ''") == ""
    assert max(shown.js(CHART_WIDTHS)) > 1000


@pytest.mark.parametrize(("theme", "fragment"), [("light", "storage=1"), ("dark", "at=9&than=peak")])
def test_axe_finds_nothing(shown, theme, fragment):
    """The page breaks no rule of axe-core, in light with a storage open, in dark where two instants are compared."""
    shown.js(f"document.documentElement.dataset.theme = '{theme}'")
    shown.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()})
    run = """
        const told = ({id, nodes}) => `${id}: ${nodes[0].html} ${nodes[0].failureSummary}`;
        axe.run().then((found) => arguments[0](found.violations.map(told)));
    """
    shown.go(fragment)
    assert shown.driver.execute_async_script(run) == []
    shown.js("delete document.documentElement.dataset.theme")
