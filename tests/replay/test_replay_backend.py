"""The torch.compile backend: same results bit for bit, lower peak, budgets of forward and backward together."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from replay_programs import GPT, Experts, Residual, UNet
from torch import nn
from torch.fx.traceback import annotate
from torch.nn import functional

import memwatch
from memwatch.errors import MemwatchError
from memwatch.planner import BudgetError
from memwatch.replay.measure import measure_peak

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def backend():
    """Import the backend late: it brings torch's compiler into a process whose heap other tests search."""
    from memwatch.replay.backend import memwatch_backend

    return memwatch_backend


def compiled(function, budget=None, **options):
    options = {"time_limit_s": 3.0, **options, **({"budget": budget} if budget else {})}
    return torch.compile(function, backend="memwatch", options=options)


def gpt(dropout=0.0, checkpointed=False):
    torch.manual_seed(0)
    model = GPT(width=32, length=32, dropout=dropout, checkpointed=checkpointed)
    ids = torch.randint(0, 64, (8, 32))
    return model, lambda: functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())


def gradients(model, loss):
    """Run one step; give the loss and all gradients."""
    torch.manual_seed(1)
    model.zero_grad()
    value = loss()
    value.backward()
    return [value.detach(), *(p.grad.clone() for p in model.parameters())]


def peak_of(model, loss):
    gradients(model, loss)
    model.zero_grad()
    with measure_peak("cpu") as measured:
        loss().backward()
    return measured.peak_increase_bytes


def assert_equal(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("budget", ["60%", "40%"])
def test_measured_peak_is_within_the_budget(budget):
    """Forward and backward share one budget, and the allocator's events stay below it."""
    model, loss = gpt()
    wanted = gradients(model, loss)
    own = peak_of(model, compiled(loss, order="program"))
    torch._dynamo.reset()
    planned = compiled(loss, budget)
    assert_equal(gradients(model, planned), wanted)
    assert peak_of(model, planned) <= own * float(budget[:-1]) / 100


def test_peak_falls_with_the_budget():
    """Every smaller budget gives a smaller peak, which `activation_memory_budget` does not promise."""
    peaks = []
    for budget in ("100%", "70%", "50%", "35%"):
        torch._dynamo.reset()
        model, loss = gpt()
        peaks.append(peak_of(model, compiled(loss, budget)))
    assert sorted(peaks, reverse=True) == peaks
    assert peaks[-1] < 0.4 * peaks[0]


def test_random_ops_draw_what_they_draw_without_compilation():
    """Dropout stays in generator order and is never drawn twice."""
    model, loss = gpt(dropout=0.2)
    wanted = gradients(model, loss)
    assert_equal(gradients(model, compiled(loss, "60%")), wanted)


def convolutions():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), Residual(8, 8, 1), Residual(8, 16, 2), nn.Flatten(), nn.Linear(1024, 4)
    )
    batch = torch.randn(4, 3, 16, 16)
    return model, lambda: model(batch).square().mean()


def skips():
    torch.manual_seed(0)
    model, batch = UNet(), torch.randn(2, 1, 16, 16)
    return model, lambda: model(batch).square().mean()


def experts():
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(8, 16), Experts(), nn.Linear(16, 5)), torch.randn(24, 8)
    return model, lambda: model(batch).square().mean()


def autocast():
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)), torch.randn(32, 16)

    def loss():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch).float().square().mean()

    return model, loss


def blocks_checkpointed_by_hand():
    return gpt(checkpointed=True)


@pytest.mark.filterwarnings("ignore:torch.compile, backend memwatch")
@pytest.mark.filterwarnings("ignore:.*Dynamo detected")
@pytest.mark.parametrize("build", [convolutions, skips, experts, autocast, blocks_checkpointed_by_hand])
def test_gradients_are_bitwise_those_of_eager(build):
    """BatchNorm's statistics, skips, graph breaks, autocast, checkpoints inside: same bits as without."""
    model, loss = build()
    wanted = gradients(model, loss)
    states = {name: value.clone() for name, value in model.state_dict().items()}
    model, loss = build()
    assert_equal(gradients(model, compiled(loss, "70%")), wanted)
    for name, value in model.state_dict().items():
        assert torch.equal(value, states[name])


class _OfNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.exp(np.sin(x.detach().numpy())))

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        array = x.numpy()
        return gradient * torch.from_numpy(np.exp(np.sin(array)) * np.cos(array))


class _WithNumPy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 64)

    def forward(self, x):
        return _OfNumPy.apply(torch.relu(self.layer(x))).pow(2).mean()


def test_a_function_of_numpy_runs_as_it_is_and_a_budget_says_so():
    """Dynamo would compute it with kernels of torch, whose last bits differ."""
    x, model = torch.randn(32, 16), _WithNumPy()
    expected = torch.autograd.grad(model(x), list(model.parameters()))
    compiled = torch.compile(model, backend="memwatch")
    for one, other in zip(torch.autograd.grad(compiled(x), list(model.parameters())), expected, strict=True):
        assert torch.equal(one, other)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="calls NumPy"):
        torch.compile(model, backend="memwatch", options={"budget": "90%"})(x).backward()
    torch._dynamo.reset()
    strict = torch.compile(model, backend="memwatch", options={"budget": "90%", "strict": True})
    with pytest.raises(Exception, match="calls NumPy"):
        strict(x).backward()


def test_outputs_that_are_views_and_inputs_keep_their_identity():
    """A graph may give back views of each other, of its inputs, and numbers."""

    def function(x, w):
        y = x @ w
        return y, y.t(), x.view(-1), y.sum(), 3

    x, w = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    wanted, found = function(x, w), compiled(function, "90%", strict=False)(x, w)
    assert found[4] == 3
    assert_equal(found[:4], wanted[:4])
    (found[1].sum() + found[2].sum() + found[3]).backward()
    got = x.grad.clone(), w.grad.clone()
    x.grad = w.grad = None
    (wanted[1].sum() + wanted[2].sum() + wanted[3]).backward()
    assert_equal(got, [x.grad, w.grad])


def test_graphs_without_backward_are_planned_too():
    """Inference of parallel paths written stage by stage runs path by path."""
    starts = [torch.randn(128, 128) for _ in range(6)]

    def paths(starts, a):
        stage = [functional.relu(t) for t in starts]
        stage = [functional.relu(t @ t) for t in stage]
        for t in stage:
            a = t @ a
        return a

    planned = compiled(paths)
    with torch.no_grad():
        wanted = paths(starts, starts[0])
        assert torch.equal(planned(starts, starts[0]), wanted)
        with measure_peak("cpu") as measured:
            planned(starts, starts[0])
    assert measured.peak_increase_bytes == 3 * 128 * 128 * 4


def test_sizes_may_be_symbols():
    """A graph for any batch size is planned by the size it was traced with."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
    planned = torch.compile(
        lambda x: (model(x) * x.shape[0]).square().mean(), backend=backend(), dynamic=True,
        options={"budget": "80%", "time_limit_s": 2.0},
    )  # fmt: skip
    for rows in (16, 24, 40):
        batch = torch.randn(rows, 8)
        wanted = gradients(model, lambda batch=batch: (model(batch) * batch.shape[0]).square().mean())
        assert_equal(gradients(model, lambda batch=batch: planned(batch)), wanted)


@pytest.mark.whole
def test_budget_out_of_reach_is_said():
    """The lowest plan is taken with a warning, or, with `strict`, each call raises memwatch's own error."""
    model, loss = gpt()
    wanted = gradients(model, loss)
    with pytest.warns(UserWarning, match=r"no plan fits 1.00 KiB.*the lowest plan is used"):
        assert_equal(gradients(model, compiled(loss, "1 KiB", time_limit_s=1.0)), wanted)
    for budget in ("1 KiB", "1%"):
        torch._dynamo.reset()
        refused = compiled(loss, budget, strict=True, time_limit_s=1.0)
        for _ in range(3):
            with pytest.raises(BudgetError, match="no plan fits"):
                refused().backward()


class _Wide(nn.Module):
    """A layer whose products alone need more than the budget of the test."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 4096))

    def forward(self, x):
        return (x @ self.weight).relu().sum()


def test_an_op_that_needs_more_than_the_budget_is_named_by_its_line():
    line = _Wide.forward.__code__.co_firstlineno + 1
    step = compiled(_Wide(), "256 KiB", strict=True)
    with pytest.raises(
        BudgetError, match=rf"\w+ \((the backward of )?test_replay_backend.py:{line}\) needs that"
    ):
        step(torch.randn(64, 64)).backward()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bugdet": 1}, "no option 'bugdet'; it has budget"),
        ({"budget": "banana"}, "banana"),
        ({"budget": 0.5}, "'50%'"),
        ({"recompute": "no"}, "recompute='no'"),
        ({"strict": "yes"}, "strict='yes'"),
        ({"seed": "a"}, "seed='a'"),
        ({"offload": 1}, "offload=1"),
        ({"inner": "fast"}, "use 'eager' or 'inductor'"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, words):
    """The error names the misspelt option or budget and lists the valid ones."""
    with pytest.raises(Exception, match=words) as caught:
        torch.compile(lambda x: x + 1, backend=backend(), options=options)(torch.ones(2))
    assert isinstance(caught.value.inner_exception, MemwatchError)


def test_a_share_that_cannot_be_measured_is_said():
    """A profiler receives the allocator's events, which the backend would need."""
    model, x = (
        nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))),
        torch.randn(256, 64),
    )
    step = compiled(model, "60%")
    with memwatch.profile(holders=False), pytest.warns(UserWarning, match="cannot measure this step"):
        step(x).sum().backward()
    with memwatch.profile(holders=False), warnings.catch_warnings():
        warnings.simplefilter("error")
        step(x).sum().backward()  # it is said once


def test_nothing_is_warned_about_when_the_budget_is_met():
    """A plan within its budget is silent."""
    model, loss = gpt()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        gradients(model, compiled(loss, "70%"))


def chain(x):
    for _ in range(4):
        x = (x @ x).tanh()
    return x.sum()


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_a_region_with_a_budget_of_its_own_is_left_to_torch(budget, monkeypatch):
    """Torch 2.15's region_activation_memory_budget decides what to keep. memwatch does not plan this region."""
    backend()
    monkeypatch.setattr(
        "memwatch.replay.step_model.plan_graph", lambda *_, **__: pytest.fail("it was planned")
    )
    # older versions mark the region by hand
    mark = {"_region_activation_memory_budget": budget}
    region = getattr(torch.autograd.graph, "region_activation_memory_budget", lambda _: annotate(mark))

    def inside(x):
        with region(budget):
            return chain(x)

    saved_bytes = []

    def pack(tensor):
        saved_bytes.append(tensor.nbytes)
        return tensor

    x = torch.linspace(-0.1, 0.1, 4096).reshape(64, 64).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = compiled(inside)(x)
    (gradient,) = torch.autograd.grad(loss, x)
    assert torch.equal(gradient, torch.autograd.grad(chain(x), x)[0])
    if hasattr(torch.autograd.graph, "region_activation_memory_budget"):
        assert (sum(saved_bytes) > x.nbytes) == (budget == 1.0)
