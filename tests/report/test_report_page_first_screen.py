"""The first screen: the parts of the peak, the lines to change, and names that a user knows."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest

from memwatch.kinds.findings import FindingKind
from memwatch.kinds.roles import CATEGORY_OF
from memwatch.report import html
from memwatch.sizes import format_bytes
from memwatch.words.page import SECTIONS

WIDTHS = (1400, 1000, 400)
PROGRAM = """
    import torch
    from torch import nn

    import memwatch

    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        outputs = []
        with memwatch.profile() as prof:
            for _ in range(6):
                x = torch.ones(256, 64)
                model(x).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                outputs.append(model(x))
                prof.step()
        return prof, outputs
"""
PARTS = """
    return [...document.querySelectorAll("[data-part-of-peak]")].map((part) => ({
      name: part.dataset.partOfPeak,
      nbytes: Number(part.dataset.bytes),
      fill: getComputedStyle(part.querySelector("rect")).fill,
      box: part.querySelector("rect").getBoundingClientRect().toJSON(),
    }));
"""
LABELS = """
    const drawn = (each) => each.getClientRects().length > 0 && getComputedStyle(each).display !== "none";
    const inside = [...document.querySelectorAll("#made-of text.long")].filter(drawn);
    const below = [...document.querySelectorAll("#made-of li")].filter(drawn);
    return [...inside, ...below].map((each) => each.textContent.trim());
"""
NOT_IN_BOX = """
    return [...document.querySelectorAll("#made-of text")].flatMap((each) => {
      const [text, box] = [each.getBoundingClientRect(), each.parentNode.querySelector("rect").getBoundingClientRect()];
      return text.width && (text.right > box.right + 0.5 || text.left < box.left - 0.5) ? [each.textContent] : [];
    });
"""


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    """A training that keeps the output of each step, with its graph; its file is there."""
    file = tmp_path_factory.mktemp("growing") / "train.py"
    file.write_text(textwrap.dedent(PROGRAM))
    spec = importlib.util.spec_from_file_location("growing_train", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.train()[0]


@pytest.fixture(scope="module")
def page(growing, tmp_path_factory):
    return html(growing, tmp_path_factory.mktemp("first") / "first.html")


@pytest.fixture(params=WIDTHS)
def shown(request, browser, page):
    """The page in a window of some width; nothing is requested, and the console stays silent."""
    size = {"width": request.param, "height": 1200, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.open(page)
    yield browser
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.console() == []
    assert browser.requests() <= {page.as_uri(), "data:,"}


@pytest.fixture
def wide(browser, page):
    browser.open(page)
    return browser


def test_the_bar_under_the_headline_splits_the_peak(shown, growing):
    """Its parts sum to the peak; the width of each is its share, and its colour is that of the curve's legend."""
    parts = shown.js(PARTS)
    sums = growing.at_peak.groupby("category")["nbytes"].sum()
    assert sum(part["nbytes"] for part in parts) == growing.peak_bytes
    alone = [part for part in parts if part["name"] in CATEGORY_OF]
    assert {part["name"]: part["nbytes"] for part in alone} == {
        part["name"]: sums[part["name"]] for part in alone
    }
    assert len(alone) >= 3
    width = sum(part["box"]["width"] for part in parts)
    for part in parts:
        assert part["box"]["width"] / width == pytest.approx(part["nbytes"] / growing.peak_bytes, abs=0.002)
    for part in alone:
        swatch = f"#key [data-group='{part['name']}'] .swatch"
        assert part["fill"] == shown.js(
            f'return getComputedStyle(document.querySelector("{swatch}")).backgroundColor'
        )
    assert shown.js("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    order = [
        shown.js(f"return document.querySelector('{each}').getBoundingClientRect().top")
        for each in ("#headline", "#made-of", ".totals .cards")
    ]
    assert order == sorted(order)


def test_each_part_has_its_name_bytes_and_share_once(shown, growing):
    """In a wide window the labels of wide parts are inside; no label is cut off."""
    texts = " | ".join(shown.js(LABELS))
    for part in shown.js(PARTS):
        share = f"{100 * part['nbytes'] / growing.peak_bytes:.1f} %"
        assert texts.count(part["name"]) == 1
        assert f"{format_bytes(part['nbytes'])}, {share}" in texts
    assert shown.js(NOT_IN_BOX) == []


def test_the_bar_is_a_picture_with_a_text(wide, growing):
    """A screen reader gets every part, also the small ones; the words of our own are explained."""
    picture = wide.driver.find_element("id", "made-of")
    assert picture.aria_role in ("img", "image")
    sums = growing.at_peak.groupby("category")["nbytes"].sum()
    for name, nbytes in sums[sums > 0].items():
        assert f"{name} {format_bytes(nbytes)}" in picture.accessible_name
    for name, row in CATEGORY_OF.items():
        is_labelled = wide.js(f"return document.querySelector('[data-part-of-peak=\"{name}\"]') !== null")
        if row.meaning and is_labelled:
            assert row.meaning in picture.accessible_name
            assert row.meaning in wide.text("#made-of p")


def test_the_bar_needs_no_script_and_stays_at_the_peak(wide, page):
    """It is in the document, and says that another instant does not change it."""
    assert "data-part-of-peak" in page.read_text(encoding="utf-8").partition("<script")[0]
    before = wide.js(PARTS)
    wide.go("at=3")
    assert wide.js(PARTS) == before
    assert "always shows the peak" in wide.text(".made-of-title")


def test_a_finding_shows_the_line_as_it_is_and_as_it_would_be(wide, growing):
    """Signs mark the lines, not colour alone; the line that its head names is the one to change."""
    lines = wide.js(
        "return [...document.querySelector('details.finding .diff').children].map((line) => "
        "[line.tagName, line.textContent.trim().replace(/\\s+/, ' ')])"
    )
    assert lines == [
        ["DEL", "- outputs.append(model(x))"],
        ["INS", "+ outputs.append(model(x).detach())"],
    ]
    number = PROGRAM.splitlines().index(" " * 12 + "    outputs.append(model(x))") + 1
    assert wide.text("details.finding summary > code") == f"train.py:{number}"
    assert wide.js("return document.querySelector('details.finding .diff').tabIndex") == 0


@pytest.mark.parametrize("where", ["details.finding", "#ways details.way[open], #ways details.way"])
def test_a_button_copies_the_new_lines_without_their_signs(wide, where):
    expected = wide.js(
        "const [block] = [...document.querySelectorAll(arguments[0])].map((each) => each.querySelector('.code'));"
        "return [...block.querySelectorAll('ins .text')].map((line) => line.textContent).join('\\n')",
        where,
    )
    assert expected
    copied = wide.driver.execute_async_script(
        "const done = arguments[1];"
        "navigator.clipboard.writeText = async (text) => done(text);"
        "document.querySelector(arguments[0]).querySelector('button.copy').click();",
        where,
    )
    assert copied == expected
    assert not any(line.startswith(("+", "-")) for line in copied.splitlines())


def test_code_that_goes_in_place_of_backward_shows_the_call(wide, growing):
    """The change that splits a batch replaces a line, which the recording knows."""
    shown = wide.js(
        "return [...document.querySelectorAll('#ways .way[data-kind=micro_batches] del')]"
        ".map((each) => each.textContent)"
    )
    assert shown
    assert set(shown) == {"- model(x).mean().backward()"}


def test_chips_are_words_and_name_the_kind_in_json(wide, growing):
    """A chip is no internal name; who looks for the kind of the JSON points at it."""
    chips = wide.js(
        "return [...document.querySelectorAll('.finding > summary .tag')].map((chip) => [chip.textContent, chip.title])"
    )
    assert chips == [
        [finding.kind.row.label, f"in JSON: {finding.kind.value}"] for finding in growing.findings
    ]
    assert wide.js("return document.querySelectorAll('.way .tag').length") == 0


def test_no_label_of_a_kind_is_its_name_in_json():
    assert [kind for kind in FindingKind if kind.row.label == kind.value or "_" in kind.row.label] == []
    labels = [kind.row.label for kind in FindingKind]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("shown", [1400, 1000], indirect=True)
def test_the_head_of_the_page_has_one_row_above_the_instant(shown):
    """Names in full fit at usual widths: a jump to a section would else put its heading under the head."""
    places = shown.js(
        "return ['.brand', '.top nav', '#theme', '#help-open'].map((each) => {"
        "const box = document.querySelector(each).getBoundingClientRect(); return (box.top + box.bottom) / 2; })"
    )
    assert max(places) - min(places) < 4


def test_the_navigation_has_the_names_of_the_sections(wide):
    """Each link is the beginning of the heading that it leads to; no heading is hidden."""
    links = wide.js(
        "return [...document.querySelectorAll('.top nav a')].map((link) => [link.dataset.jump, link.textContent])"
    )
    assert [target for target, _ in links] == [name for name in SECTIONS if name in dict(links)]
    for target, name in links:
        heading = f"#{target} h2"
        assert name == SECTIONS[target]
        assert wide.text(heading).startswith(name)
        assert (
            wide.js("return document.querySelector(arguments[0]).getBoundingClientRect().height", heading)
            > 10
        )
    wide.go("at=3")
    assert wide.text("#icicle h2").startswith(f"{SECTIONS['icicle']}: what was live at event 3")


@pytest.mark.parametrize("shown", [1400, 1000], indirect=True)
def test_the_life_of_a_storage_is_in_view(shown):
    """The bars stand before the long texts, beside the words for their colours."""
    assert shown.js(
        "const { right } = document.querySelector('#panel .scroll').getBoundingClientRect();"
        "const bars = [...document.querySelectorAll('#panel td .life')];"
        "return bars.length > 0 && bars.every((bar) => bar.getBoundingClientRect().right < right)"
    )
    heads = shown.js("return [...document.querySelectorAll('#panel th')].map((head) => head.textContent)")
    assert heads.index("Life") + 1 == heads.index("At the peak")
