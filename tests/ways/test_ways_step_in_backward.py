"""A step in the backward: offered where each parameter can be updated by itself, with the same results."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from ways import run_lines

import memwatch
from memwatch.way_lines import LINES


class _Training:
    """A wide model with a small batch, whose gradients are a large part of the peak."""

    def __init__(
        self, make_optimizer, *, micro_batches=1, clips=False, set_to_none=True, in_closure=False, samples=8
    ):
        torch.manual_seed(0)
        gc.collect()
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(6)))
        self.model[5][0].weight = self.model[0][0].weight  # one gradient of two nodes
        self.optimizer = make_optimizer(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self._x, self._micro_batches = torch.randn(samples, 128), micro_batches
        self._clips, self._set_to_none, self._in_closure = clips, set_to_none, in_closure

    def step(self):
        if self._in_closure:
            self.optimizer.step(self._backward)
        else:
            self._backward()
            self.optimizer.step()
        self.scheduler.step()

    def _backward(self):
        self.optimizer.zero_grad(set_to_none=self._set_to_none)
        for _ in range(self._micro_batches):
            functional.mse_loss(self.model(self._x), self._x).backward()
        if self._clips:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


def _recorded(training, warmup=1):
    for _ in range(warmup):
        training.step()
    with memwatch.profile(holders=False) as prof:
        training.step()
        training.step()
    return prof


def _way_of(prof):
    found = [way for way in prof.ways.itertuples() if way.kind == "step_in_backward"]
    return found[0] if found else None


def _adam(parameters, **options):
    return torch.optim.AdamW(parameters, lr=1e-3, **options)


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


@pytest.mark.parametrize("make_optimizer", [_adam, _sgd])
@pytest.mark.parametrize("warmup", [0, 1])
def test_it_gives_the_promised_peak_and_the_same_bits(make_optimizer, warmup):
    """The first step makes the optimizer's state, and with the change makes it in the backward."""
    prof = _recorded(_Training(make_optimizer), warmup)
    way = _way_of(prof)
    assert way.basis == "simulated"
    assert way.time_ratio == 1
    assert "accumulation" in way.decision
    changed = _Training(make_optimizer)
    run_lines(way.lines, training=changed)
    assert _recorded(changed, warmup).peak_bytes == pytest.approx(way.peak_bytes, rel=0.01)
    plain = _Training(make_optimizer)
    _recorded(plain, warmup)
    for one, other in zip(plain.model.parameters(), changed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    before, after = (each.optimizer.state_dict()["state"] for each in (plain, changed))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[0][key], after[0][key]) for key in before[0])


@pytest.mark.parametrize("kind", ["step_in_backward", "fused + step_in_backward"])
def test_the_forward_in_the_closure_of_a_step_makes_no_temporaries_of_the_step(kind):
    """Lightning runs forward and backward in such a closure, and they need all their memory."""
    ways = _recorded(_Training(_adam, in_closure=True)).ways
    (way,) = ways[ways["kind"] == kind].itertuples()
    changed = _Training(_adam, in_closure=True)
    run_lines(way.lines, training=changed)
    assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.01)


def test_a_step_in_the_backward_spares_no_activations_of_a_closure():
    """With a large batch the forward makes the peak, and no change of the optimizer's temporaries lowers it."""
    ways = _recorded(_Training(_adam, in_closure=True, samples=512)).ways
    assert not ways["kind"].str.contains("step_in_backward").any()


def test_with_lists_of_tensors_the_temporaries_of_one_parameter_are_an_estimate():
    """They were recorded for all parameters together."""

    def foreach(parameters):
        return _adam(parameters, foreach=True)

    way = _way_of(_recorded(_Training(foreach)))
    assert way.basis == "estimated"
    changed = _Training(foreach)
    run_lines(way.lines, training=changed)
    assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.05)


@pytest.mark.parametrize(
    "twin",
    [
        lambda: _Training(_adam, clips=True),
        lambda: _Training(_adam, micro_batches=2),
        lambda: _Training(_adam, set_to_none=False),
    ],
    ids=["it clips gradients", "it accumulates gradients", "it keeps gradients"],
)
def test_it_is_not_offered_where_a_gradient_is_needed_whole(twin):
    """The steps would not be the same, or the gradient stays alive."""
    assert _way_of(_recorded(twin())) is None


def test_it_is_not_offered_for_an_optimizer_that_reads_all_gradients_together():
    """LBFGS takes one direction for all parameters."""
    training = _Training(_adam)
    optimizer = torch.optim.LBFGS(training.model.parameters(), lr=1e-3, max_iter=1)
    x = torch.randn(8, 128)

    def closure():
        optimizer.zero_grad()
        loss = functional.mse_loss(training.model(x), x)
        loss.backward()
        return loss

    optimizer.step(closure)
    with memwatch.profile(holders=False) as prof:
        optimizer.step(closure)
    assert _way_of(prof) is None


@pytest.mark.parametrize("drops", [False, True])
def test_it_is_not_offered_where_a_backward_passes_through_a_model_of_another_optimizer(drops):
    """In a GAN the generator's backward makes gradients of the discriminator that no step may use."""
    generator, discriminator = nn.Linear(128, 128), nn.Linear(128, 128)
    first, second = _adam(generator.parameters()), _adam(discriminator.parameters())
    x = torch.randn(8, 128)

    def step():
        second.zero_grad()
        discriminator(generator(x).detach()).square().mean().backward()
        second.step()
        if drops:
            second.zero_grad()
        first.zero_grad()
        discriminator(generator(x)).square().mean().backward()
        first.step()

    step()
    with memwatch.profile(holders=False) as prof:
        step()
        step()
    assert _way_of(prof) is None


def test_a_changed_program_is_freed_like_any_other():
    """The garbage collector does not look into the hooks of a parameter, so these hold weak references."""
    way = _way_of(_recorded(_Training(_adam)))
    changed = _Training(_adam)
    run_lines(way.lines, training=changed)
    changed.step()
    weight = weakref.ref(changed.model[1][0].weight)
    del changed
    gc.collect()
    assert weight() is None


def test_it_is_not_offered_for_two_optimizers_of_one_model():
    """After the first of them has updated a parameter, the second would find no gradient."""
    training = _Training(_adam)
    before = training.optimizer
    with memwatch.profile(holders=False) as prof:
        training.step()
        training.step()
        training.optimizer = _adam(training.model.parameters())
        training.step()
        training.step()
    assert before is not training.optimizer
    assert _way_of(prof) is None


def test_its_lines_leave_frozen_parameters_alone():
    """An optimizer may have parameters that need no gradient, as a momentum encoder has."""

    def frozen():
        training = _Training(_adam)
        training.model[2][0].requires_grad_(requires_grad=False)
        return training

    way = _way_of(_recorded(frozen()))
    changed = frozen()
    run_lines(way.lines, training=changed)
    assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.01)


def _of_two_changes(training):
    found = [way for way in _recorded(training).ways.itertuples() if way.kind == "fused + step_in_backward"]
    return found[0] if found else None


def test_with_a_fused_kernel_the_step_in_the_backward_makes_no_temporaries():
    """Each of the two changes leaves what the other one frees."""

    def wide():
        training = _Training(_adam)
        training.model.append(nn.Linear(128, 1_024))
        training.model.append(nn.Linear(1_024, 128))
        training.optimizer = _adam(training.model.parameters())
        training.scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, gamma=0.5)
        return training

    way = _of_two_changes(wide())
    assert way.basis == "estimated"
    assert "rounds" in way.decision
    assert "accumulation" in way.decision
    changed = wide()
    run_lines(way.lines, training=changed)
    assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.01)
    del changed
    plain, changed = wide(), wide()
    run_lines(way.lines, training=changed)
    plain.step()
    changed.step()
    for one, other in zip(plain.model.parameters(), changed.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_fused_kernel_is_not_added_to_a_step_that_makes_no_temporaries():
    """SGD updates a parameter in place."""
    assert _of_two_changes(_Training(_sgd)) is None


@pytest.mark.parametrize("calls_step", [True, False])
def test_a_program_with_the_pasted_lines_gets_no_lines_that_go_past_them(calls_step):
    """The copies that step in the backward are no optimizers of the program, and a new optimizer has no hooks."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(2)))
    opt = _adam(model.parameters())
    one = copy.copy(opt)
    one.state, one.param_groups = {}, []
    for parameter in model.parameters():  # as the lines were once: their variables stay in the program
        hook = partial(_step_now, one=copy.copy(one), all_of_it=weakref.ref(opt))
        parameter.register_post_accumulate_grad_hook(hook)

    def train():
        for _ in range(2):
            model(torch.randn(8, 256)).square().mean().backward()
            if calls_step:
                opt.step()

    with memwatch.profile(holders=False) as prof:
        train()
    assert set(prof.capture.meta["expressions"]["optimizers"]) == {"opt" if calls_step else ""}
    assert not prof.ways["kind"].str.contains("step_in_backward|adafactor|sgd").any()
    assert "keywords" not in "".join(prof.ways["lines"])


def _step_now(parameter, one, all_of_it):
    one.state = all_of_it().state
    one.param_groups = [{**all_of_it().param_groups[0], "params": [parameter]}]
    one.step()
    one.state, one.param_groups = {}, []
    parameter.grad = None


@pytest.mark.parametrize("kind", ["foreach", "fused", "step_in_backward", "sgd", "adafactor"])
def test_the_lines_leave_only_names_that_say_what_they_do(kind):
    """A program may have variables such as `group` and `state`, which loops at the same level would change."""
    optimizer = _adam(nn.Linear(4, 4).parameters())
    names = run_lines(LINES[kind].format(optimizer="optimizer"), optimizer=optimizer).keys() - {"optimizer"}
    assert names <= {"without_foreach", "use_fused", "step_in_backward", "SGD", "Adafactor"}
