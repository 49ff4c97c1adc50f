"""The page in a real browser, driven as a user drives it."""

from __future__ import annotations

import pytest
import report_readings
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from memwatch.kinds.roles import CATEGORIES
from memwatch.report import html
from memwatch.report.facts import repeated_layers
from memwatch.sizes import format_bytes


@pytest.fixture(scope="module")
def page(training, tmp_path_factory):
    return html(training, tmp_path_factory.mktemp("page") / "gpt.html")


@pytest.fixture
def shown(browser, page):
    """The page, opened afresh; whatever a test does, nothing is requested and the console stays silent."""
    browser.open(page)
    yield browser
    assert browser.console() == []
    assert browser.requests() <= {page.as_uri(), "data:,"}


def over(browser):
    return browser.driver.find_element("css selector", ".u-over")


def drag(browser, start: float, end: float) -> None:
    """Drag across the timeline, from one share of its width to another."""
    area = over(browser)
    width = area.size["width"]
    chain = ActionChains(browser.driver, duration=20)
    chain.move_to_element_with_offset(area, int((start - 0.5) * width), 0).click_and_hold()
    chain.move_by_offset(int((end - start) / 2 * width), 0).move_by_offset(
        int((end - start) / 2 * width), 0
    ).release()
    browser.act(chain.perform)


def test_the_totals_are_those_of_the_reading(shown, training):
    """Peak, baseline and increase stand in the document, in bytes and in words."""
    for element, nbytes in {
        "#peak-bytes": training.peak_bytes,
        "#baseline-bytes": training.baseline_bytes,
        "#increase-bytes": training.peak_increase_bytes,
    }.items():
        assert shown.text(element) == format_bytes(nbytes)
        assert int(shown.js(f"return document.querySelector('{element}').dataset.bytes")) == nbytes
    assert shown.text("#op-count") == f"{len(training.ops):,}"


def test_the_first_sentence_says_what_the_peak_is_made_of(shown, training):
    """The largest category and the line that made most, with their shares; then what the first finding would do."""
    at_peak = training.at_peak
    sums = at_peak.groupby("category")["nbytes"].sum()
    said = shown.text("#headline")
    largest = said.split(". ")[0]
    assert f"The largest part of the peak is {sums.idxmax()}" in largest
    assert f"({100 * sums.max() / training.peak_bytes:.0f} %)" in largest
    assert ("If you fix the finding below" in said) is bool(training.findings)


def test_the_code_that_stands_open_needs_no_decision(shown, training):
    """Of the changes that would lower the peak, one is open: the first that a user can take as it is."""
    expected = [way.lines for way in training.ways.itertuples() if not way.decision][:1]
    assert expected
    assert training.ways["decision"][0], "the first change alone would be open without the rule"
    opened = shown.js(
        "return [...document.querySelectorAll('#ways details.way[open]')].map((way) => "
        "[...way.querySelectorAll('ins .text')].map((line) => line.textContent).join('\\n'))"
    )
    assert [code.strip() for code in opened] == [code.strip() for code in expected]


def test_the_categories_add_up_to_the_peak(shown, training):
    """The legend splits the peak without a rest."""
    sizes = shown.js(
        "return [...document.querySelectorAll('#key button')].map((b) => Number(b.dataset.bytes))"
    )
    assert sum(sizes) == training.peak_bytes


def test_the_live_set_is_that_of_the_peak(shown, training):
    """The first table lists what was live at the peak, largest first."""
    assert [int(key) for key in shown.row_keys()] == training.at_peak.index.tolist()
    assert shown.live_bytes() == training.peak_bytes
    assert shown.column(2) == [format_bytes(nbytes) for nbytes in training.at_peak["nbytes"]]


def test_a_heading_sorts_and_sorts_back(shown, training):
    """A click on a heading sorts by it, a second click turns the order around."""
    shown.click("th[data-column=nbytes] button")
    sizes = training.at_peak["nbytes"]
    assert [sizes[int(key)] for key in shown.row_keys()] == sorted(sizes)
    shown.click("th[data-column=nbytes] button")
    assert [sizes[int(key)] for key in shown.row_keys()] == sorted(sizes, reverse=True)
    shown.click("th[data-column=category] button")
    categories = [training.at_peak["category"][int(key)] for key in shown.row_keys()]
    assert categories == sorted(categories)
    assert shown.js("return document.querySelector('th[data-column=category]').ariaSort") == "ascending"


def test_typing_filters_the_rows(shown, training):
    """The words of the filter may stand in any column, in any order; `column:word` looks in one."""
    box = shown.driver.find_element("id", "find")
    shown.act(lambda: box.send_keys("p"))
    box.clear()
    shown.go("q=module:blocks.0 activation")
    rows = training.at_peak
    in_block = rows["module"].str.contains("blocks.0", regex=False) & (rows["category"] == "activation")
    assert sorted(int(key) for key in shown.row_keys()) == sorted(rows.index[in_block])
    assert shown.live_bytes() == rows["nbytes"][in_block].sum()


def test_any_instant_shows_what_was_live_then(shown, training):
    """The live set at an event is `live_at` of it, and its bytes are the timeline's."""
    timeline = training.timeline
    for event in range(0, len(timeline), len(timeline) // 12):
        shown.go(f"at={event}")
        alive = training.live_at(event)
        assert sorted(int(key) for key in shown.row_keys()) == sorted(alive.index[alive["nbytes"] > 0])
        assert shown.live_bytes() == timeline["live_bytes"].iloc[event]


def test_a_click_on_the_timeline_picks_the_instant(shown, training):
    """A click shows the live set of the event drawn there; a button leads back to the peak."""
    area = over(shown)
    shown.act(lambda: ActionChains(shown.driver).move_to_element_with_offset(area, 57, 10).click().perform())
    event = int(shown.state()["at"])
    assert shown.live_bytes() == training.timeline["live_bytes"].iloc[event]
    assert f"event {event:,}" in shown.text("#icicle-title")
    shown.click("#back-to-peak")
    assert "at" not in shown.state()
    assert shown.live_bytes() == training.peak_bytes


def test_dragging_zooms_and_a_double_click_shows_the_whole_run(shown, training):
    """A drag zooms into the part of the run dragged over."""
    shown.go("axis=time")
    drag(shown, 0.4, 0.6)
    start, end = (float(x) for x in shown.state()["zoom"].split("_"))
    span = training.timeline["time_ns"].max() * 1.01
    assert start / span == pytest.approx(0.4, abs=0.02)
    assert end / span == pytest.approx(0.6, abs=0.02)
    drag(shown, 0.25, 0.75)
    inner = [float(x) for x in shown.state()["zoom"].split("_")]
    assert start < inner[0] < inner[1] < end
    shown.act(lambda: ActionChains(shown.driver).double_click(over(shown)).perform())
    assert "zoom" not in shown.state()


def test_the_step_of_the_peak_fills_the_chart_at_a_click(shown, training):
    """Over time and over events, the chart then has the peak in it, and less than the whole run."""
    for axis, column in (("time", "time_ns"), ("events", None)):
        shown.go(f"axis={axis}")
        shown.click("#zoom-step")
        start, end = (float(x) for x in shown.state()["zoom"].split("_"))
        xs = training.timeline[column] if column else training.timeline.index.to_series()
        assert start <= xs[training.timeline["live_bytes"].idxmax()] <= end
        assert end - start < 0.9 * xs.max()


def test_the_timeline_can_run_over_events(shown, training):
    """Across events instead of time, the zoom and the click keep their meaning."""
    shown.go("axis=events&zoom=10_20")
    ActionChains(shown.driver).move_to_element(over(shown)).perform()
    status = shown.text("#plot-status")
    assert status.startswith(("event 14:", "event 15:"))
    live = training.timeline["live_bytes"].iloc[int(status.split()[1].rstrip(":"))]
    assert format_bytes(live) in status


def test_back_and_forward_walk_through_what_was_shown(shown):
    """Every step stands in the address, so that the browser's own buttons undo and redo it."""
    shown.go("at=5")
    first = shown.live_bytes()
    shown.click("#tab-modules")
    assert shown.state() == {"at": "5", "tab": "modules"}
    shown.act(shown.driver.back)
    assert shown.state() == {"at": "5"}
    assert shown.live_bytes() == first
    shown.act(shown.driver.forward)
    assert shown.js("return document.getElementById('tab-modules').ariaSelected") == "true"


def test_an_address_shows_what_it_says(browser, page, training):
    """A page opened with a fragment shows the same as the one it was copied from."""
    browser.open(page, "#at=9&tab=live&sort=nbytes:asc&by=line")
    sizes = training.live_at(9)["nbytes"]
    assert [sizes[int(key)] for key in browser.row_keys()] == sorted(size for size in sizes if size)
    assert browser.js("return document.getElementById('by-first').value") == "line"


CLICK_CELL = """
const cell = document.querySelectorAll("#flame g.frame")[arguments[0]];
cell.dispatchEvent(new MouseEvent("click", { bubbles: true }));
return cell.__data__.data.value;
"""


@pytest.mark.parametrize("order", ["category", "module", "line", "holder"])
def test_a_cell_of_the_icicle_lists_its_storages(shown, page, order):
    """A click on a cell shows rows that add up to the bytes the cell says it has."""
    cells = "return document.querySelectorAll('#flame g.frame').length"
    for share in (0.1, 0.4, 0.9):
        shown.open(page, f"#order={order}")
        index, said = int(share * shown.js(cells)), []
        shown.act(lambda index=index, said=said: said.append(shown.js(CLICK_CELL, index)))
        assert shown.live_bytes() == said[0]
        assert 0 < said[0] < training_peak(shown)


def training_peak(browser) -> int:
    return int(browser.js("return document.getElementById('peak-bytes').dataset.bytes"))


def test_the_icicle_holds_the_whole_peak(shown, training):
    """The root is the peak, and each cell is as large as the cells in it."""
    inner = "(g.__data__.data.children ?? []).reduce((sum, cell) => sum + cell.value, 0)"
    frames = "[...document.querySelectorAll('#flame g.frame')]"
    cells = shown.js(f"return {frames}.map((g) => [g.__data__.data.value, {inner}])")
    assert cells[0][0] == training.peak_bytes
    assert all(inner in (0, own) for own, inner in cells)


def test_categories_have_one_order_on_the_page(shown, training):
    """The bar of the peak, the legend of the curve and the icicle name them from left to right alike."""
    frames = "[...document.querySelectorAll('#flame g.frame')].sort((a, b) => a.__data__.x0 - b.__data__.x0)"
    cells = shown.js(
        f"return {frames}.map((g) => g.__data__.data).filter((d) => d.level === 'category').map((d) => d.name)"
    )
    legend = shown.js(
        "return [...document.querySelectorAll('#key [data-group]')].map((b) => b.dataset.group)"
    )
    bar = "[...document.querySelectorAll('#made-of [data-part-of-peak] > [data-category]')]"
    parts = shown.js(f"return {bar}.map((part) => part.dataset.category)")
    assert cells == [name for name in CATEGORIES if name in cells]
    assert legend == [name for name in CATEGORIES if name in legend]
    assert parts[:-1] == [
        name for name in CATEGORIES if name in parts[:-1]
    ]  # the last may be the small parts
    sizes = training.at_peak.groupby("category")["nbytes"].sum()
    assert cells != list(sizes[cells].sort_values(ascending=False).index)


def test_the_keyboard_is_enough(shown):
    """The timeline and the icicle take focus; arrows, plus, Enter and Escape do what the mouse does."""
    plot = shown.driver.find_element("id", "plot")
    # a click needs all of the plot in the window
    shown.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    plot.click()
    plot.send_keys(Keys.ARROW_RIGHT * 3)
    shown.act(lambda: plot.send_keys(Keys.ENTER))
    assert int(shown.state()["at"]) >= 3
    shown.act(lambda: plot.send_keys("+"))
    assert "zoom" in shown.state()
    shown.act(lambda: plot.send_keys(Keys.ESCAPE))
    assert "zoom" not in shown.state()
    cell = shown.driver.find_elements("css selector", "#flame g.frame")[2]
    shown.js("arguments[0].focus()", cell)
    shown.act(lambda: shown.driver.switch_to.active_element.send_keys(Keys.ENTER))
    assert shown.state()["cell"]


def test_a_storage_shows_its_stack(shown, training):
    """The dialog of a storage holds its line, its rule and the frames of its birth."""
    made = training.at_peak[training.at_peak["line"] != ""].index[0]
    row = training.storages.loc[made]
    shown.go(f"storage={made}")
    shown.wait(lambda: shown.js("return document.getElementById('storage').open"))
    text = shown.text("#storage-body")
    assert row["rule"] in text
    assert training.at_peak["holder"][made].replace("`", "") in text  # names are shown as code
    life = shown.js("return {...document.querySelector('.biography').dataset}")
    assert (int(life["first"]), int(life["last"])) == (row["first_use_op"], row["last_use_op"])
    used = training.uses[training.uses["storage"] == made]["op"].unique()
    assert [int(op) for op in life["uses"].split()] == sorted(used)
    legend = shown.text("#storage-body .layers")
    meanings = {
        "lag": "before the first use",
        "use": "to the last use",
        "drag": "after the last use",
        "void": "never used",
    }
    assert all(
        f"{phase} " in legend and meaning in legend
        for phase, meaning in meanings.items()
        if row[f"{phase}_ns"]
    )
    assert ("an op that uses it" in legend) == bool(len(used))
    file, line, function, _ = next(frame for frame in training.stack(row["stack"]) if frame[3])
    *_, folder, name = file.split("/")
    assert f"…/{folder}/{name}:{line}" in text
    assert shown.js("return document.querySelector('#storage-body .stack code').title") == f"{file}:{line}"
    assert function in text
    shown.act(lambda: shown.driver.switch_to.active_element.send_keys(Keys.ESCAPE))
    assert "storage" not in shown.state()


def test_saved_tensors_modules_and_steps_have_their_tables(shown, training):
    """The other tables hold every row of the reading; modules stand under the module that holds them."""
    shown.click("#tab-saved")
    assert len(shown.row_keys()) == training.saved["at_peak"].sum()
    shown.go("tab=saved&saved=all")
    assert len(shown.row_keys()) == len(training.saved)
    assert "only for backward" in shown.text("#table-summary")
    assert str(repeated_layers(training)).replace("`", "") in shown.text("#table-summary")
    shown.click("#tab-modules")
    names = shown.row_keys()
    assert sorted(names) == sorted(training.modules.index)
    for name in names:
        parent = name.rpartition(".")[0]
        assert not parent or parent not in names or names.index(parent) < names.index(name)
    shown.click("#tab-steps")
    assert shown.column(2) == [format_bytes(nbytes) for nbytes in training.steps["peak_bytes"]]


def test_the_theme_and_the_help_open(shown):
    """The theme switches, and the help explains the vocabulary."""
    before = shown.js("return getComputedStyle(document.body).backgroundColor")
    shown.js("document.getElementById('theme').click()")
    assert shown.js("return getComputedStyle(document.body).backgroundColor") != before
    shown.js("document.getElementById('help-open').click()")
    words = shown.text("#help")
    assert all(
        word in words for word in ("storage", "workspace", "live bytes", "peak", "at the start", "holder")
    )


CELLS = """
    return [...document.querySelectorAll("#flame g.frame")].map((g) => g.__data__.data)
      .map(({ level, name, tint }, index) => {
        const { fill } = getComputedStyle(document.querySelectorAll("#flame g.frame rect")[index]);
        return [level, name, fill, tint];
      });
"""


def test_a_cell_of_the_icicle_is_grey_unless_one_colour_has_more_than_half_of_it(browser, tmp_path):
    sizes = {"mixed": {"input": 64, "activation": 64, "held": 64}, "most": {"input": 200, "held": 64}}
    lives = [
        {"born": 1, "nbytes": nbytes, "module": module, "category": category, "op_name": category}
        for module, parts in sizes.items()
        for category, nbytes in parts.items()
    ]
    reading = report_readings.from_lives(lives)
    browser.open(html(reading, tmp_path / "page.html"), "#by=module.category")
    cells = browser.js(CELLS)
    of_categories = {name: fill for level, name, fill, _ in cells if level == "category"}
    of_modules = {name: fill for level, name, fill, _ in cells if level == "module"}
    assert len(set(of_categories.values())) == 3
    assert of_modules["most"] == of_categories["input"]
    assert of_modules["mixed"] not in of_categories.values()


def test_a_numbered_module_has_the_name_of_its_parent_in_the_icicle(browser, tmp_path):
    modules = report_readings.table(
        "modules", {"parent": ["", "model", "model", "1"]}, index=["model", "0", "1", "1.0"]
    )
    lives = [{"born": 1, "nbytes": 64, "module": name} for name in ("0", "1", "1.0")]
    browser.open(
        html(report_readings.from_lives(lives, modules=modules), tmp_path / "page.html"), "#by=module"
    )
    names = [name for level, name, *_ in browser.js(CELLS) if level == "module"]
    assert sorted(names) == ["1.0", "model", "model.0", "model.1"]
