"""Recording costs work for events, not for objects that are merely alive: equal steps run equally many lines."""

from __future__ import annotations

import gc
import pathlib
import sys
import threading

import pytest
import torch
from torch import nn

import memwatch
from memwatch.record import role_changes
from memwatch.record.holders import state
from memwatch.record.holders.sample import Sample

BOTH = pytest.mark.parametrize(
    "intercept", ["key-native", "mode-native", "key-python", "mode-python"], indirect=True
)
MEMWATCH = str(pathlib.Path(memwatch.__file__).parent)
IDLE = 300


class Lines:
    """Counts the lines of memwatch that run."""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *error):
        sys.settrace(self._before)

    def _call(self, frame, event, argument):
        return self._line if frame.f_code.co_filename.startswith(MEMWATCH) else None

    def _line(self, frame, event, argument):
        self.count += event == "line"
        return self._line


def lines_of_a_step(intercept, step, **options):
    """Return how many lines of memwatch's the third of three like steps takes."""
    with memwatch.profile(intercept=intercept, **options):
        step()
        step()
        with Lines() as lines:
            step()
    return lines.count


def training():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(net.parameters())

    def step():
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    return step


def small_backwards():
    net = nn.Linear(4, 4)

    def step():
        for _ in range(3):
            net.zero_grad()
            net(torch.ones(2, 4)).sum().backward()

    return step


def idle_modules():
    return nn.ModuleList(nn.Linear(2, 2) for _ in range(IDLE))


def idle_tensors():
    return [torch.zeros(2) for _ in range(IDLE)]


@BOTH
@pytest.mark.parametrize("program", [training, small_backwards])
@pytest.mark.parametrize("idle", [idle_modules, idle_tensors])
def test_a_step_takes_the_same_lines_beside_much_that_is_idle(intercept, program, idle):
    """No line runs for each module, parameter or storage that the step does not touch; caches may differ by a few."""
    alone = lines_of_a_step(intercept, program(), holders=False)
    kept = idle()
    beside = lines_of_a_step(intercept, program(), holders=False)
    assert alone > 0
    assert beside < alone + len(kept) // 3
    del kept


MANY = {
    "modules": lambda: [nn.Linear(1, 1) for _ in range(6_000)],
    "modules in a module": lambda: nn.ModuleList(nn.Linear(1, 1) for _ in range(6_000)),
    "tensors": lambda: [torch.zeros(1) for _ in range(8_000)],
    "parameters": lambda: [nn.Parameter(torch.zeros(1)) for _ in range(8_000)],
    "lists": lambda: [[number] for number in range(8_000)],
    "dictionaries": lambda: [{"number": [number]} for number in range(8_000)],
}


def calls_in_first_steps(idle):
    """Return how many functions are called in the first three steps of a block, samples of the holders included."""
    step, calls = training(), 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in {"call", "c_call"}

    step()
    with memwatch.profile():
        sys.setprofile(count)
        try:
            for _ in range(3):
                step()
        finally:
            sys.setprofile(None)
    del idle
    return calls


@pytest.fixture(scope="module")
def calls_beside_nothing():
    calls_in_first_steps(None)  # work that is done once in a process
    return calls_in_first_steps(None)


@pytest.mark.parametrize("kind", MANY)
def test_samples_beside_much_that_is_idle_make_at_most_twice_the_calls(
    kind, calls_beside_nothing, monkeypatch
):
    """The first steps of a block have nearly all samples: idle objects are passed over many at a time."""
    monkeypatch.setattr(state, "_ROLE_LOOKS_RATIO", 0)  # a look that there is time for hangs on the clock
    assert calls_in_first_steps(MANY[kind]()) < 2 * calls_beside_nothing


def collections_of_a_block(kept):
    """Return the generations that gc collects in this thread while a block is entered and left.

    A thread that an earlier test left running may allocate meanwhile, and its collections say nothing of the block.
    """
    found, thread = [], threading.get_ident()

    def note(phase, info):
        if phase == "start" and threading.get_ident() == thread:
            found.append(info["generation"])

    gc.collect()
    gc.callbacks.append(note)
    try:
        with memwatch.profile():
            pass
    finally:
        gc.callbacks.remove(note)
    del kept
    return found


def test_what_a_block_keeps_of_idle_modules_makes_no_full_collection_due():
    """A few more collections than the program's own would move a full collection into a step."""
    alone = collections_of_a_block(None)
    beside = collections_of_a_block(MANY["modules"]())
    assert len(beside) <= len(alone) + 3


def test_what_lives_at_entry_is_written_before_the_first_step(tmp_path):
    """To pack and write it is part of entering, and of no step."""
    kept = idle_tensors()
    with memwatch.profile(tmp_path / "entry.memwatch"):
        storages = memwatch.load(tmp_path / "entry.memwatch").storages
    assert (storages["nbytes"] == kept[0].nbytes).sum() >= len(kept)


@BOTH
def test_a_backward_looks_at_the_leaves_of_its_own_graph(intercept, monkeypatch):
    """Among all known parameters, only the leaves of this graph are checked for gradients."""
    asked = []
    grad_of = role_changes._grad_of
    monkeypatch.setattr(
        role_changes, "_grad_of", lambda parameter: asked.append(parameter) or grad_of(parameter)
    )
    used, kept = nn.Linear(4, 4), idle_modules()
    with memwatch.profile(intercept=intercept, holders=False) as prof:
        asked.clear()
        used(torch.ones(2, 4)).sum().backward()
        torch.ones(3)
        assert {id(each) for each in asked} == {id(used.weight), id(used.bias)}
        asked.clear()
    assert len(prof.storages.query("category == 'gradient'")) == 2
    del kept


@BOTH
def test_a_backward_within_a_backward_has_leaves_of_its_own(intercept):
    """Both the outer and the inner graph are known: a reentrant checkpoint runs a backward for its region."""
    first, inside, last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    with memwatch.profile(intercept=intercept) as prof:
        hidden = first(torch.ones(2, 8))
        hidden = torch.utils.checkpoint.checkpoint(inside, hidden, use_reentrant=True)
        last(hidden).sum().backward()
        for each in (first, inside, last):
            each.zero_grad()
        torch.ones(3)
    found = prof.storages.query("category == 'gradient'")
    assert sorted(found["module"]) == ["first", "first", "inside", "inside", "last", "last"]


@BOTH
def test_an_optimizer_that_steps_within_a_backward(intercept):
    """A backward whose hooks step is not over: the gradients that it makes later are known as gradients."""
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
    second.weight.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
    with memwatch.profile(intercept=intercept) as prof:
        second(first(torch.ones(2, 8))).sum().backward()
        first.zero_grad()
        second.zero_grad()
    found = prof.storages.query("category == 'gradient'")
    assert sorted(found["module"]) == ["first", "first", "second", "second"]


@BOTH
def test_small_tensors_of_a_long_list_are_passed_over_together(intercept, monkeypatch):
    """A search follows only the references to tensors that are large or have a graph. The list holds the others."""
    met = []
    held = Sample._append_holder

    def count(sample, chain):
        if not sample._deep:
            met.append(type(chain[-1]))
        held(sample, chain)

    monkeypatch.setattr(Sample, "_append_holder", count)

    def met_beside(count):
        kept = [torch.zeros(1) for _ in range(count)]
        met.clear()
        with memwatch.profile(intercept=intercept) as prof:
            torch.ones(1 << 12)
            kept.append(torch.ones(1 << 16))
            kept.append((torch.ones(1, requires_grad=True) * torch.ones(1 << 16)).exp()[:1])
            torch.ones(1 << 17)
        found = prof.at_peak[prof.at_peak["nbytes"] == 1 << 18]
        return len(met), found["holder"].tolist()

    few, holders = met_beside(IDLE)
    assert any(holder.startswith("`kept`, local variable") for holder in holders)
    assert any("saved by exp" in holder for holder in holders)
    assert 0 < few < IDLE
    assert met_beside(4 * IDLE) == (few, holders)


@BOTH
def test_a_parameter_that_is_new_among_idle_modules_is_known(intercept):
    """Modules that hold nothing of interest are left out together; one of them that gets a large parameter is not."""
    net = nn.ModuleList(nn.Linear(2, 2) for _ in range(IDLE))
    with memwatch.profile(intercept=intercept) as prof:
        torch.ones(1 << 12)
        for each in (net[0], net[IDLE // 2], net[-1]):
            each.weight = nn.Parameter(torch.ones(1 << 16, 1))
            each.extra = torch.ones(1 << 15)
        net[-1].register_buffer("table", torch.ones(1 << 16, 1))
        torch.ones(1 << 18)
    found = prof.at_peak[prof.at_peak["nbytes"] == 1 << 18]
    assert sorted(found["category"]) == ["buffer", "parameter", "parameter", "parameter"]
    assert sorted(found["module"]) == sorted(["0", str(IDLE // 2), *[str(IDLE - 1)] * 2])


def test_a_summary_takes_few_lines_for_what_is_idle():
    """A column is decoded once, however many parameters and tensors of no role lie beside a step."""
    step, kept = training(), (idle_modules(), idle_tensors())
    with memwatch.profile() as prof:
        step()
    with Lines() as lines:
        text = prof.summary()
    assert "parameter" in text
    # 1,354 for each module and tensor, fixed work included; it was 1,520 where a column was decoded for each
    assert lines.count < 1400 * IDLE
    del kept


@BOTH
def test_a_backward_alone_is_no_reason_to_search_deep(intercept, monkeypatch):
    """Tensors that autograd makes lie in no object of the program, so only the first forward is searched."""
    deep, net = [], nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)])
    search_deep = Sample._search_deep
    monkeypatch.setattr(
        Sample,
        "_search_deep",
        lambda sample, *given: deep.append(sample._state.context.in_backward) or search_deep(sample, *given),
    )
    batch = torch.ones(8, 64)
    with memwatch.profile(intercept=intercept):
        net(batch).sum().backward()
    assert True not in deep
    del batch


@BOTH
def test_what_a_backward_left_is_searched_for_after_it(intercept):
    """A tensor that a hook put into an object of the program is found once the backward is over."""
    net = nn.Linear(256, 256)
    keeper = {"inner": [{"kept": []}]}
    net.weight.register_hook(lambda gradient: keeper["inner"][0]["kept"].append(gradient * 2))
    with memwatch.profile(intercept=intercept) as prof:
        net(torch.ones(2, 256)).sum().backward()
        net.zero_grad()
        others = [torch.ones(256, 256) for _ in range(6)]
    kept = prof.at_peak[prof.at_peak["holder"].str.contains("keeper", regex=False)]
    assert kept["nbytes"].max() == 4 * 256 * 256
    del others
