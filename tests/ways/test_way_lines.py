"""The lines of a way, in a program that copies its model after them."""

from __future__ import annotations

import copy
import inspect
import io
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from memwatch.way_lines import LINES, joined, of_blocks

_KINDS = (
    "checkpoint",
    "checkpoint, buffers",
    "autocast",
    "without_graph",
    "loss_in_parts",
    "chain",
    "float32",
)


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), nn.Linear(8, 4))


def _lines(kind):
    if kind in ("checkpoint", "checkpoint, buffers", "autocast"):
        return joined([of_blocks(kind, "model", ["" if kind == "autocast" else "0"], device="cpu")])
    return joined([LINES[kind].format(model="model", name="0" if kind == "chain" else "1", segments=2)])


def _loss(model):
    torch.manual_seed(1)
    return nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.arange(16) % 4)


def _with_lines(kind, monkeypatch):
    """Return a model with the lines of a kind. They run in a module, so that pickle finds their functions."""
    program = ModuleType("program")
    program.model = _model()
    monkeypatch.setitem(sys.modules, "program", program)
    exec(_lines(kind), vars(program))
    return program.model


def _loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, _loaded])
@pytest.mark.parametrize("kind", _KINDS)
def test_a_copy_of_the_model_computes_with_its_own_weights(kind, copied, monkeypatch):
    model = _with_lines(kind, monkeypatch)
    twin = copied(model)
    wanted = _loss(copy.deepcopy(model)).detach()
    with torch.no_grad():
        for each in model.parameters():
            each.fill_(torch.nan)  # the training goes on
    loss = _loss(twin)
    assert loss.detach() == wanted
    if loss.requires_grad:
        loss.backward()
        assert all(each.grad is not None for each in twin.parameters())
    assert all(each.grad is None for each in model.parameters())
    assert twin[0][1].num_batches_tracked
    assert not model[0][1].num_batches_tracked


@pytest.mark.parametrize("kind", ["autocast", "without_graph"])
def test_the_forward_of_a_changed_model_has_the_signature_of_the_former_one(kind):
    class Model(nn.Module):
        def forward(self, inputs, labels=None):
            return inputs

    model = nn.Sequential(Model())
    lines = of_blocks("autocast", "model", ["0"], device="cpu")
    exec(LINES[kind].format(model="model[0]") if kind == "without_graph" else lines, {"model": model})
    assert [*inspect.signature(model[0].forward).parameters] == ["inputs", "labels"]


def test_lines_for_several_models_define_each_function_once():
    lines = joined(LINES["without_graph"].format(model=name) for name in ("teacher", "critic"))
    assert lines.count("def ") == lines.count("import no_grad") == 1
    assert "teacher.forward = " in lines
    assert "critic.forward = " in lines
    for name in ("generator", "critic"):
        lines = joined([lines, of_blocks("checkpoint, buffers", name, ["0", "1"])])
    assert lines.count("class ") == lines.count("def __enter__") == lines.count("def contexts_of") == 1
    compile(lines, "lines", "exec")
