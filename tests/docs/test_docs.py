"""The documentation is true: its commands print what it shows, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import WIDTH, follow, pattern_of, without_times

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_the_tutorial_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    """Every command is run as a reader would run it; what is left out is left out by rule."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", WIDTH)
    for command, printed in follow(ROOT / "docs" / "tutorial.md", tmp_path, capsys):
        assert pattern_of(command.shown).fullmatch(without_times(printed)), f"{command.words}\n{printed}"


def test_what_is_left_out_of_an_output_is_lines_and_times_alone():
    """A shown line that is not printed is noticed, and so is a figure that differs."""
    assert pattern_of("a\n...\nc\n").fullmatch("a\nb\nb\nc\n")
    assert pattern_of("took 3.1 ms\n").fullmatch(without_times("took 12 s\n"))
    assert not pattern_of("a\n...\nd\n").fullmatch("a\nb\nc\n")
    assert not pattern_of("Peak 3 KiB\n").fullmatch(without_times("Peak 4 KiB\n"))


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page):
    """A link to another page or to a report names a file of the repository."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    here = [link for link in links if "://" not in link]
    assert [link for link in here if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_contents_of_the_site():
    """A page that nobody links to is read by nobody."""
    listed = set(re.findall(r"(\w+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {page.name for page in PAGES} == listed
