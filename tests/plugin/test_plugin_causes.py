"""Many tests that leak for one reason: one cause, reported once."""

from __future__ import annotations

import json
import os
import re
import textwrap

import pytest
from pytest_memwatch.summary import causes_of

MODULES = """
    import pytest, torch
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(100))
            self.checked = self.check
        def check(self): pass
    class Kernel(Module): pass
    class Likelihood(Module): pass
    @pytest.mark.parametrize("n", range(40))
    def test_module(n): [Module, Kernel, Likelihood][n % 3]()
"""


@pytest.mark.words
def test_one_cause_in_forty_tests_fits_one_screen(session):
    """The failures show one test, the summary names the cause with its tests, bytes, advice and the rule to copy."""
    result = session(MODULES, "--memwatch-leaks=all")
    result.assert_outcomes(failed=40)
    result.stdout.fnmatch_lines(
        [
            "*= FAILURES =*",
            "*_ test_module*",
            "Test leaked 400 B in 1 tensor, freed only by gc: cycle through * (cause-*)",
            "Leaks: 40 tests, 1 cause",
            "cause-*  40 tests, 15.62 KiB: freed only by gc: cycle through attribute .checked of *",
            "  advice: *",
            "  to tolerate it, in the ini file: memwatch_ignore = cause-*: known, *",
            "  first tests: *::test_module*, * (all of them with -v or --memwatch-json)",
            "*= 40 failed in *",
        ]
    )
    assert len(result.stdout.lines) <= 50
    assert sum("LEAK " in line for line in result.stdout.lines) == 3


def test_the_rule_of_a_cause_tolerates_it_in_every_test(session):
    """The line of the summary, put unchanged into the ini file, lets all tests of the cause pass; no others."""
    modules = MODULES.replace("range(40)", "range(6)")
    lines = session(modules, "--memwatch-leaks=all").stdout.lines
    [rule] = [line.partition("in the ini file: ")[2] for line in lines if "in the ini file: " in line]
    source = modules + "\n    KEPT = []\n    def test_other(): KEPT.append(torch.ones(10))\n"
    session(source, "--memwatch-leaks=all", ini=f"{rule}\n").assert_outcomes(passed=6, failed=1)


def test_a_verbose_run_shows_every_test(session):
    """With -v every line is shown. The lines of a test about itself are always shown."""
    source = """
        import torch
        KEPT = []
        def test_a(): KEPT.append(torch.ones(10))
        def test_b(): KEPT.append(torch.ones(10))
        def test_c(): assert False
    """
    lines = session(source, "--memwatch-leaks=all", "-v").stdout.lines
    assert sum(line.startswith("Test leaked 40 B in 1 tensor") for line in lines) == 2
    assert any("assert False" in line for line in lines)


def test_leaks_below_the_least_size_do_not_count(session):
    """The option overrides the ini file, and the summary counts the omitted leaks."""
    source = """
        import torch
        KEPT = []
        def test_small(): KEPT.append(torch.ones(10))
        def test_large(): KEPT.append(torch.ones(1000))
    """
    ini = "memwatch_leaks_min_bytes = 1 MiB\n"
    result = session(source, "--memwatch-leaks=all", "--memwatch-leaks-min-bytes=1KiB", ini=ini)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["Not counted: 1 leak (40 B) of less than 1.00 KiB each"])


def test_causes_of_several_processes_are_one():
    """Rows that workers sent are merged by the name of the cause: tests are listed, bytes are added."""
    leak = {
        **dict.fromkeys(("holder", "reference", "tensor", "advice"), "x"),
        "hook": "",
        "kind": "cycle",
        "cause": "cause-1",
        "site": None,
        "path": [],
        "count": 1,
    }
    rows = {
        "a::test": {"failed": "leak", "leaks": [{**leak, "nbytes": 10}, {**leak, "nbytes": 20}]},
        "b::test": {"failed": "leak", "leaks": [{**leak, "nbytes": 5, "site": "b.py:1 in f"}]},
        "c::test": {"failed": None, "leaks": [{**leak, "nbytes": 5}]},
    }
    [cause] = causes_of(rows, {})
    assert (cause["tests"], cause["nbytes"], cause["count"]) == (["a::test", "b::test"], 35, 3)


WINDOW = """
    import pytest, torch
    RECENT, ALL = [], []
    @pytest.mark.parametrize("n", range(6))
    def test_window(n):
        RECENT.append(torch.ones(10))
        if len(RECENT) > 2: RECENT.pop(0)
    @pytest.mark.parametrize("n", range(2))
    def test_all(n): ALL.append(torch.ones(20))
"""


def test_the_summary_says_what_later_tests_freed(session):
    """One run of a test does not tell a window that fills from growth; tests after it do. Workers send it."""
    result = session(WINDOW, "--memwatch-leaks=all", "-n", "1")
    result.assert_outcomes(passed=4, failed=4)
    lines = result.stdout.lines
    [at] = [number for number, line in enumerate(lines) if "freed before the session ended" in line]
    assert "all 2 of its tensors" in lines[at]
    assert "RECENT" in lines[at - 2]


@pytest.mark.words
def test_one_leak_and_one_tensor_are_in_the_singular(session):
    """The counts of ignored leaks and of cycles too."""
    source = """
        import torch
        from unittest import mock
        RECENT, KEPT = [], []
        def test_window(): RECENT.append(torch.ones(10))
        def test_freeing(): RECENT.clear()
        def test_ignored(): KEPT.append(torch.ones(10))
        def test_mock(): mock.MagicMock()(torch.ones(10))
    """
    result = session(source, "--memwatch-leaks=all", ini="memwatch_ignore = *KEPT*: known\n")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "  freed before the session ended: its only tensor*",
            "Not counted: 1 cycle (*",
            "* 1 leak  [*]KEPT[*]: known",
        ]
    )


SHARED = """
    import pytest, torch
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(100))
            self.checked = self.check
        def check(self): pass
    class Own:
        def __init__(self, n):
            self.values = torch.ones(50 + n)
            setattr(self, f"me_{'abcdefghijklmnopqrstuvwxyz'[n % 26] * (1 + n // 26)}", self)
    @pytest.mark.parametrize("n", range(40))
    def test_both(n): Shared(), Own(n)
    @pytest.mark.parametrize("n", range(20))
    def test_shared(n): Shared()
"""


WRONG = """
    def test_wrong(): assert 'apples' == 'pears'
"""


KEPT = """
    import functools
    @functools.lru_cache(maxsize=None)
    def kept(n): return torch.ones(1000)
    @pytest.mark.parametrize("n", range(3))
    def test_kept(n): kept(n)
"""


@pytest.mark.parametrize(("kept", "server"), [(True, "true"), (False, "")])
def test_a_suite_with_many_causes_has_a_report_of_120_lines(session, monkeypatch, kept, server):
    """The common cause is reported once, with the number of its tests. Others get a line each, then a count.

    Only tests that fail by a leak alone are left out: a traceback is shown beside them. The sections that follow the
    causes take their lines from the causes. On a server for continuous integration, pytest repeats the whole message
    of an ordinary failure in its short summary.
    """
    monkeypatch.setenv("CI", server)
    result = session(SHARED + WRONG + KEPT * kept, "--memwatch-leaks=all")
    result.assert_outcomes(failed=61, passed=3 * kept)
    assert not kept or "Kept by caches" in str(result.stdout)
    lines = result.stdout.lines
    [begin] = [number for number, line in enumerate(lines) if line.strip("_ ") == "test_wrong"]
    [end] = [
        number for number, line in enumerate(lines) if re.fullmatch(r"\S+\.py:\d+: AssertionError", line)
    ]
    [again] = [number for number, line in enumerate(lines) if line.startswith("FAILED ")]
    [after] = [
        number
        for number, line in enumerate(lines)
        if line.startswith("and ") and "tests with other causes (-v" in line
    ]
    assert len(lines) - len(lines[begin : end + 1]) - len(lines[again:after]) <= 120
    assert len([line for line in lines if line.startswith("cycle: ") and ".checked" in line]) == 1
    result.stdout.fnmatch_lines(
        [
            "Test leaked * cycle through attribute .checked of Shared* (cause-*, 60 tests) (and 1 more)",
            "Test leaked the same as *::test_both?0? (cause-*, 60 tests), and more",
            "cycle: 204 B in 1 tensor, *.me_b of Own",
            "and * tests with other causes, which the section memwatch lists; -v shows each test",
            "Leaks: 60 tests, 41 causes",
            "cause-*  60 tests, *: freed only by gc: cycle through attribute .checked of Shared*",
            "and * more causes (all of them with -v or --memwatch-json)",
            "and * tests with other causes (-v shows each): *::test_*",
        ]
    )
    result.stdout.fnmatch_lines_random(
        ["E *AssertionError: assert 'apples' == 'pears'", "FAILED *::test_wrong*"]
    )
    text = result.stdout.str()
    assert [name for number in range(26) if (name := f"::test_both[{number}]") not in text] == []
    assert [name for number in range(20) if (name := f"::test_shared[{number}]") not in text] == []


def test_each_cause_has_a_line_while_the_report_has_room(session):
    """The failures of a few tests leave most of their lines to the causes."""
    names = SHARED.partition("@pytest")[0]
    source = names + "@pytest.mark.parametrize('n', range(20))\n    def test_own(n): Own(n)\n"
    result = session(source, "--memwatch-leaks=all")
    result.assert_outcomes(failed=20)
    lines = result.stdout.lines
    assert len(lines) <= 120
    assert len([line for line in lines if line.startswith("cause-")]) == 20
    result.stdout.no_fnmatch_line("and * more cause*")


def test_one_test_with_many_causes_has_a_short_report(session):
    """Its leaks are listed up to the limit of lines."""
    source = SHARED.partition("@pytest")[0] + "def test_all(): [Own(n) for n in range(26)]\n"
    result = session(source, "--memwatch-leaks=all")
    result.assert_outcomes(failed=1)
    assert len(result.stdout.lines) <= 120
    result.stdout.fnmatch_lines(["and * more, which the section memwatch lists; -v shows each"])


KEEPER = """
    import torch
    KEPT = []
    def keep(): KEPT.append(torch.ones(100))
"""


def test_a_cause_has_one_name_from_every_folder_and_two_files_have_two_causes(pytester, monkeypatch):
    """Two folders have a file of one name, and pytest starts in the root folder and below it."""
    pytester.makeini("[pytest]\n")
    for folder in ("first", "second"):
        below = pytester.mkpydir(folder)
        (below / "keeper.py").write_text(textwrap.dedent(KEEPER))
        (below / f"test_{folder}.py").write_text(
            f"from {folder} import keeper\ndef test_leak(): keeper.keep()\n"
            "def test_twin(): keeper.KEPT.clear()\n"
        )
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    names = []
    for started_in in (pytester.path, pytester.path / "second"):
        monkeypatch.chdir(started_in)
        output = pytester.path / "out.json"
        pytester.runpytest_subprocess("--memwatch-leaks=all", f"--memwatch-json={output}", str(pytester.path))
        data = json.loads(output.read_text())
        assert [len(cause["tests"]) for cause in data["causes"]] == [1, 1]
        names.append({cause["cause"] for cause in data["causes"]})
    assert len(names[0]) == 2
    assert names[0] == names[1]
