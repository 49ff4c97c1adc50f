"""The page of a program that used several devices: one page, with a switch between them."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import memwatch
from memwatch.report import html
from memwatch.sizes import format_bytes

HERE_BYTES, THERE_BYTES = 96 * 1024, 160 * 1024


@pytest.fixture(scope="module")
def reading():
    with FakeTensorMode(), memwatch.profile() as prof:
        there = torch.empty(THERE_BYTES, dtype=torch.uint8, device="cuda")
        here = torch.empty(HERE_BYTES, dtype=torch.uint8)
    del there, here
    return prof


@pytest.fixture(scope="module")
def page(reading, tmp_path_factory):
    return html(reading, tmp_path_factory.mktemp("page") / "two.html")


@pytest.fixture
def shown(browser, page):
    """The page, opened afresh; whatever a test does, nothing is requested and the console stays silent."""
    browser.open(page)
    yield browser
    assert browser.console() == []
    assert browser.requests() <= {page.as_uri(), "data:,"}


def figures(browser):
    """Return the peak in the document, the bytes of the first table, and the device beside the name of the page."""
    peak, total = (
        browser.js(f"return Number(document.querySelector('{element}').dataset.bytes)")
        for element in ("#peak-bytes", "#live-total")
    )
    return peak, total, browser.text("#about")


def test_a_click_shows_another_device(shown, page):
    """The page begins with the accelerator; a click shows the host, totals, tables and all, and another leads back."""
    seen, ready = [figures(shown)], "return document.documentElement.dataset.ready === 'yes'"
    for device in ("cpu", "cuda:0"):
        shown.js("document.querySelector('#devices a').click()")
        shown.wait(lambda device=device: shown.text("#about") == device and shown.js(ready))
        seen.append(figures(shown))
    there, here = (THERE_BYTES, THERE_BYTES, "cuda:0"), (HERE_BYTES, HERE_BYTES, "cpu")
    assert seen == [there, here, there]


def test_the_device_is_in_the_address(shown, page):
    """A link that was sent shows the same device, and the whole of it."""
    shown.open(page, "#device=cpu&tab=modules")
    assert shown.text("#about") == "cpu"
    assert shown.text("#peak-bytes") == format_bytes(HERE_BYTES)
    assert shown.text("#devices a").strip() == f"cuda:0 {format_bytes(THERE_BYTES)}"


def test_a_page_without_a_script_tells_every_peak(page, reading):
    """The peak of each device stands in the document, and no sum of devices."""
    text = page.read_text()
    for device in reading.devices:
        assert f'data-bytes="{reading.on(device).peak_bytes}"' in text
    assert str(HERE_BYTES + THERE_BYTES) not in text


def test_a_reading_of_a_device_begins_with_it(reading, tmp_path):
    """`prof.on("cpu").report(...)` writes the same page, about the host first."""
    page = html(reading.on("cpu"), tmp_path / "cpu.html")
    text = page.read_text()
    assert f'id="peak-bytes" data-bytes="{HERE_BYTES}"' in text.partition("<template")[0]
    assert '<template data-device="cuda:0">' in text


def test_one_device_needs_no_switch(tmp_path):
    """The page of a program on one device has no switch."""
    with memwatch.profile() as prof:
        torch.ones(10)
    assert "<template" not in html(prof, tmp_path / "one.html").read_text()
