"""How the plugin lives with pytest's other parts: workers, reruns, other kinds of tests, usage errors."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

SOURCE = """
    import pytest, torch
    KEPT = []
    @pytest.mark.no_tensor_leaks
    def test_leak(): KEPT.append(torch.ones(1000))
    @pytest.mark.limit_peak_memory(10)
    def test_peak(): torch.ones(1000)
    def test_fine(): torch.ones(3)
"""


@pytest.mark.parametrize("verbosity", ["-q", "-qq", "-v"])
def test_letters_do_not_depend_on_verbosity(session, verbosity):
    """L and P follow the outcome: quiet or verbose, the same tests are marked, and count as failed."""
    result = session(SOURCE, verbosity, "-rA")
    assert result.ret == 1
    lines = "\n".join(result.outlines)
    assert ("LP." in lines) == (verbosity != "-v")
    result.stdout.fnmatch_lines(["LEAK *::test_leak*", "PEAK *::test_peak*"])


def test_capture_off_keeps_the_sentence(session):
    """With --show-capture=no the details go, the sentence stays; with --tb=no the letter stays."""
    session(SOURCE, "--show-capture=no").stdout.fnmatch_lines(["Test leaked 3.91 KiB*"])
    session(SOURCE, "--tb=no", "-q").stdout.fnmatch_lines(["LP.*"])


def test_last_failed_runs_leaking_tests_again(session):
    """--lf selects tests that failed for their memory."""
    session(SOURCE)
    result = session(SOURCE, "--lf", "-q")
    result.stdout.fnmatch_lines(["LP*"])
    result.assert_outcomes(failed=2)


def test_workers_report_to_one_summary(session, pytester):
    """With xdist the same letters, one summary, one JSON file; results travel on the report."""
    result = session(SOURCE, "-n", "2", "--memwatch-json=out.json", "--memwatch-save=main")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*= memwatch =*",
            "*largest first (3 of 3)",
            "*1 test with leaked tensors, 1 test above the limit of the peak",
        ]
    )
    assert (pytester.path / "out.json").read_text().count('"nodeid"') == 3
    assert [path.name for path in (pytester.path / ".memwatch").iterdir()] == ["main.json"]


def test_wrong_marker_under_workers_fails_its_test_alone(session):
    """A worker cannot stop the run with a usage error: the test errors with the same words."""
    result = session(
        "import pytest\n@pytest.mark.no_tensor_leaks(wramup=1)\ndef test_a(): pass\ndef test_b(): pass\n",
        "-n",
        "1",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*unexpected keyword argument 'wramup'*"])


def test_without_the_plugin_markers_are_unknown_and_harmless(session):
    """-p no:memwatch removes everything; tests run."""
    result = session(SOURCE, "-p", "no:memwatch", "-W", "ignore")
    result.assert_outcomes(passed=3)


def test_async_tests(session):
    """pytest-asyncio's tests are checked like others, fixtures included."""
    result = session(
        """
        import asyncio, pytest, pytest_asyncio, torch
        KEPT = []
        @pytest_asyncio.fixture
        async def value():
            yield torch.ones(10)
        @pytest.mark.asyncio
        @pytest.mark.no_tensor_leaks
        async def test_leak(value):
            await asyncio.sleep(0)
            KEPT.append(torch.ones(1000))
        @pytest.mark.asyncio
        @pytest.mark.no_tensor_leaks
        async def test_clean(value):
            await asyncio.sleep(0)
            torch.ones(1000)
        @pytest.mark.asyncio
        @pytest.mark.limit_peak_memory(10)
        async def test_peak(value): torch.ones(1000)
        """,
        "-v",
    )
    result.stdout.fnmatch_lines(["*::test_leak LEAK*", "*::test_clean PASSED*", "*::test_peak PEAK*"])


def test_unittest_classes(session):
    """Methods of a TestCase are checked without setUp and tearDown, async ones too."""
    result = session(
        """
        import unittest, pytest, torch
        KEPT = []
        class TestPlain(unittest.TestCase):
            def setUp(self): self.large = torch.ones(100000)
            def tearDown(self): KEPT.append(torch.ones(7))
            @pytest.mark.no_tensor_leaks
            def test_leak(self): KEPT.append(torch.ones(1000))
            @pytest.mark.no_tensor_leaks
            @pytest.mark.limit_peak_memory(4000)
            def test_clean(self): self.x = torch.ones(1000)
            @pytest.mark.limit_peak_memory(3999)
            def test_peak(self): self.x = torch.ones(1000)
            @pytest.mark.no_tensor_leaks
            @unittest.skip("never")
            def test_skipped(self): raise RuntimeError
        class TestAsync(unittest.IsolatedAsyncioTestCase):
            @pytest.mark.no_tensor_leaks
            async def test_async_leak(self): KEPT.append(torch.ones(1000))
            @pytest.mark.no_tensor_leaks
            async def test_async_clean(self): torch.ones(1000)
            @pytest.mark.no_tensor_leaks
            async def test_async_attribute(self): self.x = torch.ones(1000)
        """,
        "-v",
    )
    result.stdout.fnmatch_lines_random(
        [
            "*::test_leak LEAK*",
            "*::test_clean PASSED*",
            "*::test_peak PEAK*",
            "*::test_skipped SKIPPED*",
            "*::test_async_leak LEAK*",
            "*::test_async_clean PASSED*",
            "*::test_async_attribute PASSED*",
        ]
    )


SUBTESTS = """
    import pytest, torch, unittest
    KEPT = []
    RUNS = {"of_pytest": 0, "of_unittest": 0}
    def started(name):
        RUNS[name] += 1
        return RUNS[name]
    @pytest.mark.no_tensor_leaks
    def test_of_pytest(subtests):
        run = started("of_pytest")
        for n in range(3):
            with subtests.test(n=n):
                KEPT.append(torch.ones(64))
                assert run < FAILING_RUN or n != 1
        with subtests.test(skipped=True): pytest.skip("never")
        with subtests.test(expected=True): pytest.xfail("always")
    class TestUnit(unittest.TestCase):
        @pytest.mark.no_tensor_leaks
        def test_of_unittest(self):
            run = started("of_unittest")
            for n in range(3):
                with self.subTest(n=n):
                    KEPT.append(torch.ones(64))
                    assert run < FAILING_RUN or n != 1
"""


@pytest.mark.parametrize("options", [(), ("-n", "1"), ("--memwatch",)], ids=" ".join)
def test_subtests_of_repeated_runs_are_reported_once(session, options):
    """The body runs several times. Its subtests count as often as without the marker."""
    source = SUBTESTS.replace("FAILING_RUN", "99")
    plain = session(source, "-v", "--no-memwatch", *options).parseoutcomes()
    repeated = session(source, "-v", *options)
    counts = repeated.parseoutcomes()
    assert counts.pop("failed") == 2  # they leak
    assert plain.pop("passed") == 2
    plain.pop("warnings", None), counts.pop("warnings", None)
    assert counts == plain
    assert not any(name in line for line in repeated.outlines for name in ("NodeId", "SubtestReport"))


@pytest.mark.parametrize("failing_run", [1, 2, 4])
def test_a_subtest_that_fails_in_a_later_run_is_reported_once(session, failing_run):
    result = session(SUBTESTS.replace("FAILING_RUN", str(failing_run)), "-v")
    lines = [line for line in result.outlines if line.startswith("SUBFAIL")]
    assert len([line for line in lines if "test_of_pytest" in line]) == 1
    assert len([line for line in lines if "test_of_unittest" in line]) == 1
    if failing_run > 1 and hasattr(Exception, "add_note"):
        result.stdout.fnmatch_lines([f"*run {failing_run} of the body*"])


def test_expected_failures_and_skips(session):
    """A leak in an xfail test is an expected failure; a strict xfail without one fails; skips skip."""
    result = session(
        """
        import pytest, torch
        KEPT = []
        @pytest.mark.xfail
        @pytest.mark.no_tensor_leaks
        def test_known(): KEPT.append(torch.ones(1000))
        @pytest.mark.xfail(strict=True)
        @pytest.mark.no_tensor_leaks
        def test_fixed(): torch.ones(1000)
        @pytest.mark.no_tensor_leaks
        def test_skips(): pytest.skip("no device")
        """
    )
    result.assert_outcomes(xfailed=1, failed=1, skipped=1)
    result.stdout.no_fnmatch_line("LEAK*")


def test_doctests_and_hypothesis(session, pytester):
    """Doctests are untouched; a property is one body, all its examples included."""
    import hypothesis.strategies  # noqa: F401  # pytester would make an inner session forget it

    pytester.makepyfile(module_with_doc='"""Doc.\n\n>>> import torch; torch.ones(1).item()\n1.0\n"""\n')
    result = session(
        """
        import pytest, torch
        from hypothesis import given, settings, strategies as st
        @pytest.mark.no_tensor_leaks
        @settings(max_examples=5, database=None)
        @given(n=st.integers(1, 9))
        def test_property(n): assert torch.ones(n).numel() == n
        """,
        "--doctest-modules",
        "-p",
        "hypothesispytest",
        "--memwatch",
        "--memwatch-leaks=all",
    )
    result.assert_outcomes(passed=2)


def test_own_check_leaks_gets_the_letter(session):
    """A test that uses memwatch's own checker shows L and its traceback."""
    result = session(
        """
        import torch
        from memwatch.leaks import check_leaks
        KEPT = []
        def test_block():
            with check_leaks(): KEPT.append(torch.ones(1000))
        """
    )
    result.stdout.fnmatch_lines(["*.py L *", ">*with check_leaks()*", "*memwatch leaked tensors*"])


OWN_PROFILES = """
    import memwatch, pytest, torch
    from memwatch import profile
    def test_block():
        x = torch.ones(1000)
        with profile(stacks=False, holders=False, allocator=False) as first: y = torch.ones(2000)
        del y
        with profile() as second: torch.ones(10)
        assert first.peak_increase_bytes == 8000
        assert second.peak_increase_bytes == 40
    @profile()
    def measured(n): return torch.ones(n)
    def test_decorated(): measured(100)
    def test_fixture(memwatch):
        with memwatch.profile() as prof: torch.ones(50)
        assert prof.peak_increase_bytes == memwatch.peak_increase_bytes == 200
    def test_error_inside():
        with pytest.raises(ZeroDivisionError), profile(): 1 / 0
        torch.ones(25)
    def test_refused():
        with pytest.raises(memwatch.MemwatchError), profile(intercept="magic"): pass
        torch.ones(75)
    def test_entered_again():
        prof = profile()
        for number in (60, 10):
            with prof: torch.ones(number)
    def test_nested():
        with profile(), pytest.raises(memwatch.MemwatchError, match="already open"), profile(): pass
    """


@pytest.mark.whole
def test_the_measurement_steps_aside_for_profiles_of_the_body(session, results):
    """Only one profile can be open: the test's own take the place of the plugin's, and count as parts of it."""
    gc.collect()  # otherwise memory of other tests would be freed during one of these, and hide an increase
    tests = results(OWN_PROFILES, "--memwatch")
    assert {test["outcome"] for test in tests.values()} == {"passed"}, tests
    added = {name: test["peak_increase_bytes"] for name, test in tests.items()}
    own = {name: test["own_profiles"] for name, test in tests.items()}
    assert added == {
        "test_block": 12000,
        "test_decorated": 400,
        "test_fixture": 200,
        "test_error_inside": 100,
        "test_refused": 300,
        "test_entered_again": 240,
        "test_nested": 0,
    }
    assert own == {
        "test_block": 2,
        "test_decorated": 1,
        "test_fixture": 1,
        "test_error_inside": 1,
        "test_refused": 0,
        "test_entered_again": 2,
        "test_nested": 1,
    }
    result = session(OWN_PROFILES, "--memwatch")
    result.stdout.fnmatch_lines(["*::test_block *2 of the test's own profiles)"])


@pytest.mark.whole
def test_without_a_measurement_own_profiles_are_let_alone(session):
    """Without --memwatch nothing is measured. With it, no trace of the pauses stays behind."""
    session(OWN_PROFILES).assert_outcomes(passed=7)
    session(OWN_PROFILES, "--memwatch").assert_outcomes(passed=7)
    session(OWN_PROFILES, "--memwatch-leaks=all").assert_outcomes(passed=7)


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("no_tensor_leaks(wramup=1)", "*unexpected keyword argument 'wramup'*usage: no_tensor_leaks(*"),
        ("no_tensor_leaks(runs=0)", "*runs=0: must be a whole number, 1 or more*"),
        ("no_tensor_leaks(warmup='2')", "*warmup='2': must be a whole number, 0 or more*"),
        ("no_tensor_leaks(ignore=['*cache*'])", "*the ignore rule '[*]cache[*]' has no reason*"),
        ("no_tensor_leaks(ignore=3)", "*ignore=3 is not a list of rules*"),
        ("no_tensor_leaks(max_bytes='many')", "*'many' is not a size*"),
        ("limit_peak_memory", "*missing 1 required positional argument: 'limit'*"),
        ("limit_peak_memory('64 MiBs')", "*'64 MiBs' is not a size*usage: limit_peak_memory(*"),
        ("limit_peak_memory('1 MiB', device='the gpu')", "*device='the gpu': write a device*"),
        ("allow_tensor_leaks", "*missing 1 required keyword-only argument: 'reason'*"),
        ("allow_tensor_leaks(reason=' ')", "*reason=' ': say why this test may leak*"),
    ],
)
def test_wrong_markers_are_usage_errors(session, marker, message):
    """A wrong marker stops the run before any test, naming test, value and usage."""
    result = session(f"import pytest\n@pytest.mark.{marker}\ndef test_a(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *::test_a: @pytest.mark.{message}"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--memwatch-leaks=some", "*choose one of marked, all, off*"),
        ("--memwatch-limit-peak=3x", "*'3x' is not a size*"),
        ("--memwatch-runs=0", "*must be 1 or more*"),
        ("--memwatch-warmup=-1", "*must be 0 or more*"),
        ("--memwatch-top=-1", "*must be 0 or more*"),
        ("--memwatch-stack-depth=0", "*must be 1 or more*"),
        ("--memwatch-save=a/b", "*a baseline has a plain name*"),
        ("--memwatch-compare=none", "*no baseline in *; make one with --memwatch-save=NAME*"),
        ("--memwatch-compare-fail=5%", "*needs a baseline: add --memwatch-compare*"),
    ],
)
def test_wrong_options_are_usage_errors(session, option, message):
    """The error shows the right usage."""
    result = session("def test_a(): pass\n", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {option.partition('=')[0]}{message}"])


def test_wrong_ini_rule_is_a_usage_error(session):
    """An ignore rule without a reason is refused."""
    result = session("def test_a(): pass\n", ini="memwatch_ignore = *cache*\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'[*]cache[*]' has no reason; write 'pattern: reason'*"])


def test_help_and_markers_are_complete(session):
    """Every option and ini key has a help text, every marker a description."""
    text = "\n".join(session("", "--help").outlines)
    options = [
        "leaks",
        "limit-peak",
        "html",
        "json",
        "save",
        "compare",
        "compare-fail",
        "warmup",
        "runs",
        "top",
        "stack-depth",
    ]
    assert all(f"--memwatch-{option}" in text for option in options)
    assert "--no-memwatch" in text
    assert all(
        f"  {key} (" in text
        for key in ("memwatch", "memwatch_leaks", "memwatch_limit_peak", "memwatch_ignore")
    )
    session("", "--markers").stdout.fnmatch_lines(
        [
            '@pytest.mark.no_tensor_leaks(warmup=1, runs="auto", ignore=(), max_bytes=0): Fail the test if *',
            "@pytest.mark.limit_peak_memory(limit, device=None): Fail the test if *",
            "@pytest.mark.allow_tensor_leaks(reason=...): Do not check *reason*",
        ]
    )
    fixtures = "\n".join(session("", "--fixtures").outlines)
    assert "memwatch -- " in fixtures
    assert "no_tensor_leaks -- " in fixtures


def test_loading_the_plugin_is_cheap():
    """The plugin loads neither torch nor pandas, so runs without it cost nothing."""
    code = (
        "import sys, pytest_memwatch.plugin; print(sorted({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_suites_without_torch_stay_without(pytester):
    """--memwatch-leaks=all does not import torch if the suite does not use it."""
    pytester.makepyfile("import sys\ndef test_a(): pass\ndef test_b(): assert 'torch' not in sys.modules\n")
    result = pytester.runpytest_subprocess("--memwatch-leaks=all", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
