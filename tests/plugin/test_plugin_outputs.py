"""The files that a session writes at its end: results and baselines."""

from __future__ import annotations

import json
import os

import pytest

RAN = "RAN = open('ran', 'w')\n"
SUITE = RAN + "import torch\ndef test_a(): torch.ones(10)\n"


def baseline(pytester):
    """Return the file of the baseline `main`."""
    return pytester.path / ".memwatch" / "main.json"


def is_usage_error(result, pytester):
    """Return whether the session ended before any test, with an error of one line."""
    lines = [line for line in result.errlines if line]
    return (
        result.ret == pytest.ExitCode.USAGE_ERROR and len(lines) == 1 and not (pytester.path / "ran").exists()
    )


def test_a_test_file_in_place_of_the_forgotten_path_is_not_replaced(session, pytester):
    pytester.makepyfile(test_other="def test_b(): pass\n")
    file = pytester.path / "test_other.py"
    before = file.read_text()
    assert is_usage_error(session(SUITE, "--memwatch-json", "test_other.py", "."), pytester)
    assert file.read_text() == before


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"format": "memwatch-baseline"}', "{" * 100_000], ids=range(6)
)
def test_a_file_that_is_no_result_is_not_replaced(session, pytester, content):
    file = pytester.path / "out.json"
    file.write_text(content)
    assert is_usage_error(session(SUITE, "--memwatch-json=out.json"), pytester)
    assert file.read_text() == content


def test_results_of_an_earlier_session_are_replaced(session, pytester):
    file = pytester.path / "new" / "folder" / "out.json"
    session(SUITE, "--memwatch-json=new/folder/out.json").assert_outcomes(passed=1)
    before = json.loads(file.read_text())
    file.write_text(json.dumps(dict(sorted(before.items()))))  # as by `jq -S`
    session(SUITE.replace("test_a", "test_b"), "--memwatch-json=new/folder/out.json").assert_outcomes(
        passed=1
    )
    assert json.loads(file.read_text())["tests"][0]["nodeid"].endswith("::test_b")


def test_a_file_that_is_no_baseline_is_not_replaced(session, pytester):
    baseline(pytester).parent.mkdir()
    baseline(pytester).write_text('{"mine": 1}')
    assert is_usage_error(session(SUITE, "--memwatch-save=main"), pytester)
    assert baseline(pytester).read_text() == '{"mine": 1}'


@pytest.mark.parametrize("path", ["folder", "/proc/x.json", "/proc/x/y.json", "file/x.json", "/dev/null"])
def test_results_that_cannot_be_written_are_a_usage_error(session, pytester, path):
    (pytester.path / "folder").mkdir()
    (pytester.path / "file").write_text("")
    assert is_usage_error(session(SUITE, f"--memwatch-json={path}"), pytester)
    assert not [name for name in os.listdir(pytester.path) if name.endswith(".part")]


@pytest.mark.parametrize("make", ["folder", "file"])
def test_a_baseline_that_cannot_be_written_is_a_usage_error(session, pytester, make):
    if make == "folder":
        baseline(pytester).mkdir(parents=True)
    else:
        baseline(pytester).parent.write_text("")
    assert is_usage_error(session(SUITE, "--memwatch-save=main"), pytester)


def test_one_file_for_results_and_baseline_is_a_usage_error(session, pytester):
    options = ("--memwatch-json=.memwatch/main.json", "--memwatch-save=main")
    assert is_usage_error(session(SUITE, *options), pytester)


def test_the_check_of_the_outputs_leaves_nothing_behind(session, pytester):
    """The session makes the folders at its end, and only if it has results to write."""
    session(SUITE, "--memwatch-json=new/out.json", "--memwatch-save=main", "--collect-only")
    assert not {"new", ".memwatch"} & set(os.listdir(pytester.path))


@pytest.mark.parametrize("put", ["mkdir()", "write_text('mine')"])
def test_an_output_that_a_test_takes_away_costs_neither_report_nor_other_outputs(session, pytester, put):
    result = session(
        f"""
        from pathlib import Path
        def test_a(): Path("out.json").{put}
        def test_b(): assert False
        """,
        "--memwatch-json=out.json",
        "--memwatch-save=main",
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    assert sum(str(pytester.path / "out.json") in line for line in result.outlines) == 1
    assert baseline(pytester).is_file()
    file = pytester.path / "out.json"
    assert file.is_dir() or file.read_text() == "mine"
