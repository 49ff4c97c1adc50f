"""The view in a notebook: texts with their colours, the magic of a cell, and figures of matplotlib."""

from __future__ import annotations

import pickle
import re
from html import unescape

import matplotlib as mpl
import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

import memwatch
from memwatch.report.console import fragment
from memwatch.sizes import format_bytes
from memwatch.text import preformatted

CELLS = (
    "import torch, memwatch\n%load_ext memwatch",
    "%%memwatch\nkept = torch.ones(1000)\nkept.exp();",
    "prof",
    "print(prof.summary(width=80))",
    "%%memwatch failed\ntorch.ones(1000)\n1 / 0",
    "failed.peak_increase_bytes",
    "%%memwatch --nonsense\n1",
    "more = []\nmemwatch.find_leaks(lambda: more.append(torch.ones(500)), warmup=1, runs=2)",
    "prof.plot.timeline();",
    "memwatch.find_leaks(lambda: None)",
    "weights = [torch.randn(64, 64, requires_grad=True) for _ in range(6)]",
    "def step(x):\n    for each in weights:\n        x = torch.nn.functional.gelu(x @ each)\n    x.sum().backward()",
    "with memwatch.profile(replay=True) as step_profile:\n    step(torch.ones(512, 64))",
    "memwatch.plan(step_profile, budget='60%')",
    "with memwatch.profile() as drag:\n    idle = torch.ones(100000)\n    torch.ones(300000) * 2\ndrag.findings",
    "import pathlib, tempfile\npage = pathlib.Path(tempfile.mkdtemp()) / 'cells.html'",
    "step_profile.report(page)\nprint(page.read_text())",
)


@pytest.fixture(scope="module")
def executed():
    """The cells, run by a kernel of Jupyter; the outputs of each."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, allow_errors=True, timeout=120, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


def text_of(fragment):
    assert not re.search(r"<(script|iframe|link|img)", fragment)
    return unescape(re.sub(r"<[^>]*>", "", fragment))


def test_a_cell_shows_its_summary_and_leaves_its_profile(executed):
    """`%%memwatch` runs the cell in the notebook's names, and shows what `prof` shows alone."""
    shown, again = (executed[cell][-1]["data"]["text/html"] for cell in (1, 2))
    assert text_of(shown).startswith("Peak 7.81 KiB (cpu)")
    assert shown == again


def test_a_line_of_a_cell_is_called_as_the_notebook_shows_it(executed):
    """The name has the cell's number. Lines count from the line of the magic, also in a traceback."""
    (printed,) = executed[3]
    assert "exp (forward) at Cell In[2], line 3," in printed["text"]
    assert ", line 3" in re.sub(r"\x1b\[[0-9;]*m", "", "".join(executed[4][0]["traceback"]))


def test_a_line_of_a_leak_is_called_so_too(executed):
    """The file that IPython compiled the cell by means nothing to its reader."""
    assert "made at: Cell In[8], line 2 in <lambda>" in executed[7][-1]["data"]["text/plain"]


def test_a_summary_is_text_in_a_notebook_too(executed):
    """`prof.summary()` returns its text there, as anywhere; nothing is shown but what is printed."""
    (printed,) = executed[3]
    assert printed["output_type"] == "stream"
    assert printed["text"].startswith("Peak 7.81 KiB")


def test_a_cell_that_raises_shows_its_error_and_what_was_recorded(executed):
    """The error comes first, unchanged; the profile has the allocations up to it."""
    error, shown = executed[4]
    assert error["ename"] == "ZeroDivisionError"
    assert "increase (cpu)" in text_of(shown["data"]["text/html"])
    assert executed[5][0]["data"]["text/plain"] == "4000"


def test_an_argument_that_the_magic_does_not_take_is_named(executed):
    """The cell is not run, and the message says how the magic is used."""
    (error,) = executed[6]
    assert error["evalue"].startswith("%%memwatch: unrecognized arguments: --nonsense; usage: ")


def test_leaks_in_a_list_show_their_text(executed):
    """The list that `find_leaks` returns reads as its leaks do when they are printed."""
    (shown,) = executed[7]
    assert (
        "retained: 1.95 KiB in 1 tensor on each call, kept alive by global `more`"
        in shown["data"]["text/plain"]
    )


THEMES = {
    "white": ("#212121", "#ffffff"),
    "dark": ("#e0e0e0", "#111111"),
    "grey on white": ("#3b3b3b", "#ffffff"),
    "grey on dark": ("#cccccc", "#252526"),
    "grey on grey": ("#d5d5d5", "#383838"),
}
"""Text and background, near those of JupyterLab, VS Code and Colab."""
WORDS = re.compile(r'<span style="([^"]*)">([^<]*)</span>')
MIX = re.compile(r"color: color-mix\(in srgb, currentColor (\d+)%, (#[0-9a-f]{6})\)")
READABLE = 4.5
"""The contrast that WCAG asks of text."""


def rgb(colour):
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])


def luminance(colour):
    coded = colour / 255
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", THEMES)
def test_coloured_words_are_readable_in_light_and_dark_themes(theme):
    """A coloured word takes a part of its colour from the notebook's text, so it follows the theme. Bars do not."""
    colours = {f"{style}m" for style in ("2", *range(31, 38), *range(91, 98))}
    shown = fragment("".join(f"\x1b[{colour}word\x1b[0m \x1b[{colour}███\x1b[0m\n" for colour in colours))
    text, page = map(rgb, THEMES[theme])
    found = 0
    for style, content in WORDS.findall(shown):
        mix = MIX.search(style)
        assert (mix is None) == content.startswith("█"), style
        if mix is not None:
            share = int(mix[1]) / 100
            colour = share * text + (1 - share) * rgb(mix[2])
            dark, light = sorted((luminance(colour), luminance(page)))
            assert (light + 0.05) / (dark + 0.05) >= READABLE, (theme, mix[2])
            found += 1
    assert found == len(colours)


def test_leaks_alone_show_as_text_and_stay_a_list(executed):
    """A notebook shows the list as its leaks are printed, and says that there are none; code sees a list."""
    (shown,) = executed[7]
    assert text_of(shown["data"]["text/html"]).startswith("retained: 1.95 KiB in 1 tensor on each call")
    (none,) = executed[9]
    assert text_of(none["data"]["text/html"]) == "No leaks found"
    assert none["data"]["text/plain"] == "[]"
    leaks = memwatch.find_leaks(lambda: None)
    assert isinstance(leaks, list)
    assert leaks == []
    assert leaks[:1] == [*leaks] == []
    assert pickle.loads(pickle.dumps(leaks)) == []


def test_a_plan_names_the_lines_of_cells_and_shares_of_work(executed):
    """The file that IPython compiled a cell by is in no move, and the cost of an op has a unit."""
    (shown,) = executed[13]
    said = text_of(shown["data"]["text/html"])
    assert re.search(
        r"recompute gelu \(op \d+, Cell In\[12\], line 3\) \([0-9.]+ % of the program's work\)", said
    )
    assert "(cost" not in said
    assert ".py" not in said


def test_the_page_names_the_cells_and_shows_their_lines(executed, browser, tmp_path):
    """Tables, icicle and lines of the page name a cell as the notebook does, with its source."""
    page = tmp_path / "page.html"
    page.write_text(executed[16][0]["text"], encoding="utf-8")
    browser.open(page)
    assert "Cell In[12], line 3" in browser.column(7)
    files = browser.js(
        "return [...document.querySelectorAll('#source .file code:first-child')].map((f) => f.textContent)"
    )
    assert files[0] == "Cell In[12]"
    browser.click("#panel .to-line")
    assert "step(torch.ones(512, 64))" in browser.text("#source tr[aria-current] .code")
    assert "torch.nn.functional.gelu(x @ each)" in browser.text("#source-body")
    browser.go("by=line")
    cells = browser.js("return [...document.querySelectorAll('#flame bdi')].map((cell) => cell.textContent)")
    assert "Cell In[12], line 3" in cells
    assert not any(".py" in cell for cell in cells)


def test_findings_show_as_text(executed):
    """The list shows each finding as its line, where the cell has its number."""
    (shown,) = executed[14]
    assert "Cell In[" in shown["data"]["text/plain"]
    assert ".py" not in shown["data"]["text/plain"]


def test_a_figure_shows_in_the_notebook(executed):
    """Axes of a plot become a picture."""
    assert any("image/png" in output.get("data", {}) for output in executed[8])


def test_text_in_html_is_text():
    """Names from a program cannot be markup."""
    assert unescape(preformatted("<script>")) == preformatted("<script>").replace("&lt;", "<").replace(
        "&gt;", ">"
    )
    assert "<script>" not in preformatted("<script>")


@pytest.fixture
def steps():
    """Three iterations."""
    mpl.use("agg")
    weight = torch.ones(100, 100, requires_grad=True)
    with memwatch.profile() as prof:
        for _ in range(3):
            (weight * 2).exp().sum().backward()
            prof.step()
    return prof


def test_a_plot_of_the_timeline_has_the_curve_of_the_allocator(steps):
    """The categories add up to live bytes at every event, and the mark is at the peak."""
    axes = steps.plot.timeline()
    top = axes.collections[-1].get_paths()[0].vertices[:, 1].max()
    assert top == steps.peak_bytes == steps.timeline["live_bytes"].max()
    assert axes.lines[0].get_ydata() == [steps.peak_bytes]
    assert format_bytes(steps.peak_bytes) in axes.get_title()


def test_a_plot_of_the_peak_has_every_byte_of_it(steps):
    """Bars add up to the peak, whichever column they are by and however few there are."""
    for by, rows in (("category", 12), ("line", 1)):
        axes = steps.plot.peak(by, rows=rows)
        assert sum(bar.get_width() for bar in axes.patches) == steps.peak_bytes


def test_a_plot_of_steps_has_the_figures_of_the_table(steps):
    """One line shows peaks and one the live bytes at the ends. They are drawn into given axes."""
    given = steps.plot.peak()
    given.clear()
    peaks, ends = steps.plot.steps(ax=given).lines
    np.testing.assert_array_equal(peaks.get_ydata(), steps.steps["peak_bytes"])
    np.testing.assert_array_equal(ends.get_ydata(), steps.steps["end_live_bytes"])


def test_a_column_that_cannot_be_drawn_is_named(steps):
    """The message lists what can."""
    with pytest.raises(
        memwatch.MemwatchError, match="'colour' is not a column of at_peak; choose from nbytes"
    ):
        steps.plot.peak("colour")


def test_a_long_line_of_code_is_not_wrapped():
    """The element scrolls, so that code can be copied."""
    line = "x = " + " + ".join(["value"] * 1000)
    assert line in unescape(fragment(f"\x1b[1m{line}\x1b[0m"))
