"""Peak limits and the figures of a test."""

from __future__ import annotations

import pytest


def test_marker_limits_what_the_body_adds(session):
    """Fixtures and memory from before the body do not count."""
    result = session(
        """
        import pytest, torch
        @pytest.fixture
        def large(): return torch.ones(1 << 20)
        @pytest.mark.limit_peak_memory("1 MiB")
        def test_small(large): torch.ones(1 << 18)
        @pytest.mark.limit_peak_memory("1 MiB")
        def test_large(): torch.ones((1 << 18) + 16)
        """
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*.py .P *",
            "Test was limited to a peak of 1048576 B but its body added 1048640 B",
            "*memwatch peak memory*",
            "*1.00 MiB at the peak (cpu); not counted: * alive at its start*",
            "*1.00 MiB  *:7 in test_large  (1 storage, ones)",
            "Failed for their memory: 1 test above the limit of the peak",
            "PEAK *::test_large - Test was*",
        ]
    )


BOTH = """
    import pytest, torch
    KEPT = []
    @pytest.mark.limit_peak_memory("1 MiB")
    @pytest.mark.no_tensor_leaks
    def test_first(): KEPT.append(torch.ones(1 << 20))
    @pytest.mark.limit_peak_memory("1 MiB")
    @pytest.mark.no_tensor_leaks
    def test_second(): KEPT.append(torch.ones(1 << 20))
    """


@pytest.mark.words
def test_a_leak_and_a_peak_above_the_limit_are_both_shown(session):
    """The second test has the same leak, but a peak of its own, so its failure is shown too."""
    result = session(BOTH)
    result.assert_outcomes(failed=2)
    shown = [
        "Test leaked 4.00 MiB in 1 tensor on each run, *",
        "Test was limited to a peak of 1.00 MiB but its body added 4.00 MiB",
        "*memwatch leaked tensors*",
        "*memwatch peak memory*",
    ]
    counts = "Failed for their memory: 2 tests with leaked tensors, 2 tests above the limit of the peak"
    result.stdout.fnmatch_lines([*shown, *shown, counts, "Leaks: 2 tests, 1 cause"])


def test_a_peak_above_the_limit_fails_a_test_whose_tensors_a_fixture_frees(session):
    result = session(
        """
        import pytest, torch
        KEPT = []
        def setup_function(): KEPT.clear()
        @pytest.mark.limit_peak_memory("1 MiB")
        def test_large(): KEPT.append(torch.ones(1 << 20))
        def test_next(): pass
        """,
        "--memwatch-leaks=all",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "*.py P *",
            "Test was limited to a peak of 1.00 MiB but its body added 4.00 MiB",
            "Failed for their memory: 1 test above the limit of the peak",
            "Freed by fixtures before the next test, *",
        ]
    )
    result.stdout.no_fnmatch_line("*leaked tensors*")


def test_peak_is_not_the_sum(session):
    """Freed memory is used again: the limit is on the most alive at one instant, workspace included."""
    session(
        """
        import pytest, torch
        @pytest.mark.limit_peak_memory("4000 B")
        def test_one_after_another():
            for _ in range(10): torch.ones(1000)
        """
    ).assert_outcomes(passed=1)


def test_limit_may_depend_on_parameters(session):
    """A marker in pytest.param, or a function of the test's arguments and parameters."""
    result = session(
        """
        import pytest, torch
        @pytest.mark.parametrize("n", [
            pytest.param(1000, marks=pytest.mark.limit_peak_memory("4000 B")),
            pytest.param(1001, marks=pytest.mark.limit_peak_memory("4000 B")),
        ])
        def test_marks(n): torch.ones(n)
        @pytest.mark.parametrize("n", [10, 1000])
        @pytest.mark.limit_peak_memory(lambda n, size: n * size)
        def test_function(n, size): torch.ones(n)
        @pytest.fixture
        def size(): return 4
        @pytest.mark.parametrize("n", [10])
        @pytest.mark.limit_peak_memory(lambda n: n)
        def test_exceeded(n): torch.ones(n)
        """,
        "-v",
    )
    result.stdout.fnmatch_lines(
        [
            "*test_marks[[]1000[]] PASSED*",
            "*test_marks[[]1001[]] PEAK*",
            "*test_function[[]10[]] PASSED*",
            "*test_function[[]1000[]] PASSED*",
            "*test_exceeded[[]10[]] PEAK*",
        ]
    )


LIMITS = """
    import pytest, torch
    pytestmark = pytest.mark.parametrize("batch", [1])
    @pytest.mark.limit_peak_memory({function})
    def test_a(batch):
        print("the body ran")
        torch.ones(batch, 1024)
"""


@pytest.mark.parametrize(
    "function",
    [
        "lambda batch, scale=1: batch * 4096 * scale",
        "lambda **kw: kw['batch'] * 4096",
        "lambda batch, **kw: batch * 4096 + len(kw)",
        "lambda batch, /, *rest, scale=1: batch * 4096 * scale",
        "lambda scale=1, /, batch=0: batch * 4096 * scale",
        "lambda: '4 KiB'",
        "lambda: 4096.5",
    ],
)
def test_the_function_of_a_limit_gets_the_arguments_that_it_takes(session, function):
    session(LIMITS.format(function=function)).assert_outcomes(passed=1)
    lower = function.replace("4096", "2048").replace("4 KiB", "2 KiB")
    session(LIMITS.format(function=lower)).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    "function",
    [
        "lambda bach: bach * 4096",
        "lambda bach, /: bach * 4096",
        "lambda *, bach: bach * 4096",
        "lambda: '12 apples'",
        "lambda: None",
        "lambda: -1",
        "limit=max",
    ],
)
def test_a_wrong_function_of_a_limit_fails_its_test_in_one_line_before_the_body(session, function):
    result = session(LIMITS.format(function=function))
    result.assert_outcomes(failed=1)
    lines = result.outlines
    title = next(n for n, line in enumerate(lines) if line.startswith("___") and "test_a" in line)
    assert "limit_peak_memory" in lines[title + 1]
    assert lines[title + 2].startswith("===")
    result.stdout.no_fnmatch_line("*the body ran*")


def test_an_error_in_the_function_of_a_limit_shows_its_line_and_none_of_the_plugin(session):
    result = session(LIMITS.format(function="lambda: 1 / 0"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">*1 / 0*", "E*ZeroDivisionError*"])
    result.stdout.no_fnmatch_line("*pytest_memwatch*")


@pytest.mark.parametrize(
    ("options", "ini"), [(["--memwatch-limit-peak=1KiB"], ""), ([], "memwatch_limit_peak = 1 KiB\n")]
)
def test_suite_wide_limit_yields_to_the_marker(session, options, ini):
    """One limit for all tests, by option or ini; a marker overrides it."""
    result = session(
        """
        import pytest, torch
        def test_unmarked(): torch.ones(1000)
        @pytest.mark.limit_peak_memory("1 MiB")
        def test_marked(): torch.ones(1000)
        """,
        *options,
        ini=ini,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["PEAK *::test_unmarked*"])


def test_limit_of_one_device(session):
    """With device=..., storages elsewhere do not count."""
    session(
        """
        import pytest, torch
        @pytest.mark.limit_peak_memory(0, device="cuda")
        def test_other(): torch.ones(1000)
        @pytest.mark.limit_peak_memory(4000, device="cpu")
        def test_cpu(): torch.ones(1000)
        @pytest.mark.limit_peak_memory(3999, device="cpu")
        def test_cpu_exceeded(): torch.ones(1000)
        """
    ).assert_outcomes(passed=2, failed=1)


def test_leak_and_limit_on_one_test(session):
    """Both are checked. The peak comes from the first run, and the leak is reported first."""
    result = session(
        """
        import pytest, torch
        KEPT = []
        @pytest.mark.no_tensor_leaks
        @pytest.mark.limit_peak_memory(4000)
        def test_fine(): torch.ones(1000)
        @pytest.mark.no_tensor_leaks
        @pytest.mark.limit_peak_memory(3999)
        def test_both(): KEPT.append(torch.ones(1000))
        """,
        "-v",
    )
    result.stdout.fnmatch_lines(
        ["*::test_fine PASSED*", "*::test_both LEAK*", "*leaked tensors*", "*peak memory*"]
    )


def test_fixture_measures_blocks(session):
    """memwatch.profile() inside a measured test; peak_bytes is the highest of its blocks."""
    session(
        """
        import pytest, torch
        from memwatch.errors import MemwatchError
        def test_blocks(memwatch):
            with pytest.raises(MemwatchError, match="open a block"): memwatch.peak_bytes
            with memwatch.profile() as first: torch.ones(1000)
            with memwatch.profile(stacks=False) as second: torch.ones(10)
            assert (first.peak_increase_bytes, second.peak_increase_bytes) == (4000, 40)
            assert memwatch.peak_increase_bytes == 4000
            assert memwatch.peak_bytes == first.peak_bytes
        @pytest.mark.limit_peak_memory(4000)
        def test_limit_counts_its_blocks(memwatch):
            torch.ones(100)
            with memwatch.profile(): torch.ones(1000)
            torch.ones(100)
        @pytest.mark.limit_peak_memory(3999)
        def test_limit_exceeded_in_a_block(memwatch):
            with memwatch.profile(): torch.ones(1000)
        """,
        "--memwatch",
    ).assert_outcomes(passed=2, failed=1)


def test_report_lists_tests_by_peak(session):
    """--memwatch prints tests by peak, with the lines that allocated; top and stack depth bound it."""
    source = """
        import torch
        def make(n): return torch.ones(n)
        def test_small(): make(100)
        def test_large():
            kept = [make(1000), torch.zeros(500)]
        """
    result = session(source, "--memwatch", "--memwatch-top=1", "--memwatch-stack-depth=2")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*= memwatch =*",
            "Peak of the test bodies, largest first (1 of 2)",
            "5.86 KiB  *::test_large  (cpu; * at its start, 2 allocations)",
            "*3.91 KiB  *:2 in make  (1 storage, ones)",
            "* from *:5 in test_large",
        ]
    )
    result.stdout.no_fnmatch_line("*zeros)")
    result = session(source, "--memwatch-top=0", ini="memwatch = true\n")
    result.stdout.fnmatch_lines(["*(2 of 2)", "*zeros)", "*::test_small*"])


def test_the_lines_of_a_peak_are_there_when_the_test_frees_more_than_it_makes(session):
    """Figure and lines cover the memory that the test made and had at once, though more was alive at its start."""
    source = """
        import torch
        held = [torch.ones(100_000)]
        def test_swap():
            held.clear()
            kept = torch.ones(1000)
            del kept
            kept = torch.ones(500)
        """
    result = session(source, "--memwatch")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["3.91 KiB  *::test_swap *", "*3.91 KiB  *:5 in test_swap  (1 storage, ones)"]
    )


def test_nothing_is_printed_when_there_is_nothing_to_say(session):
    """Without options and findings the plugin is silent."""
    result = session("import torch\ndef test_it(): torch.ones(3)\n")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*= memwatch =*")
