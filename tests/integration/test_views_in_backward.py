"""Tensors from the backward of a view have the line and the module of the view, not the line of `.backward()`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch.record.interception import VIEWS

ROWS, WIDTH = 6, 24
BACKWARD_OF_VIEW = {
    "LastState": "aten.select_backward.default",
    "Heads": "aten.clone.default",
    "Gated": "aten.cat.default",
    "Biased": "aten.sum.dim_IntList",
    "Doubled": "aten.sum.dim_IntList",
}
"""The op that the backward of the marked view runs, by the class of the module that runs the view."""


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, 16)

    def forward(self, x):
        h, _ = self.rnn(x.unsqueeze(1))
        return h[-1]  # view of LastState


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = self.value(x[None]).view(1, ROWS, 4, 6)  # view of Heads
        heads = heads.transpose(1, 2)
        weights = torch.rand(1, 4, ROWS, ROWS)  # makes no node and has no tensor argument
        return weights @ heads


class Gated(nn.Module):
    def forward(self, x):
        gate, value = x.chunk(2, -1)  # view of Gated
        mask = x.detach().tanh()  # makes no node either
        return functional.silu(gate) * value + mask.sum()


class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, WIDTH))

    def forward(self, x):
        bias = self.bias.expand(ROWS, WIDTH)  # view of Biased
        return x.detach().exp() * bias


class Doubled(nn.Module):
    """A Function whose backward makes a graph with a view: the backward of the sum expands."""

    def forward(self, x):
        total = x.mul(x).sum(0)  # view of Doubled
        (slope,) = torch.autograd.grad(total.exp().sum(), x, create_graph=True)
        return slope * 2


WHOLE = ("whole", lambda block, x: block(x))
WAYS = (
    WHOLE,
    ("without reentry", lambda block, x: checkpoint(block, x, use_reentrant=False)),
    ("with reentry", lambda block, x: checkpoint(block, x, use_reentrant=True)),
)


class Net(nn.Module):
    def __init__(self, block, way):
        super().__init__()
        self.block, self.way = block, way

    def forward(self, x):
        return self.way(self.block, x)


CALLS = {
    "_reshape_alias": lambda x: torch.ops.aten._reshape_alias(x, [4, 6], [6, 1]),
    "as_strided": lambda x: x.as_strided([3], [1]),
    "diagonal": lambda x: x.diagonal(),
    "expand": lambda x: x.expand(2, 4, 6),
    "permute": lambda x: x.permute(1, 0),
    "select.int": lambda x: x.select(0, 1),
    "slice.Tensor": lambda x: x[1:],
    "split.Tensor": lambda x: x.split(2)[0],
    "split_with_sizes": lambda x: x.split([1, 3])[0],
    "squeeze": lambda x: x.squeeze(),
    "squeeze.dim": lambda x: x.squeeze(0),
    "squeeze.dims": lambda x: x.squeeze((0, 1)),
    "t": lambda x: x.t(),
    "transpose.int": lambda x: x.transpose(0, 1),
    "unbind.int": lambda x: x.unbind()[0],
    "unfold": lambda x: x.unfold(0, 2, 1),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "view": lambda x: x.view(24),
    "view_as_complex": lambda x: torch.view_as_complex(x.as_strided([4, 3, 2], [6, 2, 1])),
    "view_as_real": lambda x: torch.view_as_real(x * 1j),
}


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(number for number, line in enumerate(lines, 1) if line.endswith(text))}"


def recorded(block, way, intercept):
    net, x = Net(block, way), torch.randn(ROWS, WIDTH, requires_grad=True)
    with memwatch.profile(intercept=intercept, holders=False) as prof:
        net(x).sum().backward()
    return prof


def made_by_backward(prof, op_name):
    """Return lines and modules of the tensors that an op made in backward."""
    made = prof.storages[prof.storages["op_name"] == op_name]
    phases = prof.ops["phase"].reindex(made["op"]).to_numpy()
    made = made[phases == "backward"]
    return list(zip(made["line"], made["module"], strict=True))


@pytest.fixture(params=[(native, way) for native in "10" for way in ("key", "mode")], ids="-".join)
def intercept(request, monkeypatch):
    """Each recorder, and each way to see ops."""
    native, way = request.param
    monkeypatch.setenv("MEMWATCH_NATIVE", native)
    return way


@pytest.mark.parametrize(
    ("block", "way"),
    [
        *((block, WHOLE) for block in (LastState, Heads, Gated, Biased, Doubled)),
        *((block, way) for way in WAYS[1:] for block in (LastState, Heads)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value.__name__,
)
def test_what_backward_of_a_view_makes_has_its_place(block, way, intercept):
    """Line and module are the view's. A later op does not count as the maker if it made no node."""
    made = made_by_backward(recorded(block(), way[1], intercept), BACKWARD_OF_VIEW[block.__name__])
    assert (line_of(f"# view of {block.__name__}"), "block") in made
    assert [place for place in made if not place[1] or place[0] == line_of("net(x).sum().backward()")] == []


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_each_view_that_makes_a_node_is_noted(name, intercept):
    """There is one row, and its node is the newest there."""
    x, call = torch.randn(4, 6, requires_grad=True), CALLS[name]
    with memwatch.profile(intercept=intercept, holders=False) as prof:
        before = call(x).grad_fn._sequence_nr()
        same = call(x.detach())
        after = call(x).grad_fn._sequence_nr()
    numbers = prof.capture.tables["views"]["sequence"].tolist()
    assert same.grad_fn is None
    assert [number for number in numbers if number in (before, after)] == [before, after]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return x.mul(gradient)  # the Function's own


class Squared(nn.Module):
    def forward(self, x):
        h = Square.apply(x)
        mask = x.detach()[:1] > 0  # neither makes a node, so the newest node is the Function's
        return h.sin() * mask


def test_what_a_functions_own_backward_makes_is_on_its_line(intercept):
    """Its node does not come from a recorded op, so the gradient gets this line."""
    made = made_by_backward(recorded(Squared(), WHOLE[1], intercept), "aten.mul.Tensor")
    assert (line_of("# the Function's own"), "") in made
    assert line_of("so the newest node is the Function's") not in [line for line, _ in made]
