"""Leaks found by marker and by fixture."""

from __future__ import annotations

import builtins
import sys

import pytest

LEAKING = """
    import pytest, torch
    KEPT = []
"""


@pytest.mark.words
def test_a_leak_beside_subtests_is_told_once(session):
    """The test's report has the leak with its cause and no traceback. Reports of subtests are separate."""
    result = session(
        """
        import torch
        import unittest
        KEPT = []
        class TestUnit(unittest.TestCase):
            def test_unit(self):
                for n in range(3):
                    with self.subTest(n=n):
                        KEPT.append(torch.ones(64))
        """,
        "--memwatch-leaks=all",
    )
    text = result.stdout.str()
    assert "LEAK" in text
    assert text.count("path from the root") == 1
    assert "Traceback" not in text
    assert "TensorLeakError" not in text


def test_a_test_with_a_limit_is_told_the_line_of_its_leak(session):
    """The test requests a check itself, so it gets the line also if all tests are checked."""
    result = session(
        LEAKING
        + """
    @pytest.mark.limit_peak_memory("1 MB")
    def test_leak():
        KEPT.append(torch.ones(64))
    """,
        "--memwatch-leaks=all",
    )
    result.stdout.fnmatch_lines(["*made at: *test_*.py:* in test_leak*"])


@pytest.mark.words
def test_marker_fails_a_test_whose_runs_add_tensors(session):
    """The marker works without any option; the sentence names the holder, the section tells the rest."""
    result = session(
        LEAKING
        + """
    @pytest.mark.no_tensor_leaks
    def test_leak():
        KEPT.append(torch.ones(1000))
    """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*.py L *",
            "Test leaked 3.91 KiB in 1 tensor on each run, kept alive by global `KEPT` of module *",
            "*memwatch leaked tensors*",
            "retained: 3.91 KiB in 1 tensor *",
            "  made at: *:6 in test_leak (Tensor [[]1000[]] float32)",
            "  path from the root:",
            "  advice: *",
            "*= memwatch =*",
            "Failed for their memory: 1 test with leaked tensors",
            "LEAK *::test_leak - Test *",
        ]
    )


@pytest.mark.words
def test_cycles_and_uncollectable_loops_are_leaks(session):
    """A reference cycle and a loop through autograd are reported with their kinds."""
    result = session(
        """
        import pytest, torch
        class Node: pass
        @pytest.mark.no_tensor_leaks
        def test_cycle():
            node = Node()
            node.me = node
            node.value = torch.ones(1000)
        @pytest.mark.no_tensor_leaks
        def test_uncollectable():
            y = torch.ones(1000, requires_grad=True) * 2
            y.register_hook(lambda grad: grad * y)
        """
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*freed only by gc: cycle through*", "*never freed: loop through*"])


def test_cycles_of_mocks_and_of_pytest_do_not_fail_a_marked_test(results):
    """The test cannot avoid them. A cycle that the test itself makes is a leak."""
    tests = results(
        """
        import pytest, torch
        from unittest import mock
        pytestmark = pytest.mark.no_tensor_leaks
        def test_called():
            logger = mock.Mock()
            logger.log({"loss": torch.ones(64, 64)})
        def test_magic(): mock.MagicMock()(torch.ones(64, 64))
        def test_raises():
            x = torch.ones(64, 64)
            with pytest.raises(ValueError) as info:
                raise ValueError(info_of(x))
        def info_of(x): return str(x.shape)
        def test_own_cycle():
            own = [mock.Mock(), torch.ones(64, 64)]
            own.append(own)
        """
    )
    assert {name: test["failed"] for name, test in tests.items()} == {
        "test_called": None,
        "test_magic": None,
        "test_raises": None,
        "test_own_cycle": "leak",
    }
    assert [len(tests[name].get("machinery", [])) for name in ("test_called", "test_magic")] == [1, 1]


def test_body_runs_warmup_plus_runs_times_with_the_same_fixture_values(session):
    """Fixtures are set up once; warmup and runs come from the marker, else from the options."""
    result = session(
        """
        import pytest
        @pytest.fixture
        def calls():
            seen = []
            yield seen
            print("calls:", len(seen))
        @pytest.mark.no_tensor_leaks
        def test_options(calls): calls.append(1)
        @pytest.mark.no_tensor_leaks(warmup=0, runs=1)
        def test_marker(calls): calls.append(1)
        """,
        "-s",
        "--memwatch-warmup=3",
        "--memwatch-runs=4",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*calls: 7*", "*calls: 1*"])


@pytest.mark.words
def test_growth_inside_a_fixture_value_is_a_leak(session):
    """A model from a fixture that keeps every output is found, although pytest alone holds the model."""
    result = session(
        """
        import pytest, torch
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.history = []
            def forward(self, x):
                y = x * 2
                self.history.append(y)
                return y
        @pytest.fixture
        def model(): return Model()
        @pytest.mark.no_tensor_leaks
        def test_step(model): model(torch.ones(1000))
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["Test leaked 3.91 KiB in 1 tensor on each run*argument `model` -> attribute .history of Model*"]
    )


METHODS = """
    import pytest, torch, unittest
    pytestmark = pytest.mark.no_tensor_leaks
    KEPT = []
    def tensor(): return torch.ones(1000)
    class TestUnit(unittest.TestCase):
        BANK = []
        def setUp(self): self.bank, self.model = [], torch.nn.Linear(2, 2)
        def test_own(self): self.bank.append(tensor())
        def test_own_in_subtests(self):
            for n in range(2):
                with self.subTest(n=n): self.bank.append(tensor())
        def test_own_hooks(self): self.model.register_forward_hook(print)
        def test_own_graph(self):
            self.loss = getattr(self, "loss", 0) + tensor().requires_grad_().sum()
        def test_leak_of_class(self): self.BANK.append(tensor())
        def test_leak_of_module(self):
            self.bank.append(tensor())
            KEPT.append(self.bank[-1])
        def test_leak_in_cycle(self):
            cycle = [tensor()]
            cycle.append(cycle)
    class TestAsync(unittest.IsolatedAsyncioTestCase):
        def setUp(self): self.bank = []
        async def test_own(self): self.bank.append(tensor())
        def test_own_without_await(self): self.bank.append(tensor())
    class TestPlain:
        def setup_method(self): self.bank = []
        def test_own(self): self.bank.append(tensor())
        @pytest.mark.asyncio
        async def test_own_async(self): self.bank.append(tensor())
        def test_leak(self): KEPT.append(tensor())
"""


def test_growth_inside_the_object_of_a_test_class_is_no_leak(results):
    """The object ends with its test. The body runs several times with one object, and setUp runs once."""
    tests = results(METHODS)
    failed = {name: test["failed"] for name, test in tests.items()}
    assert len(failed) == 12
    assert {name for name, what in failed.items() if what} == {
        "TestUnit::test_leak_of_class",
        "TestUnit::test_leak_of_module",
        "TestUnit::test_leak_in_cycle",
        "TestPlain::test_leak",
    }
    for test in tests.values():
        for leak in test["leaks"]:
            assert "pytest_memwatch" not in str(leak)


def test_growth_in_a_closure_of_a_test_is_found_without_the_plugins_functions_in_its_path(results):
    tests = results(
        """
        import functools, pytest, torch
        def recorded(test):
            seen = []
            @functools.wraps(test)
            def recording():
                globals().pop("test_closure", None)  # otherwise a path from the module is shown
                seen.append(torch.ones(1000))
            return recording
        @pytest.mark.no_tensor_leaks
        @recorded
        def test_closure(): pass
        """
    )
    [leak] = tests["test_closure"]["leaks"]
    assert "pytest_memwatch" not in str(leak)


def test_failure_in_a_later_run_says_which_run(session):
    """A body that cannot be repeated fails with its own error and a note."""
    result = session(
        """
        import pytest
        DONE = []
        @pytest.mark.no_tensor_leaks
        def test_once():
            assert not DONE
            DONE.append(1)
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*this is run 2 of the body*", "FAILED *::test_once *"])


def test_max_bytes_tolerates_small_growth(session):
    """Growth up to max_bytes per run passes, above it fails."""
    result = session(
        LEAKING
        + """
    @pytest.mark.no_tensor_leaks(max_bytes="4 KiB")
    def test_small():
        KEPT.append(torch.ones(1000))
    @pytest.mark.no_tensor_leaks(max_bytes=3999)
    def test_large():
        KEPT.append(torch.ones(1000))
    """,
        "-v",
    )
    result.stdout.fnmatch_lines(["*::test_small PASSED*", "*::test_large LEAK*"])


HOOKS = """
    import pytest, torch
    NET = torch.nn.Linear(4, 4)
    X = torch.ones(2, 4)
    DONE = []
"""


def test_no_size_tolerates_hooks_that_each_run_registers(session):
    """Hooks have no bytes. A rule tolerates them; a hook that is removed, or set up once, is no leak."""
    result = session(
        HOOKS
        + """
    pytestmark = pytest.mark.no_tensor_leaks(max_bytes="1 MiB")
    def test_module():
        NET.register_forward_hook(lambda module, args, out: None)
    def test_tensor():
        NET.weight.register_hook(lambda grad: grad)
    def test_after_accumulation():
        NET.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    def test_removed():
        handle = NET.register_forward_hook(lambda module, args, out: None)
        NET(X)
        handle.remove()
    def test_set_up_once():
        if not DONE:
            DONE.append(NET.register_forward_hook(lambda module, args, out: None))
    @pytest.mark.no_tensor_leaks(ignore="*._forward_hooks*: kept on purpose")
    def test_ignored():
        NET.register_forward_hook(lambda module, args, out: None)
    """,
        "--memwatch-leaks-min-bytes=1 MiB",
        "-v",
    )
    result.assert_outcomes(failed=3, passed=3)
    result.stdout.fnmatch_lines(
        [f"*::test_{name} LEAK*" for name in ("module", "tensor", "after_accumulation")]
    )


def test_max_bytes_tolerates_the_tensors_beside_hooks(session):
    """The test fails for its hooks alone."""
    result = session(
        HOOKS
        + """
    @pytest.mark.no_tensor_leaks(max_bytes="1 MiB")
    def test_both():
        NET.register_forward_hook(lambda module, args, out: None)
        DONE.append(torch.ones(10))
    """
    )
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "hooks: 1 hook on each run" in text
    assert "retained: " not in text


def test_no_least_size_drops_hooks_of_a_single_run(session):
    """`--memwatch-leaks=all` reports one more hook of a function that has a hook there already."""
    result = session(
        HOOKS
        + """
    def watch():
        return NET.register_forward_hook(lambda module, args, out: None)
    watch()
    def test_one_more(): watch()
    def test_removed(): watch().remove()
    """,
        "--memwatch-leaks=all",
        "--memwatch-leaks-min-bytes=1 MiB",
        "-v",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*::test_one_more LEAK*"])


@pytest.mark.parametrize(
    "rule",
    [
        'ignore=["*KEPT*: kept on purpose"]',
        'ignore="KEPT: kept on purpose"',
        'ignore=("KEPT", "kept on purpose")',
        'ignore=[("KEPT", "kept on purpose")]',
        'ignore={"KEPT": "kept on purpose"}',
    ],
)
def test_ignore_rules_are_listed_with_their_reason(session, rule):
    """A leak that a rule matches passes, and the report has the rule's reason."""
    result = session(
        LEAKING
        + f"""
    @pytest.mark.no_tensor_leaks({rule})
    def test_leak():
        KEPT.append(torch.ones(1000))
    """
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= memwatch =*", "Ignore rules", "*1 leak  *KEPT*: kept on purpose"])


def test_ignore_rules_of_the_ini_file(session):
    """A rule in the ini file holds for all tests, and is listed even if nothing matched."""
    result = session(
        LEAKING
        + """
    @pytest.mark.no_tensor_leaks
    def test_leak():
        KEPT.append(torch.ones(1000))
    """,
        ini="memwatch_ignore =\n    *`KEPT`*: kept on purpose\n    nothing: never seen\n",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*1 leak  *KEPT*: kept on purpose", "*0 leaks  nothing: never seen"])


def test_fixture_checks_the_whole_test(session):
    """The fixture, requested or by usefixtures, means the marker with its defaults; a closer opt-out wins."""
    result = session(
        LEAKING
        + """
    def test_requested(no_tensor_leaks):
        KEPT.append(torch.ones(1000))
    @pytest.mark.usefixtures("no_tensor_leaks")
    class TestAll:
        def test_used(self):
            KEPT.append(torch.ones(1000))
        @pytest.mark.allow_tensor_leaks(reason="grows on purpose")
        def test_allowed(self):
            KEPT.append(torch.ones(1000))
    """,
        "-v",
    )
    result.stdout.fnmatch_lines(
        [
            "*::test_requested LEAK*",
            "*::test_used LEAK*",
            "*::test_allowed PASSED*",
            "Allowed to leak",
            "*::test_allowed: grows on purpose",
        ]
    )


def test_closest_marker_wins(session):
    """A marker on the function beats one on the class or module; on one function, the opt-out wins."""
    result = session(
        LEAKING
        + """
    pytestmark = pytest.mark.allow_tensor_leaks(reason="a playground")
    def test_module():
        KEPT.append(torch.ones(1000))
    @pytest.mark.no_tensor_leaks
    def test_function():
        KEPT.append(torch.ones(1000))
    @pytest.mark.no_tensor_leaks
    @pytest.mark.allow_tensor_leaks(reason="twice marked")
    def test_both():
        KEPT.append(torch.ones(1000))
    """,
        "-v",
    )
    result.stdout.fnmatch_lines(["*::test_module PASSED*", "*::test_function LEAK*", "*::test_both PASSED*"])


def test_memwatch_fixture_asserts_parts(session):
    """assert_no_leaks takes a function or guards a block; its failure shows the place and the letter L."""
    result = session(
        LEAKING
        + """
    def test_function(memwatch):
        memwatch.assert_no_leaks(torch.ones, 1000)
        memwatch.assert_no_leaks(lambda: KEPT.append(torch.ones(1000)), runs=3)
    def test_block(memwatch):
        with memwatch.assert_no_leaks():
            torch.ones(10)
        with memwatch.assert_no_leaks():
            KEPT.append(torch.ones(1000))
    """,
        "-v",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*::test_function LEAK*", "*::test_block LEAK*", "> *memwatch.assert_no_leaks(lambda*"]
    )


def test_leaks_off_and_no_memwatch_let_markers_pass(session):
    """--memwatch-leaks=off switches leak checks off; --no-memwatch everything."""
    source = (
        LEAKING
        + """
    @pytest.mark.no_tensor_leaks
    def test_leak(memwatch):
        KEPT.append(torch.ones(1000))
    @pytest.mark.limit_peak_memory("1 B")
    def test_peak(memwatch):
        torch.ones(1000)
        memwatch.assert_no_leaks(KEPT.append, torch.ones(1))
    """
    )
    session(source, "--memwatch-leaks=off").assert_outcomes(passed=1, failed=1)
    session(source, "--no-memwatch").assert_outcomes(passed=2)


DISPLAYING = '''
    """
    >>> import torch
    >>> torch.ones(3)
    tensor([1., 1., 1.])
    """
    import torch
    KEPT = []
    def double(x):
        """
        >>> double(torch.ones(3, requires_grad=True))
        tensor([2., 2., 2.], grad_fn=<MulBackward0>)
        """
        return 2 * x
    def keep(x):
        """
        >>> keep(torch.ones(3))
        tensor([1., 1., 1.])
        """
        KEPT.append(x)
        return x
'''


@pytest.mark.parametrize("options", [["--doctest-continue-on-failure"], []])
def test_the_value_that_a_doctest_displays_last_is_no_leak(session, options):
    """The interpreter keeps it in `builtins._`. A value that the program keeps is a leak."""
    builtins._ = before = object()
    try:
        result = session(DISPLAYING, "--memwatch-leaks=all", "--doctest-modules", "-v", *options)
        assert builtins._ is before
    finally:
        del builtins._
    result.stdout.fnmatch_lines_random(["*keep LEAK*", "*double PASSED*", "*::test_* PASSED*"])


def test_the_value_that_a_doctest_of_a_text_file_displays_last_is_no_leak(pytester, inner_ini):
    pytester.maketxtfile(test_text=">>> import torch\n>>> torch.ones(3)\ntensor([1., 1., 1.])\n")
    pytester.runpytest("--memwatch-leaks=all").assert_outcomes(passed=1)
    assert "_" not in vars(builtins)


def test_a_name_that_a_doctest_itself_installs_in_builtins_stays(session):
    source = '''
        """
        >>> 1 + 1
        2
        >>> import builtins
        >>> builtins._ = str.upper
        """
        def test_installed(): assert _("a") == "A"
    '''
    options = ("--memwatch-leaks=all", "--doctest-modules")
    display = sys.__displayhook__
    try:
        session(source, *options).assert_outcomes(passed=2)
        assert sys.__displayhook__ is display
    finally:
        vars(builtins).pop("_", None)


def test_doctests_are_checked(session):
    """The examples of a docstring are a test body like any."""
    source = '''
        import torch
        KEPT = []
        def keep(rows):
            """Keep.

            >>> keep(1000)
            """
            KEPT.append(torch.ones(rows))
        def double(rows):
            """Double.

            >>> output = double(1000)
            """
            return 2 * torch.ones(rows)
    '''
    result = session(source, "--memwatch-leaks=all", "--doctest-modules")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Test leaked 3.91 KiB in 1 tensor*KEPT*"])
