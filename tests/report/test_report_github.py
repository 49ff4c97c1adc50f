"""A comparison for GitHub: a reader of its Markdown and its workflow commands gets every text back."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from memwatch.analysis.compare import Comparison
from memwatch.report.github import MOST_ANNOTATIONS, error_annotations, markdown

HOSTILE = (
    "a|b", "a\\|b", "`code`", "``|``", "<b>bold</b>", "**bold**", "@someone #12 https://x.y", "_a_ [b](c) ![d](e)",
    "&amp; &#124;", "a\\", "| --- |",
)  # fmt: skip


def comparison(*rows, old=1000, new=2000):
    """Return a comparison of rows (category, module, site, line, old bytes, new bytes)."""
    index = pd.MultiIndex.from_tuples([row[:3] for row in rows], names=["category", "module", "site"])
    sites = pd.DataFrame(
        {"old_bytes": [row[4] for row in rows], "new_bytes": [row[5] for row in rows]}, index=index
    )
    sites["delta_bytes"] = sites["new_bytes"] - sites["old_bytes"]
    return Comparison("cpu", old, new, sites, {row[:3]: row[3] for row in rows})


def table_of(text):
    """Return the rows of the only table, as a reader sees them."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    assert [token.type for token in tokens].count("table_open") == 1
    rows = []
    for number, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            cell = tokens[number + 1]
            kinds = {child.type for child in cell.children}
            assert kinds <= {"text", "code_inline", "html_inline", "text_special"}, cell.content
            tags = [child.content for child in cell.children if child.type == "html_inline"]
            assert tags in ([], ["<code>", "</code>"])
            rows[-1].append("".join(child.content for child in cell.children if child.type != "html_inline"))
    return rows


def parsed(command):
    """Return the properties and the message of a workflow command, decoded as GitHub does."""
    match = re.fullmatch(r"::error ([^\r\n]*?)::([^\r\n]*)", command)
    pairs = dict(part.split("=", 1) for part in match[1].split(","))

    def decode(text, codes):
        for code, character in codes:
            text = text.replace(code, character)
        return text

    data = [("%0D", "\r"), ("%0A", "\n"), ("%25", "%")]
    return {key: decode(value, [("%3A", ":"), ("%2C", ","), *data]) for key, value in pairs.items()}, decode(
        match[2], data
    )


def test_the_table_has_the_figures_and_the_line(tmp_path):
    """One row for each changed site, with the line relative to the repository."""
    compared = comparison(
        (
            "activation",
            "layers.0",
            "aten.addmm.default in forward (a.py)",
            f"{tmp_path}/src/a.py:12",
            0,
            1024,
        ),
        ("parameter", "head", "head.weight", "", 2048, 0),
        ("buffer", "same", "same.b", "", 8, 8),
    )
    text = markdown(compared, rows=15, root=tmp_path)
    assert text.startswith("### Memory peak: 1000 B → 1.95 KiB, +1000 B (+100.0 %)\n")
    assert table_of(text) == [
        ["Change", "Old", "New", "Category", "Module", "Site", "Line"],
        ["+1.00 KiB", "0 B", "1.00 KiB", "activation", "layers.0", "addmm in forward (a.py)", "src/a.py:12"],
        ["-2.00 KiB", "2.00 KiB", "0 B", "parameter", "head", "head.weight", ""],
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_ends_a_cell_or_becomes_markup(tmp_path, name):
    """A reader sees exactly the characters of the name."""
    compared = comparison(("activation", name, name, "", 0, 8))
    _, (*_, module, site, line) = table_of(markdown(compared, rows=15, root=tmp_path))
    assert (module, site, line) == (name, name, "")


def test_rows_limit_the_table_and_the_rest_is_summed(tmp_path):
    compared = comparison(*(("activation", f"m{n}", "x", "", 0, 10) for n in range(5)))
    text = markdown(compared, rows=3, root=tmp_path)
    assert len(table_of(text)) == 4
    assert text.endswith("\n2 more sites: +20 B\n")
    assert markdown(compared, rows=4, root=tmp_path).endswith("\n1 more site: +10 B\n")


def test_an_annotation_stands_at_each_line_that_grew(tmp_path):
    """Sites of one line share one annotation. Lines that shrank and files outside the repository have none."""
    grown = f"{tmp_path}/a,b: 5%.py:7"
    compared = comparison(
        ("activation", "m", "x in f (a.py)", grown, 0, 1024),
        ("temporary", "m", "y", grown, 512, 1024),
        ("temporary", "m", "z", f"{tmp_path}/c.py:1", 64, 0),
        ("temporary", "m", "installed", "/somewhere/else.py:3", 0, 64),
        ("temporary", "m", "unknown", "", 0, 64),
    )
    (command,) = error_annotations(compared, root=tmp_path)
    properties, message = parsed(command)
    assert properties == {"file": "a,b: 5%.py", "line": "7", "title": "+1.50 KiB at the memory peak"}
    assert "+1.00 KiB activation, x in f (a.py); +512 B temporary, y" in message


def test_code_without_a_file_has_a_row_and_no_annotation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compared = comparison(
        ("activation", "m", "x", "<string>:3", 0, 1024), ("activation", "m", "y", "a.py:3", 0, 8)
    )
    (command,) = error_annotations(compared, root=tmp_path)
    assert parsed(command)[0]["file"] == "a.py"
    assert [row[-1] for row in table_of(markdown(compared, rows=9, root=tmp_path))[1:]] == [
        "<string>:3",
        "a.py:3",
    ]


def test_a_name_with_line_breaks_stays_one_command(tmp_path):
    compared = comparison(("activation", "m", "x\n::error::y\r100%", f"{tmp_path}/a\nb.py:7", 0, 1024))
    (command,) = error_annotations(compared, root=tmp_path)
    properties, message = parsed(command)
    assert properties["file"] == "a\nb.py"
    assert message.endswith(r"x\n::error::y\r100%")


def test_there_is_no_annotation_unless_the_peak_grew_by_more_than_allowed(tmp_path):
    row = ("activation", "m", "x", f"{tmp_path}/a.py:7", 0, 1024)
    assert error_annotations(comparison(row, old=2000, new=2000), root=tmp_path) == []
    assert error_annotations(comparison(row, old=2000, new=2099), root=tmp_path, allowed_ratio=0.05) == []
    assert len(error_annotations(comparison(row, old=2000, new=2200), root=tmp_path, allowed_ratio=0.05)) == 1


def test_github_gets_the_largest_annotations_that_it_shows(tmp_path):
    rows = [("activation", "m", str(n), f"{tmp_path}/a.py:{n}", 0, n) for n in range(1, 15)]
    lines = [parsed(each)[0]["line"] for each in error_annotations(comparison(*rows), root=tmp_path)]
    assert lines == [str(n) for n in range(14, 14 - MOST_ANNOTATIONS, -1)]


def test_the_workflow_of_the_documentation_is_yaml_with_commands_that_exist():
    """It has about 20 lines; each command of memwatch in it parses."""
    yaml = pytest.importorskip("yaml")
    import shlex

    from memwatch.cli.main import _parser
    from memwatch.cli.program import parse

    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    text = re.search(r"```yaml[^\n]*\n(.*?)```", page, re.DOTALL)[1]
    steps = yaml.safe_load(text)["jobs"]["memory"]["steps"]
    assert len(text.splitlines()) <= 20
    commands = [shlex.split(step["run"].partition(" > ")[0]) for step in steps if "run" in step]
    ours = [words[1:] for words in commands if words[0] == "memwatch"]
    assert [words[0] for words in ours] == ["run", "run", "diff"]
    for words in ours:
        parse(_parser(words[0]), words)
