"""The pages without a mouse: Tab reaches every control, the focus is visible, and Escape closes dialogs."""

from __future__ import annotations

import pytest
import torch
from selenium.webdriver.common.keys import Keys
from torch import nn

import memwatch
from memwatch.analysis import ByDevice
from memwatch.analysis.compare import compare, peak_sites
from memwatch.report import diff_page, html, leak_page

MOST_STOPS = 250
"""Stops of Tab on the longest page, with room: a walk that never ends fails."""
CONTROLS = """
    const selector = "a[href], button, input, select, summary, [tabindex='0']";
    const isShown = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length;
    const isReachable = (node) => isShown(node) && !node.disabled && node.tabIndex >= 0;
    window.controls = [...document.querySelectorAll(selector)].filter(isReachable);
    window.stops = new Set();
    return window.controls.length;
"""
NAME = """
    const nameOf = (node) => [node.tagName, node.id, node.className.baseVal ?? node.className].join(" ");
"""
STOP = f"""
    {NAME}
    const node = document.activeElement;
    if (node === document.body) return null;
    const isNew = !window.stops.has(node);
    window.stops.add(node);
    const style = getComputedStyle(node);
    const cell = node.querySelector(":scope > rect"); // of the picture of the parts
    const isOutlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
    const isStroked = cell !== null && getComputedStyle(cell).stroke === getComputedStyle(document.body).color;
    const header = document.querySelector("header.top");
    const isBehind = node.getBoundingClientRect().bottom <= header.getBoundingClientRect().bottom;
    const isCovered = !header.contains(node) && !node.matches(".skip") && isBehind;
    return {{ name: nameOf(node), isNew, isVisible: isOutlined || isStroked, isCovered }};
"""
MISSED = f"""
    {NAME}
    return window.controls.filter((node) => node.isConnected && !window.stops.has(node)).map(nameOf);
"""


@pytest.fixture(scope="module")
def steps():
    """Two steps of a small network whose hidden tensors a list keeps: a page with findings and few rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    with memwatch.profile() as prof:
        kept = torch.ones(100_000)
        for _ in range(2):
            model(torch.ones(256, 64)).sum().backward()
            prof.step()
    del kept
    return prof


@pytest.fixture(scope="module")
def profile_page(steps, tmp_path_factory):
    return html(steps, tmp_path_factory.mktemp("keys") / "profile.html")


@pytest.fixture(scope="module")
def other_pages(leaked, steps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    with memwatch.profile() as less:
        torch.ones(100)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WORLD_SIZE", "2")
        for rank in range(2):
            environment.setenv("RANK", str(rank))
            with memwatch.profile(folder / f"run.rank{rank}.memwatch"):
                torch.ones(100 * (rank + 1)).mul(2)
    ranks = memwatch.merge(sorted(folder.glob("run.rank*.memwatch")))
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
    with memwatch.profile(replay=True) as planned:
        model(torch.ones(64, 32)).square().mean().backward()
    sites = [peak_sites(ByDevice(each.capture).tables("cpu")) for each in (less, steps)]
    return {
        "ranks": ranks.report(folder / "ranks.html"),
        "plan": html(planned, folder / "plan.html", plan=memwatch.plan(planned, budget="80%")),
        "leaks": leak_page(leaked, folder / "leaks.html", title="one call"),
        "diff": diff_page(compare(*sites), folder / "diff.html", old="old", new="new"),
    }


def press(browser, *keys):
    browser.driver.switch_to.active_element.send_keys(*keys)


def active(browser) -> str:
    return browser.js("return document.activeElement.id")


def walk(browser):
    """Press Tab until the focus is back at the beginning; return each stop."""
    browser.js("document.activeElement.blur()")
    assert browser.js(CONTROLS) > 0
    stops = []
    while len(stops) < MOST_STOPS:
        press(browser, Keys.TAB)
        stop = browser.js(STOP)
        if stop is None or not stop["isNew"]:
            return stops
        stops.append(stop)
    pytest.fail(f"Tab does not come back to the beginning after {MOST_STOPS} stops")


def check_walk(browser):
    stops = walk(browser)
    assert [stop["name"] for stop in stops if not stop["isVisible"]] == []
    assert [stop["name"] for stop in stops if stop["isCovered"]] == []
    assert browser.js(MISSED) == []


def test_tab_reaches_every_control_and_shows_where_it_is(browser, profile_page):
    """No control needs a mouse. The header that stays at the top covers none that has the focus."""
    browser.open(profile_page)
    check_walk(browser)


@pytest.mark.parametrize("name", ["leaks", "diff", "ranks", "plan"])
def test_tab_reaches_every_control_of_the_other_pages(browser, other_pages, name):
    browser.driver.get("about:blank")
    browser.driver.get(other_pages[name].as_uri())
    browser.wait(lambda: browser.js("return document.readyState === 'complete'"))
    browser.js("document.querySelectorAll('details').forEach((each) => (each.open = false))")
    check_walk(browser)


def test_help_opens_and_closes_by_keys_and_gives_the_focus_back(browser, profile_page):
    browser.open(profile_page)
    browser.js("document.getElementById('help-open').focus()")
    press(browser, Keys.ENTER)
    is_open = "return document.getElementById('help').open"
    assert browser.js(is_open)
    for _ in range(4):  # the focus stays in the dialog, or goes to the browser's own controls
        press(browser, Keys.TAB)
        assert browser.js("return document.activeElement.matches('body, #help, #help *')")
    browser.js("document.querySelector('#help button').focus()")
    press(browser, Keys.ESCAPE)
    assert not browser.js(is_open)
    assert active(browser) == "help-open"


def test_a_storage_opens_and_closes_by_keys_and_gives_the_focus_back(browser, profile_page):
    browser.open(profile_page)
    browser.js("document.querySelector('#panel tbody button').focus()")
    name = browser.js("return document.activeElement.textContent")
    browser.act(lambda: press(browser, Keys.ENTER))
    assert browser.js("return document.getElementById('storage').open")
    browser.act(lambda: press(browser, Keys.ESCAPE))
    assert not browser.js("return document.getElementById('storage').open")
    assert browser.js("return document.activeElement.textContent") == name


def test_arrows_walk_along_the_curve_and_between_the_tabs(browser, profile_page):
    """On the curve, arrows say each event, Enter chooses it. On the tabs, they open the next table."""
    browser.open(profile_page)
    browser.js("document.getElementById('plot').focus()")
    said = []
    for key in (Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_RIGHT):
        press(browser, key)
        said.append(browser.text("#plot-status"))
    assert said[0] == said[2] != said[1]
    browser.act(lambda: press(browser, Keys.ENTER))
    assert "at" in browser.state()
    assert active(browser) == "plot"
    browser.js("document.querySelector('#tabs [aria-selected=true]').focus()")
    browser.act(lambda: press(browser, Keys.ARROW_RIGHT))
    assert browser.state()["tab"] == "saved"
    assert active(browser) == "tab-saved"
    browser.act(lambda: press(browser, Keys.ARROW_LEFT))
    assert active(browser) == "tab-live"


def test_arrows_move_between_the_parts(browser, profile_page):
    """The picture of the parts is one stop of Tab. Enter zooms into the cell that has the focus."""
    browser.open(profile_page)
    cells = browser.js("return document.querySelectorAll('#flame g.frame').length")
    assert cells > 5
    assert browser.js("return document.querySelectorAll('#flame g.frame[tabindex=\"0\"]').length") == 1
    browser.js("document.querySelector('#flame g.frame[tabindex=\"0\"]').focus()")
    label = "return document.activeElement.getAttribute('aria-label')"
    labels = [browser.js(label)]
    for key in (Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_UP):
        press(browser, key)
        labels.append(browser.js(label))
        assert browser.text("#flame-status") == labels[-1]
    assert labels[0] == labels[4]
    assert labels[1] == labels[3]
    assert len({*labels}) == 3
    press(browser, Keys.ARROW_DOWN)
    browser.act(lambda: press(browser, Keys.ENTER))
    assert browser.state()["cell"] == "0"


def test_a_finding_folds_by_keys(browser, profile_page):
    browser.open(profile_page)
    browser.js("document.querySelector('.finding summary').focus()")
    press(browser, Keys.ENTER)
    assert not browser.js("return document.querySelector('.finding').open")
    press(browser, Keys.ENTER)
    assert browser.js("return document.querySelector('.finding').open")
