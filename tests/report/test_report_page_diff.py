"""The page of two captures, in a real browser."""

from __future__ import annotations

import pytest
import torch

import memwatch
from memwatch.cli.main import main
from memwatch.sizes import format_bytes


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """The same code with a batch of 64 and of 256."""
    folder = tmp_path_factory.mktemp("diff")
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU())
    paths = []
    for batch in (64, 256):
        with memwatch.profile() as prof:
            model(torch.ones(batch, 32)).sum().backward()
        paths.append(folder / f"{batch}.memwatch")
        prof.save(paths[-1])
    return paths


def test_the_page_shows_what_the_text_says(browser, captures, tmp_path, capsys):
    """Peaks, categories and sites equal those of `memwatch diff`, largest change first.

    The search filters the sites.
    """
    old, new = map(memwatch.load, captures)
    page = tmp_path / "diff.html"
    assert main(["diff", "-o", str(page), *map(str, captures)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    browser.open(page)
    assert browser.text("#old-bytes") == format_bytes(old.peak_bytes)
    assert browser.text("#new-bytes") == format_bytes(new.peak_bytes)
    legend = browser.js(
        "return [...document.querySelectorAll('#legend b')].map((b) => Number(b.dataset.bytes))"
    )
    assert sum(legend) == new.peak_bytes
    cells = "[...document.querySelectorAll('#panel tbody td:first-child b')]"
    changes = browser.js(f"return {cells}.map((b) => Number(b.dataset.bytes))")
    assert sum(changes) == new.peak_bytes - old.peak_bytes
    shown = browser.js(f"return {cells}.map((b) => b.textContent)")
    assert shown == [f"{'+' * (change > 0)}{format_bytes(change)}" for change in changes]
    assert changes == sorted(changes, key=abs, reverse=True)
    browser.go("q=category:activation")
    assert len(browser.column(1)) == len([each for each in browser.column(6) if each == "activation"]) > 0
    assert browser.console() == []


def test_an_existing_page_is_kept(captures, tmp_path, capsys):
    page = tmp_path / "diff.html"
    page.write_text("mine")
    assert main(["diff", "-o", str(page), *map(str, captures)]) == 1
    assert page.read_text() == "mine"
    assert "exists" in capsys.readouterr().err
