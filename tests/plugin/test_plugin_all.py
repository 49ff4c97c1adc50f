"""--memwatch-leaks=all over suites that were not written for it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from pytest_memwatch.summary import summary_lines

from memwatch.leaks import check
from memwatch.leaks.diagnose import diagnose


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
    """Tensors that a cache took in one run are reported, but not as a leak."""
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


def test_a_cache_that_grew_in_several_tests_is_said_to_have_grown(session):
    """It comes first. A slot that each test fills anew has not grown."""
    result = session(
        """
        import pytest, torch
        CACHE, SLOT, FIRST = {}, {}, {}
        repeated = pytest.mark.parametrize("number", range(4))
        @repeated
        def test_slot(number): SLOT["last"] = torch.ones(500 + 500 * number)
        @repeated
        def test_first(number):
            if not FIRST: FIRST["mask"] = torch.ones(4000)
        @repeated
        def test_cache(number): CACHE[number] = torch.ones(1000)
        """,
        "--memwatch-leaks=all",
    )
    result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines(
        [
            "Kept by caches and names, so not counted as leaks (*",
            "*15.62 KiB  global `CACHE` of module*(grew in each of 4 tests, by 3.91 KiB)",
        ],
        consecutive=True,
    )
    assert str(result.stdout).count("grew in each") == 1
    result.stdout.fnmatch_lines(["*15.62 KiB  global `FIRST` of module*(1 test)"])


def test_two_first_fills_are_not_said_to_have_grown(session):
    """The first test fills the cache, and the second adds its own entry."""
    result = session(
        """
        import pytest, torch
        CACHE = {}
        @pytest.mark.parametrize("number", [1, 2])
        def test_cache(number): CACHE[number] = torch.ones(1000)
        """,
        "--memwatch-leaks=all",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*7.81 KiB  global `CACHE` of module*(2 tests)"])


def lines_of(entries):
    """Return the line of a cache in the summary, from the process and the entries after each test."""
    kept = [
        {"cause": "cache", "holder": "global `CACHE`", "nbytes": 4096, "entries": count, "process": process}
        for process, count in entries
    ]
    results = {f"test_{number}": {"failed": None, "kept": [each]} for number, each in enumerate(kept)}
    settings = SimpleNamespace(measure=False, ignore=(), leaks_min_bytes=1)
    return summary_lines(results, settings, None, {})[1:]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([(1, 1), (2, 2), (3, 3)], "12.00 KiB  global `CACHE`  (3 tests)"),
        ([(1, 1), (2, 4), (1, 2), (2, 5)], "16.00 KiB  global `CACHE`  (4 tests)"),
        ([(1, 1), (1, 2), (1, 3)], "12.00 KiB  global `CACHE`  (grew in each of 3 tests, by 4.00 KiB)"),
        (
            [(1, 1), (2, 1), (1, 2), (1, 3)],
            "16.00 KiB  global `CACHE`  (grew in 3 of 4 tests, by 4.00 KiB)",
        ),
        ([(1, 1), (2, 1), (1, 2), (2, 1), (1, 3)], "20.00 KiB  global `CACHE`  (5 tests)"),
    ],
    ids=["first fills", "two each", "one process", "and a first fill", "replaced in the other"],
)
def test_a_cache_grows_in_a_process(entries, words):
    """Each process of xdist has its own cache, so entries of two processes are not compared."""
    assert [line.strip() for line in lines_of(entries)] == [words]


def test_what_a_cache_keeps_has_the_process(results):
    of_test = results(
        """
        import torch
        CACHE = {}
        def test_cache(): CACHE["mask"] = torch.ones(1000)
        """,
        "--memwatch-leaks=all",
    )
    [kept] = of_test["test_cache"]["kept"]
    assert (kept["entries"], kept["process"]) == (1, os.getpid())


@pytest.mark.whole
def test_a_name_with_one_value_is_no_leak_at_first_sight(session):
    """Whatever it had before: a number, nothing, or the value before last. A chain of all values is one, once seen."""
    result = session(
        """
        import pytest, torch
        class Average:
            of_class = 0.0
            def __init__(self): self.mean, self.variance, self.previous = 0.0, None, None
        AVERAGE, MEAN = Average(), 0.0
        class Node:
            def __init__(self, value, before): self.value, self.before = value, before
        class Chain: head = None
        CHAIN = Chain()
        repeated = pytest.mark.parametrize("number", range(5))
        @repeated
        def test_mean(number):
            global MEAN
            new = torch.ones(8).mean()
            MEAN = 0.9 * MEAN + new
            AVERAGE.previous, AVERAGE.mean = AVERAGE.mean, 0.9 * AVERAGE.mean + new
            AVERAGE.variance = {"value": torch.ones(number + 1)}
            Average.of_class += new
        @repeated
        def test_chain(number): CHAIN.head = Node(torch.ones(100), CHAIN.head)
        """,
        "--memwatch-leaks=all",
        "-v",
    )
    result.assert_outcomes(failed=2, passed=8)
    result.stdout.fnmatch_lines(
        ["*test_mean?4? PASSED*", "*test_chain?2? PASSED*", "*test_chain?3? LEAK*", "*test_chain?4? LEAK*"]
    )


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


def test_what_grows_test_by_test_is_no_cache(session):
    """Hooks that stay and tensors that become larger are leaks, and the next tests show who made them.

    Growth in one test alone may be a first fill, such as a key-value cache, or scratch memory that is resized once.
    """
    result = session(
        """
        import pytest, torch
        WEIGHT = torch.nn.Parameter(torch.ones(2))
        WEIGHT.register_hook(lambda grad: grad)
        class Bank(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("rows", torch.zeros(8, 16))
        BANK, CACHE, SCRATCH = Bank(), {}, torch.zeros(4)
        repeated = pytest.mark.parametrize("number", range(3))
        @repeated
        def test_hook(number):
            mask = torch.ones(64)
            WEIGHT.register_hook(lambda grad: grad * mask[0])
        @repeated
        def test_buffer(number): BANK.rows = torch.cat([BANK.rows, torch.ones(8, 16)])
        @repeated
        def test_cache(number):
            new = torch.ones(1, 8, 16)
            CACHE["k"] = torch.cat([CACHE["k"], new], 1) if CACHE else new
        @repeated
        def test_resize(number): SCRATCH.resize_(SCRATCH.numel() + 64)
        """,
        "--memwatch-leaks=all",
        "-v",
    )
    result.assert_outcomes(failed=7, passed=5)
    result.stdout.fnmatch_lines(["*test_hook?0? LEAK*", "*test_buffer?1? PASSED*", "*test_cache?1? PASSED*"])
    text = result.stdout.str()
    for holder, function in (("WEIGHT", "test_hook"), ("BANK", "test_buffer"), ("CACHE", "test_cache")):
        cause = text.partition(f"kept alive by global `{holder}` of module")[2].partition("to tolerate it")[0]
        assert f" in {function} " in cause, cause
    result.stdout.fnmatch_lines(
        ["*2 tests, 512 B: kept alive by global `SCRATCH` *", "*made at: * in test_resize *"]
    )


def test_what_numpy_and_dlpack_hold_is_accused_with_its_holder(session):
    """Neither is C code to the reader, and neither is missed, in the first test that leaks it or in a later one."""
    result = session(
        """
        import pytest
        import torch
        ARRAYS, CAPSULES = [], []
        @pytest.mark.parametrize("n", range(2))
        def test_array(n): ARRAYS.append((n, torch.ones(1000).numpy()))
        @pytest.mark.parametrize("n", range(2))
        def test_capsule(n): CAPSULES.append(torch.ones(1000).__dlpack__())
        """,
        "--memwatch-leaks=all",
        "-v",
    )
    result.assert_outcomes(failed=4)
    text = result.stdout.str()
    assert "Leaks: 4 tests, 2 causes" in text
    assert "C code" not in text
    for holder in ("`ARRAYS`*numpy .base of ndarray", "`CAPSULES`*memory that DLPack capsule shares"):
        result.stdout.fnmatch_lines([f"*kept alive by global {holder}*"])


FIXTURES = """
    import pytest
    import torch

    KEPT, NODES = [], []

    @pytest.fixture(scope="session")
    def history():
        return []

    @pytest.fixture(scope="module")
    def dataset():
        return {}

    @pytest.fixture(scope="module")
    def model():
        return torch.nn.Linear(16, 16)
"""


@pytest.mark.words
def test_a_fixture_that_keeps_tensors_of_several_tests_is_named_in_the_summary(session):
    run = session(
        FIXTURES
        + """
    @pytest.mark.parametrize("number", range(4))
    def test_step(history, model, number):
        loss = model(torch.ones(64, 16)).pow(2).mean()
        loss.backward()
        history.append(loss.repeat(256))
        """,
        "--memwatch-leaks=all",
    )
    run.assert_outcomes(passed=4)
    run.stdout.fnmatch_lines(
        ["*4.00 KiB*fixture `history` (session scope, *) *(grew in each of 4 tests, by 1.00 KiB)"]
    )
    run.stdout.fnmatch_lines(["*no_tensor_leaks*"])


@pytest.mark.words
def test_a_fixture_that_the_first_test_fills_or_each_test_replaces_is_not_named(session):
    run = session(
        FIXTURES
        + """
    @pytest.mark.parametrize("number", range(4))
    def test_reads(dataset, number):
        if "images" not in dataset:
            dataset["images"] = torch.ones(256)
        dataset["latest"] = torch.ones(64 + number)

    @pytest.mark.parametrize("number", range(4))
    def test_trains(model, number):
        model(torch.ones(64, 16)).mean().backward()
        torch.optim.Adam(model.parameters()).step()
        """,
        "--memwatch-leaks=all",
    )
    run.assert_outcomes(passed=8)
    assert "fixture `" not in run.stdout.str()


def test_what_a_fixture_keeps_is_no_excuse_for_another_holder(session):
    """The first tests show the fixture's list, the next ones add to a global list too."""
    run = session(
        FIXTURES
        + """
    @pytest.mark.parametrize("number", range(3))
    def test_fixture_alone(history, number):
        history.append(torch.ones(256))

    @pytest.mark.parametrize("number", range(3))
    def test_both(history, number):
        tensor = torch.ones(256)
        history.append(tensor)
        KEPT.append(tensor)

    @pytest.mark.parametrize("number", range(3))
    def test_inside(history, number):
        entry = {"loss": torch.ones(256)}
        history.append(entry)
        KEPT.append(entry)

    @pytest.mark.parametrize("number", range(3))
    def test_graph_alone(history, model, number):
        history.append(model(torch.ones(64, 16)).pow(2).mean())

    @pytest.mark.parametrize("number", range(3))
    def test_node(history, model, number):
        loss = model(torch.ones(64, 16)).pow(2).mean()
        history.append(loss)
        NODES.append(loss.grad_fn)
        """,
        "--memwatch-leaks=all",
    )
    run.assert_outcomes(passed=6, failed=9)


@pytest.mark.parametrize(
    "body",
    [
        "history.append(torch.ones(256))",
        "history.append({'loss': (torch.ones(256), number)})",
        "dataset[number] = torch.ones(256)",
        "history.append(model(torch.ones(64, 16)).pow(2).mean())",
        "model.seen = [*getattr(model, 'seen', []), torch.ones(256)]",
        "model.weight.grad = torch.ones(16, 16); model.zero_grad(); model.bias.grad = torch.ones(16)",
    ],
    ids=["list", "entry", "dictionary", "graph", "attribute", "gradient"],
)
def test_the_heap_is_searched_for_one_test_of_many_that_fill_a_fixture(session, monkeypatch, body):
    searched = []

    def counted(storages, *arguments, **options):
        searched.extend([len(storages)] * bool(storages))
        return diagnose(storages, *arguments, **options)

    monkeypatch.setattr(check, "diagnose", counted)
    run = session(
        FIXTURES
        + f"""
    @pytest.mark.parametrize("number", range(8))
    def test_step(history, dataset, model, number):
        {body}
        """,
        "--memwatch-leaks=all",
    )
    run.assert_outcomes(passed=8)
    assert len(searched) <= 2
