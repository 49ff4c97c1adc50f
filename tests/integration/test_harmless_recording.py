"""Errors in memwatch's code stay away from the program. Known facts cost nothing. The program's classes can die."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch.record import module_registry, recompute
from memwatch.record.tables.storages import Storages


def fail(*args, **kwargs):
    raise RuntimeError("dictionary changed size during iteration")


def notes(prof):
    return [text for kind, text in prof.notes if kind == "recorder"]


def run_trial():
    """Call a module whose class closes over a tensor; return weak references to both."""
    scale = torch.ones(8)

    class Trial(nn.Module):
        def forward(self, x):
            return x * scale

    Trial()(torch.ones(8))
    return weakref.ref(Trial), weakref.ref(scale)


def test_a_class_made_for_one_trial_is_let_go():
    """A class that closes over a tensor is gone, with the tensor, when the program has dropped both."""
    with memwatch.profile():
        gone = run_trial()
        gc.collect()
        assert [each() for each in gone] == [None, None]


def test_optimizers_of_unnamed_parameters_are_searched_for_once(monkeypatch):
    """If each iteration makes an optimizer anew for a tensor outside all modules, there is one search in all.

    A plain tensor in a variable needs no search: its backward names it.
    """
    searches, search = [], module_registry.find_modules
    with memwatch.profile():
        monkeypatch.setattr(
            module_registry, "find_modules", lambda *args: searches.append(args) or search(*args)
        )
        for _ in range(10):
            z = torch.zeros(4, requires_grad=True)
            optimizer = torch.optim.SGD([z], lr=0.1)
            (z * z).sum().backward()
            optimizer.step()
        of_plain = len(searches)
        for _ in range(10):
            z = nn.Parameter(torch.zeros(4))
            optimizer = torch.optim.Adam([z], lr=0.1)
            (z * z).sum().backward()
            optimizer.step()
        within = len(searches)
    assert of_plain == 0
    assert 0 < within <= 3  # of the program, of installed packages, of the heap


def test_tables_of_modules_may_change_while_they_are_read():
    """Another thread may add a module while the children of one are read."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    met = []
    for name, _ in module_registry._children(model):
        model.add_module(f"beside {name}", nn.Identity())
        met.append(name)
    assert met == ["0", "1"]


def test_a_module_that_cannot_be_noted_runs(monkeypatch):
    """An error while memwatch examines a module is noted once. The module is called, and the optimizer steps."""
    model, optimizer = nn.Linear(4, 4), None
    with memwatch.profile() as prof:
        monkeypatch.setattr(module_registry.ModuleRegistry, "meet", fail)
        monkeypatch.setattr(module_registry.ModuleRegistry, "learn", fail)
        head = nn.Linear(4, 2)
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
        for _ in range(2):
            loss = head(model(torch.ones(1, 4))).sum()
            loss.backward()
            optimizer.step()
    assert sum(text.startswith("Linear is not recorded whole") for text in notes(prof)) == 1
    assert sum(text.startswith("a call of a module or an optimizer") for text in notes(prof)) == 1
    assert {"forward", "backward", "optimizer"} <= set(prof.ops["phase"])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_that_cannot_be_noted_runs(monkeypatch, reentrant):
    """An error while memwatch notes a region does not change the backward."""
    monkeypatch.setattr(recompute.Recomputes, "_begin", fail)
    x = torch.ones(4, requires_grad=True)
    with memwatch.profile() as prof:
        checkpoint(torch.sin, x, use_reentrant=reentrant).sum().backward()
    assert torch.equal(x.grad, torch.ones(4).cos())
    assert sum(text.startswith("a checkpointed region is not recorded whole") for text in notes(prof)) == 1


def test_regions_that_run_again_in_two_threads_leave_the_context_as_it_was():
    """If two threads recompute a region at once, one has the context, and the other leaves it alone."""
    with memwatch.profile() as prof:
        context = prof._session.context
        recomputes, before = context.recomputes, (context.top, context.recomputing, context.thread)
        recomputes.sees_this_thread = lambda: True
        first_runs, second_runs, first_is_done = threading.Event(), threading.Event(), threading.Event()

        def first():
            first_runs.set()
            second_runs.wait(10)

        def second():
            second_runs.set()
            first_is_done.wait(10)

        threads = [
            threading.Thread(target=recomputes._again, args=(recomputes, run, (), {}))
            for run in (first, second)
        ]
        threads[0].start()
        first_runs.wait(10)
        threads[1].start()
        threads[0].join()
        first_is_done.set()
        threads[1].join()
        assert (context.top, context.recomputing, context.thread) == before
    assert any("another ran again meanwhile" in text for text in notes(prof))


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_backward_that_keeps_its_graph_is_not_asked_for_recomputation(monkeypatch, native):
    """With create_graph every op runs with gradients on, and none of them costs a call of Python's."""
    monkeypatch.setenv("MEMWATCH_NATIVE", native)
    asked = []
    x = torch.ones(4, requires_grad=True)
    with memwatch.profile() as prof:
        prof._session.context.recomputes_by_hand = lambda: bool(asked.append(1))
        (grad,) = torch.autograd.grad((x * x).sin().sum(), x, create_graph=True)
        assert not asked
        grad.sum().backward()
    assert set(prof.ops["phase"]) == {"forward", "backward"}


def test_autocast_ends_whatever_is_raised_when_its_cache_is_read(monkeypatch):
    """Neither an error of ours nor an interrupt leaves autocast switched on."""
    with memwatch.profile() as prof:
        region = torch.autocast("cpu", dtype=torch.bfloat16)
        with monkeypatch.context() as patch:
            region.__enter__()
            patch.setattr(Storages, "record_deaths", fail)
            region.__exit__(None, None, None)
        assert not torch.is_autocast_enabled("cpu")
    assert any(text.startswith("autocast's cache") for text in notes(prof))


def test_storages_born_since_a_number_are_found_from_the_youngest(monkeypatch):
    """They are returned in the order of their births.

    If there are none, nothing is searched.
    """
    with memwatch.profile() as prof:
        storages = prof._session.storages
        kept = [torch.ones(4) for _ in range(3)]
        first = storages.count
        with monkeypatch.context() as patch:
            patch.setattr(Storages, "record_deaths", fail)
            assert storages.born_since(first) == []
        kept += [torch.ones(size) for size in (8, 16, 32)]
        del kept[4]
        assert storages.born_since(first) == [(first, 32), (first + 2, 128)]
        numbers = [each.number for each in storages.live.values()]
        assert numbers == sorted(numbers)


class SecretGradient(nn.Parameter):
    @property
    def grad(self):
        raise ValueError("the program's own")


@pytest.mark.parametrize("native", ["1", "0"], ids=["native", "python"])
def test_a_parameters_own_property_grad_is_not_asked(monkeypatch, native):
    """A class of parameters may have a property `grad` that raises: the block is entered and left as ever."""
    monkeypatch.setenv("MEMWATCH_NATIVE", native)
    net = nn.Linear(4, 4)
    net.secret = SecretGradient(torch.ones(4, 4))
    with memwatch.profile() as prof:
        net(torch.ones(4, 4)).sum().backward()
    assert len(prof.ops) > 0
    assert not notes(prof)


@pytest.mark.parametrize("native", ["1", "0"], ids=["native", "python"])
def test_parameters_may_be_swapped_after_the_block(monkeypatch, native):
    """Torch does not swap a tensor with a weak reference. So a closed block drops all it knew of parameters at once."""
    monkeypatch.setenv("MEMWATCH_NATIVE", native)
    net = nn.Linear(4, 4)
    gc.disable()
    try:
        with memwatch.profile():
            net(torch.ones(4, 4)).sum().backward()
        assert not weakref.getweakrefs(net.weight)
    finally:
        gc.enable()


class MuteError(Exception):
    def __str__(self):
        raise ValueError("no words")


def test_an_error_that_has_no_words_stays_ours(monkeypatch):
    """An exception from the text of an error never reaches the program."""

    def raise_mute(*args, **kwargs):
        raise MuteError

    with memwatch.profile():
        monkeypatch.setattr(module_registry.ModuleRegistry, "meet", raise_mute)
        out = nn.Linear(4, 4)(torch.ones(4, 4))
    assert out.shape == (4, 4)
