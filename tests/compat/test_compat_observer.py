"""memwatch reports each change that observing made, by name and in bytes.

Under the key only Python's own counts change.
"""

from __future__ import annotations

import pytest
import torch
from compat_harness import mode_effects

import memwatch
from memwatch.analysis.observer import observer_effects
from memwatch.profile import verify


def _topk() -> None:
    torch.randn(64, 512, requires_grad=True).topk(5)[0].sum().backward()


def _used_twice() -> None:
    y = torch.randn(64, 512, requires_grad=True) * 2
    (y.exp() + y.sin()).sum().backward()


def _prod() -> None:
    torch.rand(64, 512, requires_grad=True).prod(1).sum().backward()


def _sparse() -> None:
    torch.nn.Embedding(100, 16, sparse=True)(torch.arange(8)).sum().backward()


NAMED = {
    _topk: "aten.topk",
    _used_twice: "aten.add.Tensor",
    _prod: "aten.prod",
    _sparse: "aten.clone.default",
}


@pytest.mark.parametrize("program", NAMED, ids=lambda program: program.__name__)
def test_report_names_the_ops_that_the_mode_changed(program):
    with memwatch.profile(intercept="mode") as prof:
        program()
    assert NAMED[program] in mode_effects(prof)
    effect = next(each for each in observer_effects(prof._tables.facts) if NAMED[program] in each.ops)
    assert 0 < effect.nbytes <= prof.storages["nbytes"].sum()
    assert ("observer", effect.text) in prof.notes


@pytest.mark.parametrize("program", NAMED, ids=lambda program: program.__name__)
def test_the_key_changes_none(program):
    with memwatch.profile(intercept="key") as prof:
        program()
    assert mode_effects(prof) == []


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_programs_without_such_ops_have_no_effect(intercept):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
    with memwatch.profile(intercept=intercept) as prof:
        net(torch.randn(4, 8)).sum().backward()
    assert mode_effects(prof) == []


def test_the_native_recorder_leaves_python_numbers_alone():
    """Behind the key in C++ no number is kept: the observed peak is the plain one."""
    found = verify(lambda: torch.ones(1000).exp() + 1, intercept="key")
    assert found.difference_bytes == 0
    assert found.effects == ()


def test_python_numbers_at_the_peak_are_told(monkeypatch):
    """A number given to an op lies in 8 bytes that Python keeps until the op returns; verify() finds them."""
    monkeypatch.setenv("MEMWATCH_NATIVE", "0")
    found = verify(lambda: torch.ones(1000).exp() + 1, intercept="key")
    assert found.difference_bytes == 8
    assert any("8 bytes" in text for text in found.effects)


@pytest.mark.parametrize("intercept", ["key", "key-python", "mode"], indirect=True)
def test_a_block_with_forward_mode_ad_says_that_its_peak_may_be_lower(intercept):
    """Aliases stay alive because autograd keeps the tensors with their tangents.

    Blocks that use no forward mode get no note.
    """

    def step():
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        with torch.autograd.forward_ad.dual_level():
            x = torch.randn(4, 4)
            dual = torch.autograd.forward_ad.make_dual(x, torch.randn(4, 4))
            _, tangent = torch.autograd.forward_ad.unpack_dual(net(dual))
            tangent.sum().backward()

    with memwatch.profile(intercept=intercept) as prof:
        step()
    assert [text for kind, text in prof.notes if "forward-mode AD" in text]
    with memwatch.profile(intercept=intercept) as prof:
        _used_twice()
    assert [text for kind, text in prof.notes if "forward-mode AD" in text] == []
