"""Objects that grow beside leaked tensors, and paths that an independent tool confirms."""

from __future__ import annotations

import gc
from types import ModuleType

import objgraph
import pytest
import torch

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks, why_alive
from memwatch.words.leaks import advice

KEPT = []


class Record:
    def __init__(self, output):
        self.output = output
        self.notes = [Note(), Note()]


class Note:
    pass


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    yield
    KEPT.clear()


def park():
    KEPT.append(Record(torch.randn(16)))


def test_a_leak_names_the_objects_that_grow_beside_it():
    """Every call adds one record and two notes: the leak says so, as objgraph does."""
    (leak,) = find_leaks(park)
    assert dict(leak.beside) == {"Record": 1, "Note": 2}
    peaks: dict[str, int] = {}
    objgraph.growth(limit=None, peak_stats=peaks)
    park()
    grown = {name: delta for name, _, delta in objgraph.growth(limit=None, peak_stats=peaks)}
    assert {name: grown[name] for name, _ in leak.beside} == dict(leak.beside)


def test_what_does_not_grow_is_not_named():
    """Objects that each call makes and drops are not beside the leak."""

    def replaces():
        KEPT.append(torch.randn(16))
        Note()

    (leak,) = find_leaks(replaces)
    assert leak.beside == ()


def test_what_one_call_alone_adds_is_not_named():
    """Tables that the first use of an op fills, in whichever call that is, do not grow."""
    calls = []

    def fills_a_table_once():
        calls.append(None)
        if len(calls) == 2:  # the first measured call
            KEPT.extend(Note() for _ in range(50))
        KEPT.append(Record(torch.randn(16)))

    (leak,) = find_leaks(fills_a_table_once)
    assert leak.beside == (("Note", 2), ("Record", 1))


@pytest.mark.parametrize("module", ["_pytest.subtests", "hypothesis.internal.data", "memwatch.leaks"])
def test_objects_of_a_test_tool_are_not_named(module):
    tool = type("Report", (), {"__module__": module})

    def reports():
        KEPT.append((tool(), Record(torch.randn(16))))

    (leak,) = find_leaks(reports)
    assert dict(leak.beside) == {"Record": 1, "Note": 2}


def test_one_measured_call_says_nothing_of_growth():
    """One call cannot distinguish growth from memory that the first use of an op allocates once."""
    (leak,) = find_leaks(park, runs=1)
    assert leak.beside == ()


def test_a_call_that_leaves_nothing_is_not_counted(monkeypatch):
    """Counting the objects of the process is for leaks only."""
    monkeypatch.setattr("memwatch.leaks.find.count_by_class", None)
    assert find_leaks(lambda: torch.randn(16)) == []


def test_a_cycle_through_a_class_is_a_cycle():
    """The count by class keeps no class alive: gc can free the class with its instance and the tensor."""

    def makes_a_class():
        class Own:
            pass

        Own.me = Own()
        Own.me.tensor = torch.ones(1000)

    gc.collect()
    (leak,) = find_leaks(makes_a_class, warmup=0, runs=2)
    assert leak.kind == "cycle"


def test_objgraph_finds_the_chain_that_a_path_names():
    """From the module through the list and the record to the tensor: both tools see the same references."""
    park()
    tensor = KEPT[0].output
    (path, *_) = why_alive(tensor).paths
    assert [edge.edge.name for edge in path] == ["KEPT", None, "output"]
    chain = objgraph.find_backref_chain(
        tensor, lambda obj: type(obj) is ModuleType and obj.__name__ == __name__
    )
    gc.collect()
    found = [obj for obj in chain if obj is KEPT or obj is KEPT[0]]
    assert type(chain[0]) is ModuleType
    assert found == [KEPT, KEPT[0]]


class Metric(torch.nn.Module):
    """Keeps two predictions."""

    def __init__(self):
        super().__init__()
        self.preds = []


def test_a_part_that_each_call_adds_to_a_list_of_modules_is_what_grows():
    """Each new metric has a list of its own, which does not grow. To delete the metric frees its list."""
    trackers = torch.nn.ModuleList([Metric()])

    def epoch(*, is_kept):
        metric = Metric()
        if is_kept:
            trackers.append(metric)
        for _ in range(2):
            metric.preds.append(torch.ones(128))

    (leak,) = find_leaks(lambda: epoch(is_kept=True))
    assert leak.advice == advice(Remedy.SUBMODULE)
    assert "trackers" in leak.container
    assert "submodule" not in leak.container
    with pytest.raises(TensorLeakError) as error, check_leaks():
        epoch(is_kept=True)
    assert error.value.leaks[0].advice == advice(Remedy.SUBMODULE)
    assert find_leaks(lambda: epoch(is_kept=False)) == []
