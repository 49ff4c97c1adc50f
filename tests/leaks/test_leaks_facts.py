"""The checker's reports agree with the real fate of the tensors: freed by refcounting, by gc, or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from memwatch.leaks import check_leaks, find_leaks

sys.path.insert(0, str(Path(__file__).parent))
import all_programs
import programs_facts
from storages_alive import survivors

FREED_LATE_OR_NEVER = [
    program for program in all_programs.lean(all_programs.PROGRAMS) if program.kind != "retained"
]


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    yield
    programs_facts.KEPT.clear()


@pytest.mark.parametrize("program", programs_facts.FREED_BY_REFCOUNT, ids=lambda fn: fn.__name__)
def test_what_refcounting_frees_is_silent(program):
    """Neither further calls nor one pass leave anything."""
    assert survivors(program) == (0, 0)
    assert [str(leak) for leak in find_leaks(program)] == []
    check_leaks()(program)()


@pytest.mark.parametrize("program", FREED_LATE_OR_NEVER, ids=str)
def test_the_kind_says_whether_gc_frees_it(program):
    """Cycles are gone after a collection, uncollectable loops are not."""
    left, after = survivors(program.leak)
    assert left > 0
    assert (after == 0) == (program.kind == "cycle")


@pytest.mark.parametrize("op", ["exp", "sigmoid", "tanh", "relu", "sqrt", "softmax"])
def test_identity_pack_hooks_leak_every_saved_output_without_backward(op):
    """Each operator that saves its own output leaks it for ever under `pack = lambda t: t`; with backward none does."""
    weight = torch.rand(32, 32, requires_grad=True)
    apply = (lambda x: x.softmax(0)) if op == "softmax" else getattr(torch.Tensor, op)

    def forward():
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            return apply(weight).sum()

    leaks = find_leaks(lambda: forward() and None)
    assert [leak.kind for leak in leaks] == ["uncollectable"]
    assert "packed by a saved-tensor hook" in leaks[0].holder
    assert find_leaks(lambda: torch.autograd.grad(forward(), weight) and None) == []
