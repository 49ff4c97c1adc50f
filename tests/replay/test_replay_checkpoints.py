"""Checkpoint policies keep their budget, and their results equal the model's, for eight types of blocks."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoint_blocks import BLOCKS, build
from replay_recording import record
from torch import nn
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch._torch.profiler import is_running
from memwatch.capture.schema import FORWARD, RECOMPUTE
from memwatch.errors import MemwatchError
from memwatch.planner import BudgetError, Graph, PlanFileError, load_plan, plan_graph
from memwatch.replay.checkpoints.contexts import training_step
from memwatch.replay.checkpoints.regions import own_regions
from memwatch.replay.measure import measure_peak


class Training:
    """A model of equal blocks, always trained from the same start."""

    def __init__(self, name, count=3):
        self.model, self.batch = build(name, count)
        self._start = copy.deepcopy(self.model.state_dict())
        self.step()

    def step(self, contexts=None, *, is_plain=False):
        """Run forward and backward; with contexts each block is a checkpointed region."""
        x = self.batch
        options = {} if contexts is None else {"context_fn": contexts}
        for block in self.model:
            is_eager = contexts is None and not is_plain
            x = block(x) if is_eager else checkpoint(block, x, use_reentrant=False, **options)
        x.square().mean().backward()

    def results(self, *args, **options):
        """Return gradients and buffers after a step from the start, and the next number of the generator."""
        self.reset()
        torch.manual_seed(1)
        self.step(*args, **options)
        grads = [parameter.grad for parameter in self.model.parameters()]
        return [*grads, *map(torch.clone, self.model.buffers()), torch.rand(3)]

    def peak_bytes(self, *args, **options):
        """Return the peak increase of a step by the allocator's own events."""
        self.reset()
        with measure_peak("cpu") as measured:
            self.step(*args, **options)
        return measured.peak_increase_bytes

    def reset(self):
        self.model.load_state_dict(self._start)
        self.model.zero_grad()

    def plan(self, **options):
        """Return a plan of a step in its own order; `at` gives it any budget."""
        self.reset()
        prof = record(lambda: self.step(**options))
        return memwatch.plan(prof, budget="100%", order="program", recompute=False, time_limit_s=1)


def at(plan, ratio):
    return dataclasses.replace(plan, budget_bytes=int(ratio * plan.program_peak_increase_bytes))


def equal(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.fixture(autouse=True)
def quiet():
    """Ignore warnings about budgets that checkpoints cannot reach. These tests measure the peak."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the budget is")
        yield


@pytest.mark.parametrize("name", BLOCKS)
def test_policy_keeps_its_claim_and_is_not_above_plain_checkpoints(name):
    """The same holds for the program's own regions, which equal plain checkpoints, and for an applied plan.

    With an applied plan gradients, statistics of batch norms and the generator equal the model's in every bit.
    """
    training = Training(name)
    eager, plain = training.results(), training.results(is_plain=True)
    eager_bytes, plain_bytes = training.peak_bytes(), training.peak_bytes(is_plain=True)
    planned = training.plan()
    for ratio in (0.7, 0.2):
        plan = at(planned, ratio)
        training.step(plan.checkpoint_contexts)
        assert equal(training.results(plan.checkpoint_contexts), plain)
        found_bytes = training.peak_bytes(plan.checkpoint_contexts)
        assert found_bytes <= min(plan.checkpoint_peak_bytes, plain_bytes)
    with memwatch.apply_plan(training.model, at(planned, 0.7)) as applied:
        assert equal(training.results(), eager)
        assert training.peak_bytes() <= applied.peak_increase_bytes < eager_bytes
        assert applied.modules
    assert not any("forward" in vars(module) for module in training.model.modules())


def test_program_recorded_with_its_checkpoints_is_planned_from_the_first_step():
    """Its regions are known then. At its own peak, saved tensors do not help."""
    training = Training("transformer, dropout")
    plain_bytes = training.peak_bytes(is_plain=True)
    planned = training.plan(is_plain=True)
    plan = at(planned, 1.0)
    assert plan.checkpoint_peak_bytes <= plain_bytes + 1024
    wanted = training.results(is_plain=True)
    assert equal(training.results(plan.checkpoint_contexts), wanted)
    assert training.peak_bytes(plan.checkpoint_contexts) <= plain_bytes
    with pytest.raises(MemwatchError, match="checkpoints of its own"):
        memwatch.apply_plan(training.model, plan)


def test_loaded_plan_drives_training(tmp_path):
    """A plan file is enough for training, without recording and program."""
    training = Training("MLP")
    planned = training.plan()
    planned.save(tmp_path / "step.plan")
    loaded = at(load_plan(tmp_path / "step.plan"), 0.9)
    wanted = at(planned, 0.9)
    for plan in (loaded, wanted):
        training.step(plan.checkpoint_contexts)
        training.step(plan.checkpoint_contexts)
    assert loaded.checkpoint_peak_bytes == wanted.checkpoint_peak_bytes
    with memwatch.apply_plan(training.model, loaded) as applied:
        training.reset()
        assert applied.check(training.step) <= applied.peak_increase_bytes <= loaded.budget_bytes


def test_step_above_the_claim_is_an_error_that_undoes_the_plan():
    """It has both figures, and the model is as it was."""
    training = Training("MLP")
    applied = memwatch.apply_plan(training.model, at(training.plan(), 0.9))
    training.batch = torch.cat([training.batch] * 3)
    training.reset()
    with pytest.raises(BudgetError, match=r"claims a peak increase of .* a step took"):
        applied.check(training.step)
    assert not any("forward" in vars(module) for module in training.model.modules())


@pytest.mark.parametrize("is_strict", [False, True])
def test_first_pass_is_measured(is_strict):
    """A larger step than the recorded one takes more than the plan claims: a warning or an error has both figures."""
    training = Training("MLP")
    plan = at(training.plan(), 0.9)
    batch = torch.cat([training.batch] * 3)
    training.step(plan.checkpoint_contexts)  # shows the regions

    def contexts():
        return plan.checkpoint_contexts(strict=is_strict)

    def applied():
        memwatch.apply_plan(training.model, plan, strict=is_strict)
        return training.step()

    for first, later in (
        (lambda: training.step(contexts), lambda: training.step(contexts)),
        (applied, training.step),
    ):
        training.batch = batch
        with failing(is_strict):
            first()
        assert not is_running()
        later()
    assert any("forward" in vars(module) for module in training.model.modules()) is not is_strict


def failing(is_strict):
    message = r"the plan claims .*iB, and the first such pass took .*iB"
    return (
        pytest.raises(BudgetError, match=message) if is_strict else pytest.warns(UserWarning, match=message)
    )


def test_first_pass_that_keeps_its_claim_or_ends_in_an_exception_is_silent():
    """The profiler is off afterwards, and a step without a backward is not judged."""
    training = Training("MLP")
    plan = at(training.plan(), 0.7)
    with warnings.catch_warnings(), memwatch.apply_plan(training.model, plan):
        warnings.simplefilter("error")
        out = training.model(training.batch)
        assert is_running()
        del out
        assert not is_running()
        training.reset()
        training.step()
    assert not is_running()


def test_budget_that_checkpoints_cannot_keep_is_warned_of_with_both_figures():
    """The lowest is used all the same."""
    training = Training("MLP")
    plan = at(training.plan(), 0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            training.step(plan.checkpoint_contexts)
        memwatch.apply_plan(training.model, plan).undo()
    with pytest.raises(BudgetError, match="the peak increase is"):
        memwatch.apply_plan(training.model, plan, strict=True)
    assert len(caught) == 2
    assert all(
        "the budget is" in str(each.message) and "the peak increase is" in str(each.message)
        for each in caught
    )


def test_plan_of_no_training_step_says_so():
    """Neither a graph, which lacks a step, nor a forward alone, which lacks a backward, can drive training."""
    plan = plan_graph(Graph.build([("a", (), {"x": 8}, 1.0)]), order="program", recompute=False)
    model = nn.Linear(2, 2)
    for use in (plan.checkpoint_contexts, lambda: memwatch.apply_plan(model, plan)):
        with pytest.raises(MemwatchError, match="holds no training step"):
            use()
    forward = memwatch.plan(record(lambda: model(torch.ones(1, 2)).sum()), order="program", recompute=False)
    with pytest.raises(MemwatchError, match="ran no backward"):
        forward.checkpoint_contexts()


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = x.sigmoid()
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors
        return grad * gate * (1 + x * (1 - gate))


def test_tensors_that_a_custom_function_saved_belong_to_the_region_that_it_ends():
    class Block(nn.Linear):
        def forward(self, x):
            return Swish.apply(super().forward(x))

    model, x = nn.Sequential(Block(32, 32), Block(32, 32)), torch.randn(64, 32)
    prof = record(lambda: model(x).sum().backward())
    plan = memwatch.plan(prof, budget="100%", order="program", recompute=False, time_limit_s=1)
    step = training_step(plan)
    names = [step.overloads[step.call_overload[call]] for call in step.pack_call.tolist()]
    assert names.count("aten.mul.Tensor") == 4  # the last call of the forward, for two tensors of each block


@pytest.mark.parametrize("numbers", [[2**70], 1, [[1]], ["x"], None])
def test_a_damaged_training_step_is_an_error_of_the_plan_file(numbers):
    plan = Training("MLP", count=1).plan()
    content = {**plan.step_content(), "call_price": numbers}
    with pytest.raises(PlanFileError, match="is damaged"):
        training_step(SimpleNamespace(step_content=lambda: content))


def test_other_sizes_than_the_recorded_ones_are_not_saved():
    """A larger batch is computed again as a whole: never above plain checkpoints."""
    training = Training("MLP")
    plan = at(training.plan(), 0.7)
    training.step(plan.checkpoint_contexts)
    training.batch = torch.cat([training.batch] * 2)
    training.step(plan.checkpoint_contexts)
    plain_bytes = training.peak_bytes(is_plain=True)
    assert training.peak_bytes(plan.checkpoint_contexts) <= plain_bytes
    assert equal(training.results(plan.checkpoint_contexts), training.results())


def test_regions_that_run_without_gradients_or_amid_others_take_no_turn():
    """Turns are counted in the forward of training alone."""
    training = Training("MLP")
    plan = at(training.plan(), 0.6)
    wanted = training.results()
    for _ in range(2):
        with torch.no_grad():
            checkpoint(
                training.model[0], training.batch, use_reentrant=False, context_fn=plan.checkpoint_contexts
            )
        assert equal(training.results(plan.checkpoint_contexts), wanted)
    assert training.peak_bytes(plan.checkpoint_contexts) <= plan.checkpoint_peak_bytes


def test_copies_of_a_planned_model_are_models_of_their_own():
    """A deep copy checkpoints its own modules; a pickle holds the model without the plan."""
    training = Training("MLP")
    plan = at(training.plan(), 0.4)
    with memwatch.apply_plan(training.model, plan) as applied:
        copied = copy.deepcopy(training.model)
        loaded = pickle.loads(pickle.dumps(training.model))
        with pytest.raises(MemwatchError, match="applied to this model already"):
            memwatch.apply_plan(training.model, plan)
    for model in (copied, loaded):
        for parameter in training.model.parameters():
            torch.nn.init.zeros_(parameter)
        model(training.batch).sum().backward()
        assert any(parameter.grad.count_nonzero() for parameter in model.parameters())
    assert applied.modules


def test_regions_of_the_program_do_not_overlap():
    """The last two of three equal ops are a region. It runs again in two backwards, so the second finds no place."""
    calls = [FORWARD] * 3 + [RECOMPUTE] * 4
    step = SimpleNamespace(
        call_overload=np.zeros(len(calls), dtype=np.int64),
        call_phase=np.array(calls),
        again_start=np.array([3, 5]),
        again_end=np.array([5, 7]),
    )
    assert [(region.start, region.end) for region, _, _ in own_regions(step)] == [(1, 3)]


class _Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class _Adversaries:
    """Two models whose modules have the same names; `judge` has fewer of them than `maker`."""

    def __init__(self, depths):
        torch.manual_seed(0)
        self.maker, self.judge = (nn.Sequential(*(_Block(32) for _ in range(depth))) for depth in depths)
        self.batch = torch.randn(256, 32)

    def step(self):
        """Train both models."""
        made = self.maker(self.batch)
        (self.judge(made.detach()).mean() - self.judge(self.batch).mean()).backward()
        self.judge(made).mean().neg().backward()

    def grads(self):
        for model in (self.maker, self.judge):
            model.zero_grad()
        self.step()
        return [each.grad.clone() for model in (self.maker, self.judge) for each in model.parameters()]


@pytest.mark.parametrize("name", ["maker", "judge"])
def test_a_plan_changes_the_modules_of_its_model_alone(name):
    """The modules of another model have the same names in the recording, and are no modules of this model."""
    both = _Adversaries(depths=(4, 3))
    model = getattr(both, name)
    wanted = both.grads()  # so that the gradients are there before each measured step
    plan = memwatch.plan(record(both.step), budget="100%", order="program", recompute=False, time_limit_s=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the measured step must keep the peak that the plan claims
        with memwatch.apply_plan(model, at(plan, 0.8)) as applied, measure_peak("cpu") as measured:
            both.step()
    assert set(applied.modules) <= {each for each, _ in model.named_modules()}
    assert applied.peak_increase_bytes <= applied.budget_bytes
    assert 0.999 * applied.peak_increase_bytes <= measured.peak_increase_bytes <= applied.peak_increase_bytes
    with memwatch.apply_plan(model, at(plan, 0.8)):
        assert equal(both.grads(), wanted)


def test_a_plan_refuses_a_model_that_looks_like_another_model_of_the_recording():
    both = _Adversaries(depths=(3, 3))
    both.step()
    plan = memwatch.plan(record(both.step), budget="100%", order="program", recompute=False, time_limit_s=1)
    with pytest.raises(MemwatchError, match="several models with the same modules"):
        memwatch.apply_plan(both.judge, at(plan, 0.8))


def test_a_plan_is_for_the_model_that_the_recorded_step_trains():
    """The target network of DQN has the same modules, but nothing trains it."""
    torch.manual_seed(0)
    policy = nn.Sequential(*(_Block(32) for _ in range(3)))
    target, batch = copy.deepcopy(policy), torch.randn(256, 32)

    def step():
        with torch.no_grad():
            wanted = target(batch)
        (policy(batch) - wanted).square().mean().backward()

    step()
    plan = memwatch.plan(record(step), budget="100%", order="program", recompute=False, time_limit_s=1)
    with memwatch.apply_plan(policy, at(plan, 0.7)) as applied:
        assert applied.modules
        assert applied.peak_increase_bytes <= applied.budget_bytes
