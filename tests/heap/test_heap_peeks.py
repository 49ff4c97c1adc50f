"""memwatch reads autograd's state of a tensor without changing it: it calls no getter that may compute."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path

import pytest
import torch
from sampled_ops import sample_every_op
from torch.utils._python_dispatch import TorchDispatchMode

import memwatch
from memwatch._torch import autograd_state as peeks
from memwatch._torch.tensors import TENSOR_DICT
from memwatch.record.holders.sampler import HolderSampler
from memwatch.record.native import library

PACKAGE = Path(memwatch.__file__).parent


class ReadingMode(TorchDispatchMode):
    """Reads a tensor at the end of each op, where memwatch takes its samples."""

    def __init__(self, read):
        super().__init__()
        self.read, self.watched = read, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.watched is not None:
            with torch._C.DisableTorchFunction():
                self.read(self.watched)
        return result


def gradient_while_read(read):
    """Return the gradient of a program that changes the base of a view in place while the view is read."""
    torch.manual_seed(0)
    weight = torch.randn(10, dtype=torch.cfloat, requires_grad=True)
    with ReadingMode(read) as mode:
        base = torch.zeros(10, dtype=torch.cfloat)
        power = torch.view_as_real(base)
        mode.watched = power
        base += weight
        waves = torch.fft.ifft(base)
        mode.watched = None
        return torch.autograd.grad(waves.abs().mean() + power.pow(2).mean(), weight)[0]


def compiled_reader():
    module = library.load()
    assert module is not None, "the native recorder is not built"
    return module.autograd_state


READERS = {
    "compiled": lambda tensor: compiled_reader()(tensor, True),
    "Python": lambda tensor: peeks._read_in_python(tensor, False),
    "Python with the node": lambda tensor: peeks._read_in_python(tensor, True),
    "base": peeks.base_of,
    **{
        name: TENSOR_DICT[name].__get__
        for name in ("requires_grad", "retains_grad", "_base", "_grad", "_version", "output_nr")
    },
    "_is_view": peeks._is_view,
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_does_not_change_the_program(name):
    assert gradient_while_read(READERS[name]).equal(gradient_while_read(lambda tensor: None))


@pytest.mark.parametrize("name", ["grad_fn", "is_leaf"])
def test_these_getters_of_torch_change_the_program(name):
    """They are the reason for the readers. If torch mends them, memwatch may call them again."""

    def getter(tensor):
        # torch's internal assert, once it has found the history empty
        with contextlib.suppress(RuntimeError):
            TENSOR_DICT[name].__get__(tensor)

    assert not gradient_while_read(getter).equal(gradient_while_read(lambda tensor: None))


def states_of(tensor):
    with torch._C.DisableTorchFunction():
        return peeks.AutogradState(*compiled_reader()(tensor, True)), peeks._read_in_python(tensor, True)


def test_both_readers_agree_with_torch_where_torch_computes_nothing():
    leaf = torch.randn(4, requires_grad=True)
    kept = leaf.exp()
    kept.retain_grad()
    plain = torch.ones(4)
    with torch.inference_mode():
        inferred = torch.ones(4)
    for tensor in (leaf, kept, plain, plain[1:], kept[1:], leaf.view(2, 2), leaf.detach(), inferred):
        compiled, python = states_of(tensor)
        assert compiled == python
        assert python == (tensor.grad_fn, tensor.requires_grad, tensor.is_leaf, tensor.retains_grad)


def test_the_compiled_reader_gives_the_node_that_a_changed_view_keeps():
    base = torch.zeros(4, 4)
    view = base[1:]
    base += torch.ones(4, 4, requires_grad=True)
    compiled, python = states_of(view)
    assert (compiled.grad_fn, compiled.requires_grad, compiled.is_leaf) == (None, True, True)
    assert (python.grad_fn, python.requires_grad, python.is_leaf) == (None, True, False)
    assert view.grad_fn is not None  # torch computes it now, for the program
    assert states_of(view)[0].grad_fn is view.grad_fn


def train():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for _ in range(2):
        hidden = model[1](model[0](torch.randn(4, 8)))
        view = hidden[1:]
        kept.append(view)
        model[2](hidden).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return kept


@pytest.mark.parametrize("recorder", ["native", "Python"])
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_sample_calls_no_getter_that_can_compute(intercept, recorder, monkeypatch):
    monkeypatch.setenv("MEMWATCH_NATIVE", "1" if recorder == "native" else "0")
    if recorder == "Python":
        monkeypatch.setattr(peeks, "_compiled", None)
    sample, called = HolderSampler.sample, []

    def refuse(name):
        def getter(tensor):
            called.append(name)
            raise AssertionError(name)

        return property(getter)

    def sample_without_getters(sampler, device):
        with monkeypatch.context() as patch:
            for name in ("grad_fn", "is_leaf", "requires_grad", "retains_grad", "_base"):
                patch.setattr(torch.Tensor, name, refuse(name), raising=False)
                patch.setitem(TENSOR_DICT, name, refuse(name))
            sample(sampler, device)

    monkeypatch.setattr(HolderSampler, "sample", sample_without_getters)
    with sample_every_op(deep_every=5) as count, memwatch.profile(intercept=intercept) as prof:
        train()
    assert count[0] > 50
    assert called == []
    assert [text for kind, text in prof.notes if kind == "recorder" and "not recorded" in text] == []


DEEP = """
import torch, memwatch
from memwatch.heap.reference_search import GraphWalk

def scope():
    y = torch.randn(1, requires_grad=True).clone()
    for _ in range(150_000):
        y = y + y * 0.000001
    walk = GraphWalk(max_nodes=1_000_000)
    assert sum(1 for _ in walk.behind(y, 0)) > 300_000

with memwatch.profile():
    pass
scope()
print("alive")
"""


@pytest.mark.whole
def test_a_long_graph_that_was_walked_is_freed_without_recursion(fresh_python):
    """For a node that was read in Python torch keeps an object, and it frees such nodes by recursion."""
    done = fresh_python(DEEP)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


ASKED_ON_PURPOSE = {
    "_torch/autograd_state.py",  # the readers
    "_torch/autograd.py",  # `node_of_result`, which says why
    "record/saved_tensors.py",  # in the place where torch itself calls the getter
}


def test_no_other_line_asks_torch():
    """`grad_fn` and `is_leaf` are read nowhere else, neither as attributes nor through descriptors."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        name = str(file.relative_to(PACKAGE))
        if name in ASKED_ON_PURPOSE:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            attribute = isinstance(node, ast.Attribute) and node.attr in ("grad_fn", "is_leaf")
            text = isinstance(node, ast.Constant) and node.value in ("grad_fn", "is_leaf")
            if text or (attribute and not reads_a_state(node)):
                found.append(f"{name}:{node.lineno}")
    assert found == []


def reads_a_state(node):
    """Return True if an expression reads a field of an `AutogradState`, judged by the name before the dot."""
    value = node.value
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "autograd_state"
    return isinstance(value, ast.Name) and value.id in ("state", "self", "kept")
