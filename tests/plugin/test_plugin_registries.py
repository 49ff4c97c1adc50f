"""Registries that fixtures empty: a test is judged after the next test's setup, by the tensors alive then."""

from __future__ import annotations

import json

import pytest

SUITE = """
    import pytest, torch
    STORE, BY_TENSOR, KEPT = [], {}, []
    class TestModel:
        def setup_method(self):
            STORE.clear()
            BY_TENSOR.clear()
        def test_list(self): STORE.append(torch.ones(1000))
        def test_keys(self): BY_TENSOR[torch.ones(1000)] = "weight"
        @pytest.mark.skip
        def test_skipped(self): pass
        def test_kept(self): KEPT.append(torch.ones(1000))
        def test_last(self): pass
    @pytest.fixture
    def store():
        yield STORE
        STORE.clear()
    def test_not_emptied_by_the_next(): STORE.append(torch.ones(1000))
    def test_emptied_by_its_own_fixture(store): STORE.append(torch.ones(1000))
    """


@pytest.mark.parametrize("options", [(), ("-v",), ("-n1",)])
def test_what_the_next_setup_frees_fails_no_test(session, pytester, options):
    result = session(SUITE, "--memwatch-leaks=all", "--memwatch-json=out.json", *options)
    result.assert_outcomes(failed=2, passed=4, skipped=1)
    result.stdout.fnmatch_lines(["Freed by fixtures before the next test, so not counted as leaks (3)"])
    tests = json.loads((pytester.path / "out.json").read_text())["tests"]
    outcomes = {test["nodeid"].rpartition("::")[2]: (test["outcome"], test["failed"]) for test in tests}
    assert outcomes == {
        "test_list": ("passed", None),
        "test_keys": ("passed", None),
        "test_kept": ("failed", "leak"),
        "test_last": ("passed", None),
        "test_not_emptied_by_the_next": ("failed", "leak"),
        "test_emptied_by_its_own_fixture": ("passed", None),
    }


def test_each_test_shows_one_letter(session):
    """The letter of a waiting test comes before the next test's letter, but after a skipped test's."""
    result = session(SUITE, "--memwatch-leaks=all")
    result.stdout.fnmatch_lines(["test_each_test_shows_one_letter.py .s.L.L. *"])


def test_a_leak_stops_the_session_at_the_first_failure(session):
    result = session(SUITE, "--memwatch-leaks=all", "-x")
    assert result.parseoutcomes()["failed"] == 1
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_the_last_test_of_a_session_is_judged_too(session):
    source = """
        import torch
        KEPT = []
        def test_only(): KEPT.append(torch.ones(1000))
        """
    assert session(source, "--memwatch-leaks=all").parseoutcomes() == {"failed": 1}


@pytest.mark.parametrize("options", [(), ("-n1",)])
def test_what_monkeypatch_undoes_is_kept_by_no_name(session, pytester, options):
    """A name that a test sets for good is listed as before."""
    source = """
        import math, torch
        CACHE = {}
        def test_patched(monkeypatch):
            expected = torch.ones(1000)
            monkeypatch.setattr(math, "fused", lambda: expected, raising=False)
        def test_kept(): CACHE["mask"] = torch.ones(1000)
        def test_last(): pass
        """
    result = session(source, "--memwatch-leaks=all", "--memwatch-json=out.json", *options)
    result.assert_outcomes(passed=3)
    tests = json.loads((pytester.path / "out.json").read_text())["tests"]
    names = {test["nodeid"].rpartition("::")[2]: test for test in tests}
    assert [len(names["test_patched"].get(key, [])) for key in ("kept", "emptied")] == [0, 1]
    assert [len(names["test_kept"].get(key, [])) for key in ("kept", "emptied")] == [1, 0]
