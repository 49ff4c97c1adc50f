"""JSON file, pages, baselines."""

from __future__ import annotations

import json

SOURCE = """
    import pytest, torch
    KEPT = []
    @pytest.mark.no_tensor_leaks
    def test_leak(): KEPT.append(torch.ones(1000))
    @pytest.mark.limit_peak_memory(10)
    def test_peak(): torch.ones(1000)
    def test_fails():
        torch.ones(10)
        assert False
    def test_fine(): torch.ones(25)
    @pytest.mark.allow_tensor_leaks(reason="on purpose")
    def test_allowed(): KEPT.append(torch.ones(5))
"""
FIGURES = {"peak_bytes", "baseline_bytes", "peak_increase_bytes", "device", "allocations", "top"}


def nodeid_of(data, name):
    """Return the node id of a test."""
    return next(test["nodeid"] for test in data["tests"] if test["nodeid"].endswith(f"::{name}"))


def test_json_holds_every_test(results, pytester):
    """For each test the file has the measurements and leaks, as plain data with units."""
    tests = results(SOURCE)
    assert list(tests) == ["test_allowed", "test_fails", "test_fine", "test_leak", "test_peak"]
    assert {name: test["failed"] for name, test in tests.items()} == {
        "test_allowed": None,
        "test_fails": None,
        "test_fine": None,
        "test_leak": "leak",
        "test_peak": "peak",
    }
    assert all(test.keys() >= {"outcome", "duration_s", *FIGURES} for test in tests.values())
    assert [tests[name]["outcome"] for name in ("test_fine", "test_leak", "test_fails")] == [
        "passed",
        "failed",
        "failed",
    ]
    assert tests["test_fine"]["peak_increase_bytes"] == 100
    assert tests["test_fails"]["peak_increase_bytes"] == 40
    assert tests["test_peak"]["limit_bytes"] == 10
    assert tests["test_allowed"]["allowed"] == "on purpose"
    assert tests["test_fine"]["top"][0].keys() == {"nbytes", "count", "line", "op", "stack"}
    [leak] = tests["test_leak"]["leaks"]
    assert leak["kind"] == "retained"
    assert (leak["nbytes"], leak["count"]) == (4000, 1)
    assert leak["holder"].startswith("global `KEPT`")
    assert leak.keys() >= {"path", "site", "advice", "tensor", "per_call"}
    data = json.loads((pytester.path / "out.json").read_text())
    assert data.keys() == {"format", "version", "memwatch", "ignore_rules", "causes", "tests"}
    [cause] = data["causes"]
    assert (
        cause.items()
        >= {"tests": [nodeid_of(data, "test_leak")], "nbytes": 4000, "advice": leak["advice"]}.items()
    )
    assert (data["format"], data["version"]) == ("memwatch-pytest", 1)


def test_one_page_per_failing_test(session, pytester):
    """Each failing test gets a page that holds its leak; passing tests get none; long names are bounded."""
    result = session(
        SOURCE
        + f"""
    @pytest.mark.parametrize("name", ["{"x" * 200}/../a b", "{"x" * 200}/../a c"])
    def test_named(name): assert False
    """,
        "--memwatch-html=pages",
    )
    pages = sorted(pytester.path.joinpath("pages").iterdir())
    assert len(pages) == 5
    assert all(len(page.name) < 120 for page in pages)
    leak = next(page for page in pages if "test_leak" in page.name)
    assert "global `KEPT` of module" in leak.read_text(encoding="utf-8")
    result.stdout.fnmatch_lines(["Pages of failing tests", f"*{leak.name}"])


def test_a_leak_that_a_test_asserts_itself_gets_its_page_too(session, pytester):
    """check_leaks and assert_no_leaks in a body, async bodies and cycles: the page holds the leak's path and advice."""
    session(
        """
        import pytest, torch
        from memwatch.leaks import check_leaks
        KEPT = []
        def test_checked():
            with check_leaks(): KEPT.append(torch.ones(1000))
        def test_asserted(memwatch): memwatch.assert_no_leaks(lambda: KEPT.append(torch.ones(1000)))
        @pytest.mark.asyncio
        @pytest.mark.no_tensor_leaks
        async def test_awaited(): KEPT.append(torch.ones(1000))
        """,
        "--memwatch-html=pages",
    ).assert_outcomes(failed=3)
    pages = {
        page.name.split(".py-")[1].rpartition("-")[0]: page
        for page in pytester.path.joinpath("pages").iterdir()
    }
    assert sorted(pages) == ["test_asserted", "test_awaited", "test_checked"]
    for page in pages.values():
        text = page.read_text(encoding="utf-8")
        for words in ("global `KEPT` of module", "3.91 KiB", "the container grows and keeps each entry"):
            assert words in text, (page.name, words)


def test_pages_are_written_again(session, pytester):
    """A second run replaces the page of the first."""
    source = "import torch\ndef test_fails():\n    torch.ones(3)\n    assert False\n"
    session(source, "--memwatch-html=pages")
    session(source, "--memwatch-html=pages")
    assert len(list(pytester.path.joinpath("pages").iterdir())) == 1


def _suite(sizes):
    return "import torch\n" + "".join(f"def test_{name}(): torch.ones({n})\n" for name, n in sizes.items())


def test_baseline_fails_upward_only(session):
    """A peak above the tolerance fails, one below or lower never does; new tests pass."""
    session(_suite({"a": 1000, "b": 1000, "c": 1000}), "--memwatch-save=main").assert_outcomes(passed=3)
    result = session(
        _suite({"a": 1040, "b": 1060, "c": 10, "new": 5000}),
        "-v",
        "--memwatch-compare=main",
        "--memwatch-compare-fail=5%",
    )
    result.stdout.fnmatch_lines(
        [
            "*::test_a PASSED*",
            "*::test_b PEAK*",
            "*::test_c PASSED*",
            "*::test_new PASSED*",
            "Peak rose from 3.91 KiB to 4.14 KiB, more than the 5% allowed",
            "Compared with baseline 'main': 2 up, 1 down, 0 equal, 1 not in it",
            "*3.91 KiB -> *4.14 KiB  *+6.0 %  *::test_b",
        ]
    )


def test_comparison_alone_never_fails(session):
    """Without a tolerance the change is shown; without a name the latest baseline is taken."""
    session(_suite({"a": 10}), "--memwatch-save=old")
    session(_suite({"a": 20}), "--memwatch-save=new")
    result = session(_suite({"a": 30}), "--memwatch-compare")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["Compared with baseline 'new': 1 up, 0 down*", "*80 B -> *120 B*"])


def test_tolerance_may_be_a_size(session):
    """--memwatch-compare-fail takes bytes too."""
    session(_suite({"a": 1000}), "--memwatch-save=main")
    options = ("--memwatch-compare=main", "--memwatch-compare-fail=100B")
    session(_suite({"a": 1025}), *options).assert_outcomes(passed=1)
    session(_suite({"a": 1026}), *options).assert_outcomes(failed=1)


def test_saving_again_keeps_tests_that_did_not_run(session, pytester):
    """A run of a part of the suite updates its tests and leaves the others; failing tests keep their peak."""
    session(_suite({"a": 10, "b": 10}), "--memwatch-save=main")
    session(
        _suite({"a": 20}) + "def test_b():\n    torch.ones(99)\n    assert False\n", "--memwatch-save=main"
    )
    saved = json.loads((pytester.path / ".memwatch" / "main.json").read_text())
    assert [test["peak_increase_bytes"] for test in saved["tests"].values()] == [80, 40]


def test_peaks_are_the_same_every_time(results):
    """The figure is a sum of allocations, not a sample: two runs agree to the byte."""
    source = """
        import torch
        def test_step():
            model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
            model(torch.ones(8, 16)).sum().backward()
        """
    first, second = results(source), results(source)
    assert first["test_step"]["peak_increase_bytes"] == second["test_step"]["peak_increase_bytes"] > 0
