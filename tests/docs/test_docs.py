"""The documentation is true: its commands print the shown output, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import follow, has_programs, pattern_of, without_times

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [*filter(has_programs, PAGES)], ids=name_of)
def test_a_page_prints_what_it_shows(page, tmp_path, fresh_python):
    """Every command is run as a reader would run it. Rules decide which commands are left out."""
    for command, done in follow(page, tmp_path, fresh_python):
        told = f"{command.words}\n{done.stdout}{done.stderr}"
        assert pattern_of(command.shown).fullmatch(without_times(done.stdout)), told


def test_what_is_left_out_of_an_output_is_lines_and_times_alone():
    """A shown line that is not printed is noticed, and so is a figure that differs."""
    assert pattern_of("a\n...\nc\n").fullmatch("a\nb\nb\nc\n")
    assert pattern_of("took 3.1 ms\n").fullmatch(without_times("took 12 s\n"))
    assert not pattern_of("a\n...\nd\n").fullmatch("a\nb\nc\n")
    assert not pattern_of("Peak 3 KiB\n").fullmatch(without_times("Peak 4 KiB\n"))


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=name_of)
def test_every_link_leads_to_a_file(page):
    """A link to another page or to a report names a file of the repository."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    here = [link for link in links if "://" not in link]
    assert [link for link in here if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_contents_of_the_site():
    listed = set(re.findall(r"([\w/]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {str(page.relative_to(DOCS)) for page in PAGES} == listed


def test_the_site_shows_a_program_with_a_title_as_code():
    """Plain Markdown knows no titles: without this extension such a program is a paragraph of text."""
    assert "pymdownx.superfences" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_site_searches_without_a_network():
    """The search of a page in a folder needs this script. Without this line the site loads it from elsewhere."""
    (script,) = re.findall(
        r"polyfills: \[(.*iframe-worker.*)\]", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    )
    assert (DOCS / script).exists()


def test_the_site_follows_the_colours_of_the_system():
    """Without a palette for any system, a browser keeps the palette of its first visit."""
    media = re.findall(r'- media: "\((.*)\)"', (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert media == ["prefers-color-scheme", "prefers-color-scheme: light", "prefers-color-scheme: dark"]


_PLACEHOLDER = re.compile("RULE|NAME|STRATEGY|SECTION|VERB|^_peak")
"""Parts of words that stand for a name that you choose."""


def test_the_page_on_the_architecture_names_only_what_exists():
    """A change of the code that renames a module or a function shall mend the page too."""
    files = [
        str(path.relative_to(ROOT))
        for folder in ("memwatch", "plugins", "tests", "reports", "docs", "web/src", "examples", "wheels")
        for path in (ROOT / folder).rglob("*")
        if "__pycache__" not in path.parts
    ]
    files += [path.name for path in ROOT.iterdir()] + ["web/src"]
    source = "\n".join(
        (ROOT / file).read_text(encoding="utf-8")
        for file in files
        if file.endswith((".py", ".h", ".cpp", ".ts", ".j2", ".toml", "Makefile"))
    )
    words = set(re.findall(r"\w+", source))
    missing = []
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    for told in sorted(set(re.findall(r"`([^`\n]+)`", text))):
        if _PLACEHOLDER.search(told) or "*" in told:
            continue
        if re.fullmatch(r"[\w./-]+(/|\.(py|h|cpp|ts|j2|md|txt|toml|css))", told):
            wanted = f"/{told.rstrip('/')}"
            exists = any(f"/{file}".endswith(wanted) for file in files)
        elif re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", told):
            exists = told.removesuffix("()").rpartition(".")[2] in words
        else:
            continue  # a command, or a piece of code
        if not exists:
            missing.append(told)
    assert missing == []
