"""The verbs that read captures: their output, their refusals, their exit codes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import memwatch
from memwatch.cli.main import VERBS, main
from memwatch.sizes import format_bytes
from memwatch.words.storages import file_of_site, short_site, site_name

READERS = [["summary"], ["stats"], ["tree"], ["report"], ["transform", "csv"]]


def words_for(verb, capture):
    """Put the capture behind the verb."""
    return [verb[0], str(capture), *verb[1:]]


@pytest.mark.parametrize("verb", ["summary", "stats", "tree", "diff"])
def test_a_verb_says_the_peak(verb, narrow, capsys):
    """Whatever is printed about a capture holds its peak, in a binary unit."""
    peak = format_bytes(memwatch.load(narrow).peak_bytes)
    assert main([verb, str(narrow), *([str(narrow)] if verb == "diff" else [])]) == 0
    assert peak in capsys.readouterr().out


def test_rows_limit_what_is_listed(narrow, capsys):
    """`-n` shortens tables and branches; the rest is one line."""
    for verb in ("summary", "tree", "stats"):
        lengths = []
        for rows in ("1", "50"):
            assert main([verb, "-n", rows, str(narrow)]) == 0
            lengths.append(len(capsys.readouterr().out.splitlines()))
        assert lengths[0] < lengths[1]


def test_a_tree_splits_by_any_text_column(narrow, capsys):
    """`--by` names the levels. A name that is not a column is wrong usage."""
    assert main(["tree", "--by", "op_name", str(narrow)]) == 0
    assert "aten." in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["tree", "--by", "nbytes", str(narrow)])
    assert ended.value.code == 2


def test_stats_as_json_are_the_numbers_of_the_reading(narrow, capsys):
    """`stats --json` gives exact bytes."""
    assert main(["stats", "--json", str(narrow)]) == 0
    figures = json.loads(capsys.readouterr().out)
    reading = memwatch.load(narrow)
    for name in ("peak_bytes", "baseline_bytes", "peak_increase_bytes"):
        assert figures[name] == getattr(reading, name)


def test_a_report_goes_beside_its_capture_and_over_nothing(narrow, tmp_path, capsys):
    """The page takes the capture's name; it replaces a file only with -f; --no-source hides the paths."""
    capture = tmp_path / "run.memwatch"
    capture.write_bytes(narrow.read_bytes())
    assert main(["report", str(capture)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run.html'}\n"
    assert main(["report", str(capture)]) == 1
    assert re.fullmatch(r"memwatch: error: \S+ exists; .* -f\n", capsys.readouterr().err)
    full = (tmp_path / "run.html").read_text()
    assert main(["report", "-f", "--no-source", str(capture)]) == 0
    assert __file__.rpartition("/")[0] in full
    assert __file__.rpartition("/")[0] not in (tmp_path / "run.html").read_text()


def test_diff_adds_up_and_fails_only_above_the_share(narrow, wide, capsys):
    """Sites sum to the peaks; only growth above the allowed share fails, and only if a share is given."""
    old, new = (memwatch.load(path).peak_bytes for path in (narrow, wide))
    assert main(["diff", "--json", str(narrow), str(wide)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert sum(site["old_bytes"] for site in figures["sites"]) == figures["old_peak_bytes"] == old
    assert sum(site["new_bytes"] for site in figures["sites"]) == figures["new_peak_bytes"] == new
    deltas = [abs(site["delta_bytes"]) for site in figures["sites"]]
    assert deltas == sorted(deltas, reverse=True)
    growth = 100 * (new / old - 1)
    for words, code in (([narrow, wide], 1), ([wide, narrow], 0), ([narrow, narrow], 0)):
        assert main(["diff", "--fail-above", f"{growth / 2}%", *map(str, words)]) == code
    for allowed, code in ((growth + 0.01, 0), (growth - 0.01, 1)):
        assert main(["diff", "--fail-above", f"{allowed}%", str(narrow), str(wide)]) == code


def test_diff_for_github_prints_markdown_and_annotations_apart(narrow, wide, monkeypatch, capsys):
    """The table goes to standard output and the commands to standard error; the exit code is the same."""
    monkeypatch.chdir(Path(__file__).parent)
    words = ["diff", "--format", "github", "--fail-above", "1%"]
    assert main([*words, str(narrow), str(wide)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("### Memory peak: ")
    assert "more than the allowed 1 %" in out
    line = re.escape("file=tests/cli/conftest.py,line=")
    assert all(re.match(rf"::error {line}\d+,title=\+", each) for each in err.splitlines())
    assert err
    assert main([*words, str(wide), str(narrow)]) == 0
    assert capsys.readouterr().err == ""


def test_diff_shows_its_figures_whole_in_a_narrow_terminal(narrow, wide, monkeypatch, capsys):
    """Where a line is short, names are cut and sizes are not."""
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["diff", str(narrow), str(wide)]) == 0
    lines = capsys.readouterr().out.split("Site\n")[1].splitlines()
    assert lines
    size = r"[-+]?[\d.]+ (?:[KMG]i)?B"
    assert all(re.match(rf"\s*(?:{size}\s+){{3}}", line) for line in lines if "more sites" not in line)


def test_diff_says_that_the_peak_is_at_another_moment(tmp_path, capsys):
    """Lines may move: an edit above them changes no moment."""

    def with_peak_in(function, name):
        with memwatch.profile() as prof:
            function()
        prof.save(tmp_path / name)
        return str(tmp_path / name)

    def multiplied():
        return torch.ones(1 << 16) * 2

    def added():
        return torch.ones(1 << 16) + 2

    old, new = with_peak_in(multiplied, "old.memwatch"), with_peak_in(added, "new.memwatch")
    again = with_peak_in(multiplied, "again.memwatch")
    assert main(["diff", old, new]) == 0
    assert "another moment now: op add (forward) at test_cli_readers.py:" in capsys.readouterr().out
    assert main(["diff", old, again]) == 0
    assert "another moment" not in capsys.readouterr().out


def test_diff_tells_sites_by_name_where_lines_moved(tmp_path, capsys):
    """The same program with lines added above it has no changed site."""
    head = "import memwatch, torch\n{}def work():\n    return torch.ones(1000)\n"
    lines = head + "with memwatch.profile(r'{}'):\n    work()\n"
    for number, above in enumerate(("", "\n\n")):
        code = compile(lines.format(above, tmp_path / f"{number}.memwatch"), "/somewhere/program.py", "exec")
        exec(code, {})
    assert main(["diff", str(tmp_path / "0.memwatch"), str(tmp_path / "1.memwatch")]) == 0
    assert "No site changed" in capsys.readouterr().out


def recorded(path, file, lines):
    """Record a function with these lines, as if it stood in a file of that name."""
    body = "".join(f"    {line}\n" for line in lines)
    text = f"import memwatch, torch\ndef work():\n{body}with memwatch.profile(r'{path}'):\n    work()\n"
    exec(compile(text, f"/somewhere/{file}", "exec"), {})
    return str(path)


@pytest.mark.words
def test_diff_sums_the_changes_of_each_category(tmp_path, capsys):
    """A site alone does not show how much the gradients or the activations grew. One category is the headline."""
    step = ["model = torch.nn.Linear(8, 8)", "model(torch.ones({}, 8)).sum().backward()", "return model"]
    old, new = (
        recorded(tmp_path / f"{rows}.memwatch", "train.py", [line.format(rows) for line in step])
        for rows in (1000, 3000)
    )
    assert main(["diff", old, new]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("By category: "))
    sums = memwatch.load(new).at_peak.groupby("category")["nbytes"].sum()
    before = memwatch.load(old).at_peak.groupby("category")["nbytes"].sum()
    for category, nbytes in (sums - before).dropna().items():
        assert (f"{category} +{format_bytes(int(nbytes))}" in line) == (nbytes > 0)
    old = recorded(tmp_path / "a.memwatch", "train.py", ["return torch.ones(1000)"])
    new = recorded(tmp_path / "b.memwatch", "train.py", ["return torch.ones(2000)"])
    assert main(["diff", old, new]) == 0
    assert "By category" not in capsys.readouterr().out


@pytest.mark.parametrize("form", [[], ["--format", "github"]])
@pytest.mark.parametrize("copy", ["train_2.py", "train (1).py"])
def test_diff_matches_the_sites_of_a_script_and_its_renamed_copy(tmp_path, capsys, form, copy):
    """A file with the same name in both captures keeps it, whatever else matches."""
    old = recorded(tmp_path / "old.memwatch", "train.py", ["return torch.ones(1000)"])
    new = recorded(tmp_path / "new.memwatch", copy, ["return torch.ones(1000)"])
    assert main(["diff", *form, old, new]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"The sites of train.py are compared with the sites of {copy}" in told
    assert "No site changed" in told
    assert main(["diff", *form, old, old]) == 0
    assert "are compared with" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "lines",
    [
        ["return torch.zeros(10) + 1"],
        ["a = torch.ones(9)", "b = a.exp(), a.sin(), a.cos()", "return a, b, a + a"],
    ],
    ids=["none common", "one of many"],
)
def test_diff_matches_no_file_of_another_program(tmp_path, capsys, lines):
    """Both may call one op in a function of one name."""
    one = ["a = torch.ones(1000)", "b = a.tan(), a.log(), a * a", "return a, b"]
    old = recorded(tmp_path / "old.memwatch", "one.py", one)
    new = recorded(tmp_path / "new.memwatch", "other.py", lines)
    assert main(["diff", old, new]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "matched no file of the old capture (one.py) with a file of the new one (other.py)" in told
    assert "are compared with" not in told


def test_the_name_of_a_thread_is_no_file():
    """Python names threads after their functions."""
    site = "made in thread Thread-1 (train)"
    assert file_of_site(site, "") == file_of_site(site, "loop.py:3") == ""
    assert file_of_site(site_name("aten.ones", "f", "a (b).py"), "/c/a (b).py:3") == "a (b).py"


@pytest.mark.parametrize(
    ("site", "shown"),
    [
        ("aten.addmm.default in f (x.py)", "addmm in f (x.py)"),
        ("`0.0.weight` .grad",) * 2,
        ("blocks.0.weight",) * 2,
    ],
)
def test_diff_shortens_ops_and_leaves_names_whole(site, shown):
    """The dots in a parameter's name do not mark a namespace or an overload."""
    assert short_site(site) == shown


def test_transform_writes_every_format(narrow, tmp_path, capsys):
    """CSV parses to the table, the others to JSON; a file is kept unless forced."""
    assert main(["transform", str(narrow), "csv", "--table", "ops"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == memwatch.load(narrow).ops["name"].tolist()
    for name in ("json", "speedscope", "chrome"):
        target = tmp_path / name
        assert main(["transform", str(narrow), name, "-o", str(target)]) == 0
        assert json.loads(target.read_text())
        assert main(["transform", str(narrow), name, "-o", str(target)]) == 1


@pytest.mark.parametrize("verb", READERS, ids=lambda verb: verb[0])
def test_what_is_no_capture_is_one_clear_line(verb, tmp_path, capsys):
    """Missing, empty and foreign files and folders: exit 1 and one line that names the file."""
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("Dear diary,\n")
    (tmp_path / "folder").mkdir()
    with sqlite3.connect(tmp_path / "database") as database:
        database.execute("CREATE TABLE ops (op INTEGER)")
    for name in ("missing", "empty", "text", "folder", "database"):
        assert main(words_for(verb, tmp_path / name)) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert re.fullmatch(rf"memwatch: error: [^\n]*{name}[^\n]*\n", said.err), said.err


WRONG = [
    "summary", "summary -n 0 x", "summary -n x x", "run", "run -m", "run -m -c x", "run --fast x",
    "diff x", "diff --fail-above 5 x y", "diff --fail-above nan% x y", "transform x pdf", "stats --js x",
]  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_exits_2(words, capsys):
    """The message follows the usage of the verb."""
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("usage: memwatch")
    assert "error: " in said.splitlines()[-1]


def test_the_command_alone_says_what_to_type(capsys):
    """A few lines of 80 columns name existing verbs. The exit code means wrong usage."""
    assert main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    named = [words[1] for words in map(str.split, lines) if words[:1] == ["memwatch"]]
    assert len(named) == 5
    assert {*named} <= {*VERBS}
    assert max(map(len, lines)) <= 80
    assert "memwatch --help" in " ".join(lines)


def test_help_names_every_verb_and_each_verb_explains_itself(capsys):
    """Help exits 0; the list has every verb's first line, and the verb's own help has its examples."""
    for words in ([], *([verb] for verb in VERBS)):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert re.search(rf"^    memwatch {words[0] if words else 'run'}( |$)", text, re.MULTILINE)
        if not words:
            assert all(re.search(rf"^    {verb} +\S", text, re.MULTILINE) for verb in VERBS)


def test_lines_fit_the_terminal_and_hold_no_codes(narrow, monkeypatch, capsys):
    """COLUMNS sets the width; away from a terminal nothing is coloured."""
    monkeypatch.setenv("COLUMNS", "60")
    for verb in (["summary"], ["tree"], ["stats"], ["diff", str(narrow)]):
        assert main([*verb, str(narrow)]) == 0
        text = capsys.readouterr().out
        # code and commands are never wrapped, so that a copy of them runs
        lines = text.partition("Code for the change")[0].partition("\nNext: ")[0].splitlines()
        lines = [line for line in lines if not re.match(r"    .* summary -n \d", line)]
        assert max(map(len, lines)) <= 60
        assert "\x1b" not in text


def test_a_reader_that_leaves_early_is_no_error(narrow):
    """`memwatch transform ... | head` ends in silence with exit code 0, as does a closed standard output."""
    words = f"{sys.executable} -m memwatch transform {narrow} json"
    for pipe in ("| head -c 10", ">&-"):
        shell = ["bash", "-c", f"set -o pipefail; {words} {pipe}"]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_profile_for_pprof_lies_beside_the_capture_and_is_not_overwritten(narrow, tmp_path, capsys):
    """It is a gzip file whose path is printed; an existing file stays without -f."""
    capture = tmp_path / "a.memwatch"
    capture.write_bytes(narrow.read_bytes())
    target = tmp_path / "a.pb.gz"
    assert main(["transform", str(capture), "pprof"]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    content = target.read_bytes()
    assert gzip.decompress(content)
    target.write_bytes(b"mine")
    assert main(["transform", str(capture), "pprof"]) == 1
    assert target.read_bytes() == b"mine"
    assert main(["transform", "-f", str(capture), "pprof", "-o", str(target)]) == 0
    assert target.read_bytes() == content


STALE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in "ab"))

    def forward(self, x):
        self.last_input = x
        return self.layers(x)

def main():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        net(torch.randn(1024, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

main()
"""


def test_ways_and_stale_memory_change_no_exit_code_and_growth_above_the_share_does(
    shell_memwatch, narrow, wide, tmp_path, monkeypatch
):
    """`test_cli_leaks.py` has the codes of programs with and without leaks, and `test_plugin_findings.py` the gate."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(STALE)
    done = shell_memwatch("run", "-o", "train.memwatch", "train.py")
    assert done.returncode == 0, done.stderr
    prof = memwatch.load("train.memwatch")
    assert len(prof.ways)
    assert "stale" in [str(finding.kind) for finding in prof.findings]
    of_readers = {
        ("summary", "train.memwatch"): 0,
        ("stats", "train.memwatch"): 0,
        ("tree", "train.memwatch"): 0,
        ("report", "train.memwatch"): 0,
        ("diff", "train.memwatch", "train.memwatch"): 0,
        ("diff", str(narrow), str(wide)): 0,
        ("diff", "--fail-above", "1%", "train.memwatch", "train.memwatch"): 0,
        ("diff", "--fail-above", "1%", str(narrow), str(wide)): 1,
    }
    assert {words: main([*words]) for words in of_readers} == of_readers
