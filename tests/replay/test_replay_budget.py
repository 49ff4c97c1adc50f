"""The backend's budget is a limit: whole callables, workspace, every shape; and nothing but memory changes."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from memwatch._torch.profiler import is_running
from memwatch.planner import BudgetError
from memwatch.replay import budget_keeper
from memwatch.replay.measure import measure_peak
from memwatch.replay.sequences import TRANSITIONS, Event, State

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(function, budget, **options):
    options = {"time_limit_s": 2.0, "strict": True, "budget": budget, **options}
    return torch.compile(function, backend="memwatch", options=options)


def layers(count, width=32):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count)))


class Broken(nn.Module):
    """Four layers with a graph break in the middle."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers(2), layers(2)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def step(model, call):
    """Run one step; return the loss, the gradients and the state of the generator."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = call().square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters()), torch.get_rng_state()]


def peak_of(model, call):
    model.zero_grad()
    with measure_peak("cpu") as measured:
        call().square().mean().backward()
    return measured.peak_increase_bytes


def assert_equal(found, wanted):
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def assert_keeps(model, call, of, budget, allowed_bytes):
    """Check that results equal eager PyTorch's, step by step, and that the peak ends within the budget."""
    wanted = step(model, call)
    planned = of(compiled(model, budget))
    for _ in range(3):
        assert_equal(step(model, planned), wanted)
    assert peak_of(model, planned) <= allowed_bytes


def test_graphs_of_one_callable_share_a_budget():
    """Tensors that the first graph keeps for its backward count while the second runs."""
    model, x = Broken(), torch.randn(256, 32)
    allowed = peak_of(model, lambda: model(x)) * 60 // 100
    for budget in ("60%", allowed):
        assert_keeps(model, lambda: model(x), lambda call: lambda: call(x), budget, allowed)
        torch._dynamo.reset()


def test_two_uses_in_a_step_share_a_budget():
    """Both forwards are alive until the one backward."""
    model, x, y = layers(3), torch.randn(128, 32), torch.randn(128, 32)
    allowed = peak_of(model, lambda: model(x) - model(y)) // 2
    assert_keeps(model, lambda: model(x) - model(y), lambda call: lambda: call(x) - call(y), allowed, allowed)


def test_workspace_counts():
    """A convolution and a group norm need more than their results while they run."""
    torch.manual_seed(0)
    block = [nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU()]
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *block, *block), torch.randn(2, 3, 24, 24)
    allowed = peak_of(model, lambda: model(x)) * 7 // 10
    assert_keeps(model, lambda: model(x), lambda call: lambda: call(x), allowed, allowed)


def test_larger_shapes_are_planned_again_or_refused():
    """The budget applies to the largest batch seen. A batch that cannot fit is refused before it runs."""
    model = layers(4)
    allowed = peak_of(model, lambda: model(torch.randn(128, 32)))
    planned = compiled(model, allowed)
    for rows in (32, 64, 256):
        x = torch.randn(rows, 32)
        wanted = step(model, lambda x=x: model(x))
        for _ in range(2):
            assert_equal(step(model, lambda x=x: planned(x)), wanted)
        assert peak_of(model, lambda x=x: planned(x)) <= allowed
    for _ in range(2):
        with pytest.raises(BudgetError, match="no plan fits"):
            planned(torch.randn(8192, 32))
    assert not is_running()
    assert_equal(step(model, lambda: planned(x)), wanted)


def test_random_numbers_are_drawn_once_a_step():
    """Dropout that the forward drew is not drawn again in the backward, whatever is computed again there."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.3), nn.GELU()) for _ in range(5)))
    x = torch.randn(64, 32)
    allowed = peak_of(model, lambda: model(x)) * 7 // 10
    assert_keeps(model, lambda: model(x), lambda call: lambda: call(x), allowed, allowed)


def test_random_numbers_are_drawn_again_where_nothing_else_fits():
    """From the state that the generator had; it and whatever draws later do not notice."""
    torch.manual_seed(0)
    blocks = [[nn.Linear(64, 64), nn.Dropout(0.3), nn.GELU(), nn.Dropout(0.1)] for _ in range(6)]
    model, x = nn.Sequential(*(nn.Sequential(*block) for block in blocks)), torch.randn(256, 64)

    def noisy(call):
        return call(x) + torch.randn_like(x) * torch.rand(256, 1)

    allowed = peak_of(model, lambda: noisy(model)) * 30 // 100
    assert_keeps(model, lambda: noisy(model), lambda call: lambda: noisy(call), "30%", allowed)


def test_an_exception_ends_the_measuring():
    """After a step that failed between forward and backward the next ones are right, and no profiler runs on."""
    model, x = layers(5), torch.randn(64, 32)
    wanted = step(model, lambda: model(x))
    planned = compiled(model, "60%")

    def fails():
        planned(x)
        raise KeyError

    for _ in range(3):
        with pytest.raises(KeyError):
            fails()
        assert not is_running()
        assert_equal(step(model, lambda: planned(x)), wanted)
    assert not is_running()


def test_no_budget_is_above_torchs_own_partition():
    """Ops that torch recomputes at no cost are recomputed at every budget."""

    def masked(x):
        for _ in range(4):
            x = functional.relu(x @ x) * 2 + 1
        return x

    holder = nn.Linear(96, 96, bias=False)
    of_torch = peak_of(holder, lambda: torch.compile(lambda: masked(holder.weight), backend="aot_eager")())
    torch._dynamo.reset()
    planned = compiled(lambda: masked(holder.weight), "100%")
    for _ in range(2):
        step(holder, planned)
    assert peak_of(holder, planned) <= of_torch


def test_no_fake_tensor_takes_part_in_a_step(monkeypatch):
    """Tensors that are made while a graph is traced are real.

    Ops on fake tensors would cost more than the planned graph.
    """
    model, x = layers(1), torch.ones(4, 32)
    planned = compiled(model, None)
    step(model, lambda: planned(x))
    monkeypatch.delattr(FakeTensorMode, "dispatch")
    step(model, lambda: planned(x))


def test_an_output_that_the_loss_frees_counts_no_longer(caplog):
    """The logits are dead when the backward begins, and the plan counts a step without them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 128), nn.GELU(), nn.Linear(128, 32))
    x, labels = torch.randn(128, 8), torch.zeros(128, dtype=torch.long)

    def loss(call):
        return functional.cross_entropy(call(x), labels)

    planned = compiled(model, "100%")
    with caplog.at_level(logging.INFO, "memwatch.replay.budget_keeper"):
        for _ in range(2):
            step(model, lambda: loss(planned))
    (record,) = caplog.records
    taken, planned_for = (float(size.removesuffix(" KiB")) for size in record.args[:2])
    assert taken == pytest.approx(planned_for, rel=1e-3)


def test_a_budget_in_bytes_pays_for_no_more_than_is_needed(caplog):
    """It is planned before anything has run; the first step shows that outputs go, so less is computed again."""
    model, x = nn.Sequential(layers(4), nn.Linear(32, 16)), torch.randn(128, 32)

    def loss(call):
        out = call(x)
        return out[:, :8].square().mean() + out[:, 8:].abs().mean()

    allowed = peak_of(model, lambda: loss(model)) * 65 // 100
    planned = compiled(model, allowed)
    with caplog.at_level(logging.INFO, "memwatch.replay.budget_keeper"):
        for _ in range(4):
            step(model, lambda: loss(planned))
    first, second = (record.args[-1] for record in caplog.records)
    assert second < first
    assert peak_of(model, lambda: loss(planned)) <= allowed


def test_bytes_reach_as_far_as_a_share():
    """A budget in bytes is not refused for an output that the program may drop: the first step decides."""
    torch.manual_seed(0)
    convolutions = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU()) for _ in range(3)]
    model, x = nn.Sequential(*convolutions, nn.Conv2d(8, 8, 3, padding=1)), torch.randn(2, 8, 24, 24)
    allowed = peak_of(model, lambda: model(x)) * 60 // 100
    for budget in ("60%", allowed):
        assert_keeps(model, lambda: model(x), lambda call: lambda: call(x), budget, allowed)
        torch._dynamo.reset()


def test_sequences_that_take_turns_all_keep_the_budget():
    """A step that calls the model twice and a step that calls it once get a plan each, in either order."""
    model, x, y = layers(3), torch.randn(128, 32), torch.randn(128, 32)
    allowed = peak_of(model, lambda: model(x) - model(y)) * 60 // 100
    planned = compiled(model, allowed)
    for _ in range(5):
        step(model, lambda: planned(x))
    for _ in range(5):
        step(model, lambda: planned(x) - planned(y))
        step(model, lambda: planned(x))
    assert peak_of(model, lambda: planned(x) - planned(y)) <= allowed


def test_a_settled_step_is_followed_until_it_changes(monkeypatch):
    """Nothing is noted of a step that came before, whatever fails in it; a second use of the graph is measured."""
    model = nn.Sequential(nn.Embedding(8, 32), layers(4))
    x, y = torch.randint(0, 8, (2, 128)).unbind()
    allowed = peak_of(model, lambda: model(x) - model(y)) * 6 // 10
    planned = compiled(model, allowed)
    wanted = [step(model, lambda: model(x)), step(model, lambda: model(x) - model(y))]
    for _ in range(3):
        assert_equal(step(model, lambda: planned(x)), wanted[0])
    with monkeypatch.context() as patch:
        patch.setattr(budget_keeper.BudgetKeeper, "begin_run", None)
        for _ in range(3):
            assert_equal(step(model, lambda: planned(x)), wanted[0])
        model.zero_grad()  # else a further backward of the same step would come
        for _ in range(2):
            planned(x)  # let go of
        with pytest.raises(IndexError):
            planned(x + 8)
        assert_equal(step(model, lambda: planned(x)), wanted[0])
    for _ in range(4):
        assert_equal(step(model, lambda: planned(x) - planned(y)), wanted[1])
    assert peak_of(model, lambda: planned(x) - planned(y)) <= allowed
    assert_equal(step(model, lambda: planned(x)), wanted[0])


def test_a_share_is_of_the_step_and_not_of_an_evaluation_before_it():
    """If an evaluation alone cannot keep a strict share, there is a warning.

    No call is refused before a step is measured.
    """
    model, x = layers(4), torch.randn(128, 32)
    allowed = peak_of(model, lambda: model(x)) * 6 // 10
    wanted = step(model, lambda: model(x))
    planned = compiled(model, "60%")
    evaluated = torch.no_grad()(planned)
    with pytest.warns(UserWarning, match="until a step is measured: 60% are of its peak"):
        assert torch.equal(evaluated(x), model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(3):
            assert_equal(step(model, lambda: planned(x)), wanted)
            assert torch.equal(evaluated(x), model(x))
    assert peak_of(model, lambda: planned(x)) <= allowed
    model.requires_grad_(False)
    torch._dynamo.reset()
    planned = compiled(model, "30%")
    with pytest.raises(BudgetError):
        planned(x)


def test_code_before_the_first_graph_that_is_not_compiled_is_told():
    """No budget covers the tensors that such code keeps for its backward, and a warning reports it."""
    before, after, x = layers(1), nn.Linear(32, 4), torch.randn(8, 32)
    uncompiled = torch._dynamo.disable(before)
    planned = torch.compile(lambda x: after(uncompiled(x)), backend="memwatch", options={"budget": "90%"})
    with pytest.warns(UserWarning, match="does not cover"):
        planned(x).sum().backward()
    torch._dynamo.reset()
    compiled(after, "100%")(before(x)).sum().backward()


class Recurrent(nn.Module):
    """A model that dynamo leaves as it is."""

    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0])


def test_a_model_that_is_not_compiled_is_refused():
    """No graph has run when its backward begins, so the budget covers nothing.

    A strict budget is an error, another one a warning; both name the code and the reason.

    The same happens after a reset of dynamo, which forgets its callbacks.
    """
    model, x = Recurrent(), torch.ones(3, 2, 8)
    for _ in range(2):
        with pytest.raises(BudgetError, match=r"^torch.compile leaves `forward` .* as it is: .*LSTM"):
            compiled(model, "50%")(x).sum().backward()
    planned = compiled(model, "50%", strict=False)
    with pytest.warns(UserWarning, match=r"leaves `forward` .* as it is: .*LSTM"):
        planned(x).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        planned(x).sum().backward()


class _Layer(nn.Module):
    """A layer with a forward of its own, which dynamo can compile by itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))


class BrokenLoop(nn.Module):
    """Dynamo leaves a loop with a graph break as it is, and compiles each of its layers."""

    def __init__(self, *, is_embedded=False):
        super().__init__()
        self.layers = nn.ModuleList(_Layer() for _ in range(4))
        self.embedding = torch._dynamo.disable(layers(2, 64)) if is_embedded else None

    def forward(self, x):
        x = x if self.embedding is None else self.embedding(x)
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number == 1:
                torch._dynamo.graph_break()
        return x


def test_a_loop_with_a_graph_break_keeps_a_strict_budget():
    """Its layers are graphs of one step, which is measured from the first of them on."""
    x, model = torch.randn(512, 64), BrokenLoop()
    expected = step(model, lambda: model(x))
    eager = peak_of(model, lambda: model(x))
    planned = compiled(model, "70%")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*memwatch")
        for _ in range(4):
            found = step(model, lambda: planned(x))
    assert_equal(found, expected)
    assert peak_of(model, lambda: planned(x)) <= 0.7 * eager


def test_code_that_saves_before_the_first_graph_of_a_loop_is_refused():
    """The first graph then reads a result that autograd made."""
    x, model = torch.randn(512, 64), BrokenLoop(is_embedded=True)
    with pytest.raises(BudgetError, match=r"^torch.compile leaves `.*forward.*` .* as it is"):
        compiled(model, "70%")(x).sum().backward()


class Wrapped(nn.Module):
    """Inside DDP dynamo compiles no container of torch's own: this has a forward of its own."""

    def __init__(self):
        super().__init__()
        self.layers = layers(4)

    def forward(self, x):
        return self.layers(x)


def test_a_distributed_model_keeps_the_budget():
    """The reducer's hooks are in the backward; reports/budget_ranks.py does the same with two processes."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model, x = DistributedDataParallel(Wrapped()), torch.randn(128, 32)
        model(x).sum().backward()  # the reducer rebuilds its buckets
        allowed = peak_of(model, lambda: model(x)) * 6 // 10
        assert_keeps(model, lambda: model(x), lambda call: lambda: call(x), allowed, allowed)
    finally:
        distributed.destroy_process_group()


def test_inductor_keeps_the_budget():
    """Code from inductor keeps the budget by measurement, and its results are close.

    Products need no C++ compiler.
    """
    weight = nn.Parameter(torch.randn(32, 32) / 6)
    model, x = nn.Module(), torch.randn(64, 32)
    model.weight = weight

    def products(x):
        for _ in range(4):
            x = x @ weight
        return x

    wanted = step(model, lambda: products(x))
    allowed = peak_of(model, lambda: products(x)) * 9 // 10
    planned = compiled(products, "90%", inner="inductor")
    for _ in range(3):
        found = step(model, lambda: planned(x))
        assert all(torch.allclose(one, other) for one, other in zip(found, wanted, strict=True))
    assert peak_of(model, lambda: planned(x)) <= allowed


def test_the_documented_states_are_those_of_the_backend():
    """docs/planning.md describes each state, and lists every event that changes one."""
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]
    names, events = {state.value for state in State}, {event.value for event in Event}
    described = [name for row in rows if len(row) == 2 for name in row[0].split(", ") if name in names]
    assert sorted(described) == sorted(names)
    documented = [
        (state, event, after)
        for states, event, after in (row for row in rows if len(row) == 3)
        if event in events
        for state in states.split(", ")
    ]
    assert sorted(documented) == sorted(
        (before.value, event.value, after.value)
        for before, row in TRANSITIONS.items()
        for event, after in row.items()
        if after is not before
    )


def test_every_state_can_be_reached_and_left():
    """The states of a step and of a plan are two machines, and no transition leads from one to the other."""
    for first in (State.IDLE, State.UNPLANNED):
        found = [first]
        for state in found:
            found += [after for after in TRANSITIONS[state].values() if after not in found]
            assert any(after is not state for after in TRANSITIONS[state].values())
        steps = {State.IDLE, State.EAGER, State.MEASURED, State.RECORDED, State.LISTED, State.FOLLOWED}
        assert set(found) == (steps if first is State.IDLE else set(State) - steps)


def test_a_step_goes_through_the_states_of_the_table(monkeypatch):
    """A share is measured as eager PyTorch, then as planned; then the order of graphs is noted, and followed."""
    model, x = layers(4), torch.randn(128, 32)
    seen = []
    enter = budget_keeper.BudgetKeeper._enter

    def entered(keeper, event, before, after):
        enter(keeper, event, before, after)
        seen.append(State.IDLE if after is None else after.state)

    monkeypatch.setattr(budget_keeper.BudgetKeeper, "_enter", entered)
    planned = compiled(model, "60%")
    for _ in range(5):
        step(model, lambda: planned(x))
    measured = [state for state in seen if state is not State.IDLE]
    assert measured[0] is State.EAGER
    assert State.MEASURED in measured
    assert measured[-2:] == [State.LISTED, State.FOLLOWED]
