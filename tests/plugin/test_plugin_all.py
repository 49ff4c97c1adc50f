"""--memwatch-leaks=all over suites that were not written for it."""

from __future__ import annotations


def test_all_checks_every_test_in_one_run(session):
    """Unmarked tests that park tensors fail; bodies run once."""
    result = session(
        """
        import torch
        KEPT = []
        RUNS = []
        def test_grows(): KEPT.append(torch.ones(1000))
        def test_clean():
            RUNS.append(1)
            torch.ones(1000)
        def test_once(): assert len(RUNS) == 1
        """,
        "--memwatch-leaks=all",
        "-v",
    )
    result.stdout.fnmatch_lines(["*::test_grows LEAK*", "*::test_clean PASSED*", "*::test_once PASSED*"])


def test_all_by_ini(session):
    """The ini twin switches the mode on; the option overrides it."""
    source = """
        import torch
        KEPT = []
        def test_grows(): KEPT.append(torch.ones(1000))
        """
    session(source, ini="memwatch_leaks = all\n").assert_outcomes(failed=1)
    session(source, "--memwatch-leaks=marked", ini="memwatch_leaks = all\n").assert_outcomes(passed=1)


def test_graph_kept_on_an_object_is_a_leak(session):
    """An attribute that parks a loss with its graph fails in all mode."""
    result = session(
        """
        import torch
        class Trainer: pass
        TRAINER = Trainer()
        def test_step():
            weight = torch.ones(1000, requires_grad=True)
            TRAINER.last_loss = (weight * 2).exp().sum()
        """,
        "--memwatch-leaks=all",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Test leaked *attribute .last_loss of Trainer*"])


def test_kept_by_caches_is_listed(session):
    """What a cache took in one run is no leak but is told."""
    result = session(
        """
        import torch
        CACHE = {}
        def test_cache(): CACHE["mask"] = torch.ones(1000)
        """,
        "--memwatch-leaks=all",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["Kept by caches*", "*3.91 KiB  global `CACHE` of module*(1 test)"])


def test_failing_tests_fail_for_their_own_reason(session):
    """A failing test's locals are pinned by its traceback; neither it nor the next test is accused."""
    result = session(
        """
        import torch
        KEPT = []
        def test_fails():
            x = torch.ones(1000)
            assert x.sum() == 3
        def test_errors():
            x = torch.ones(1000)
            x.nothing
        def test_after(): torch.ones(10)
        """,
        "--memwatch-leaks=all",
        "-v",
    )
    result.stdout.fnmatch_lines(["*test_fails FAILED*", "*test_errors FAILED*", "*test_after PASSED*"])
    result.stdout.no_fnmatch_line("*LEAK*")
