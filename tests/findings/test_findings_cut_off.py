"""A recording that an exception or a limit cuts off claims nothing about memory that was alive then."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import memwatch

KEPT = 1 << 18
"""Bytes of the tensors that the programs keep."""


class StopError(Exception):
    """Ends a program in the middle of its work."""


def model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1024))


def train(iterations, *, stop_in=None):
    """Train a model whose result a variable holds through the backward; may stop in the forward of an iteration."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    targets = torch.zeros(64, dtype=torch.long)
    for iteration in range(iterations):
        logits = net(torch.ones(64, 64))
        if iteration == stop_in:
            raise StopError
        loss = cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def recorded(program, *args, limit_bytes=None, **options):
    """Return the profile of a program, which may raise."""
    prof = memwatch.profile(limit_bytes=limit_bytes)
    with contextlib.suppress(StopError, memwatch.MemoryLimitError), prof:
        program(*args, **options)
    return prof


def kinds(prof):
    return {str(finding.kind) for finding in prof.findings}


def limit_in_first_backward():
    """Return a limit that the first backward of `train` passes: no forward takes so much."""
    ops = recorded(train, 1)
    timeline = ops.timeline.merge(ops.ops["phase"], left_on="op", right_index=True)
    return int(timeline["live_bytes"][timeline["phase"] == "forward"].max()) + 1


def test_memory_that_was_alive_at_the_limit_is_not_said_to_be_useless():
    whole, cut = recorded(train, 1), recorded(train, 1, limit_bytes=limit_in_first_backward())
    assert cut.ops["phase"].iloc[-1] == "backward"
    assert "output" in kinds(whole)
    assert cut.findings == []
    assert whole.cut_off is None
    assert cut.cut_off == ("MemoryLimitError", 0)
    assert (whole.at_peak["phase"] == "drag").any()
    assert set(cut.at_peak["phase"]) <= {"use", "lag", ""}
    assert not cut.storages.loc[cut.at_peak.index, ["drag_ns", "void_ns"]].any(axis=None)


def test_findings_about_memory_of_earlier_iterations_stay():
    whole, cut = recorded(train, 4), recorded(train, 4, stop_in=3)
    assert cut.cut_off == ("StopError", 3)
    (finding,) = cut.findings
    (same,) = whole.findings
    assert finding.kind == same.kind == "output"
    assert len(finding.storages) == 3
    assert len(same.storages) == 4
    assert finding.nbytes == same.nbytes


def use_twice(*, stop_in=None):
    """Use a tensor at the start and at the end of each iteration; may stop between them, at the highest peak."""
    for iteration in range(5):
        kept = torch.ones(KEPT // 4)
        kept.sum()
        if iteration == stop_in:
            torch.ones(KEPT)
            raise StopError
        torch.ones(KEPT // 8)
        kept.sum()
        torch.ones(KEPT // 2)


def test_memory_that_each_iteration_uses_again_is_not_judged_before_that_use():
    """Earlier iterations show that the next line would have used it."""
    (finding,) = recorded(use_twice).findings
    assert len(finding.storages) == 5
    cut = recorded(use_twice, stop_in=4)
    assert cut.findings == []
    assert cut.small_findings == []


def hold_unused(*, stop):
    unused, used = torch.ones(KEPT // 4), torch.ones(KEPT // 4)
    for _ in range(4):
        (used + 1).sum()
    if stop:
        raise StopError
    assert unused.numel() == used.numel()


@pytest.mark.parametrize("stop", [True, False])
def test_a_tensor_without_a_use_may_be_for_the_part_that_did_not_run(stop):
    prof = recorded(hold_unused, stop=stop)
    assert ("void" in kinds(prof)) == (not stop)
    assert (prof.cut_off is not None) == stop


def keep_losses(*, stop):
    net, kept = model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for iteration in range(6):
        result = net(torch.ones(64, 64))
        kept.append(result.detach() + 1)
        if stop and iteration == 5:
            raise StopError
        result.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept[-1].sum()


@pytest.mark.parametrize("stop", [True, False])
def test_growth_over_whole_iterations_stays(stop):
    found = {finding.kind: finding for finding in recorded(keep_losses, stop=stop).findings}
    assert found["growth"].growth_bytes == KEPT
    assert "kept" in found["growth"].holder


def forward_with_list(*, stop):
    weights, kept = [torch.ones(64, 64) for _ in range(8)], []
    state = torch.ones(1024, 64)
    for weight in weights:
        state = state @ weight
        kept.append(state)
    if stop:
        raise StopError
    torch.cat(kept).sum()


def test_results_of_layers_that_wait_are_no_growth():
    assert recorded(forward_with_list, stop=True).findings == []


def graphs_that_wait(*, stop):
    net, losses = model(), []
    for _ in range(6):
        losses.append(net(torch.ones(64, 64)).square().sum())
    if stop:
        raise StopError
    sum(losses).backward()


@pytest.mark.parametrize("stop", [True, False])
def test_graphs_may_wait_for_a_backward_that_did_not_run(stop):
    assert not {"graph", "retained"} & kinds(recorded(graphs_that_wait, stop=stop))


def leave_with(code):
    hold_unused(stop=False)
    raise SystemExit(code)


def test_a_program_that_exits_with_success_is_whole():
    prof = memwatch.profile()
    with pytest.raises(SystemExit), prof:
        leave_with(0)
    assert prof.cut_off is None
    assert "void" in kinds(prof)


def test_a_file_keeps_how_the_recording_ended(tmp_path):
    with contextlib.suppress(StopError), memwatch.profile(tmp_path / "run.memwatch"):
        train(4, stop_in=2)
    assert memwatch.load(tmp_path / "run.memwatch").cut_off == ("StopError", 2)


def keep_unread(*, stop):
    net, kept = model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for iteration in range(8):
        result = net(torch.ones(64, 64))
        kept.append(result.detach().clone())
        if stop and iteration == 7:
            raise StopError
        result.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("stop", [True, False])
def test_a_growing_list_that_nothing_reads_stays(stop):
    (finding,) = (each for each in recorded(keep_unread, stop=stop).findings if each.growth_bytes)
    assert finding.kind == "void"
    assert finding.growth_bytes == KEPT
    assert finding.nbytes == (7 if stop else 8) * KEPT


def step(net, optimizer):
    net(torch.ones(64, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def stop_after(iterations, prof=None):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(iterations):
        step(net, optimizer)
        if prof is not None:
            prof.step()
    raise StopError


@pytest.mark.parametrize("iterations", [1, 6])
def test_an_iteration_that_ended_before_the_error_counts(iterations):
    assert recorded(stop_after, iterations).cut_off == ("StopError", iterations)


class StoppingNet(nn.Module):
    """A net that raises in its forward, between two layers, in one of its calls."""

    def __init__(self, stop_in):
        super().__init__()
        self.first, self.second, self.calls, self.stop_in = nn.Linear(64, 64), nn.Linear(64, 64), 0, stop_in

    def forward(self, batch):
        self.calls += 1
        hidden = self.first(batch)
        if self.calls == self.stop_in:
            raise StopError
        return self.second(hidden)


def infer(calls, *, stop_in=None, stop_after=None):
    """Run a net; stop in a call, or in an iteration after its call, or after all calls."""
    net = StoppingNet(stop_in)
    with torch.no_grad():
        for number in range(1, calls + 1):
            result = net(torch.ones(64, 64))
            if number == stop_after:
                torch.ones(1) @ torch.ones(2)  # an op that fails
            result.square_().sum()
    raise StopError


def test_calls_that_ended_before_the_error_count_although_no_call_follows():
    assert recorded(infer, 5).cut_off == ("StopError", 5)
    assert recorded(infer, 2).cut_off == ("StopError", 2)
    in_call = recorded(infer, 5, stop_in=3)
    assert in_call.cut_off == ("StopError", 2)


def test_a_call_whose_iteration_failed_after_it_does_not_count():
    prof = memwatch.profile()
    with pytest.raises(RuntimeError), prof:
        infer(5, stop_after=3)
    assert prof.cut_off == ("RuntimeError", 2)


def test_several_calls_of_the_first_forward_are_no_iterations():
    """The critic of a GAN is called for real and generated samples before the first backward."""

    def train_critic():
        critic = model()
        loss = critic(torch.ones(64, 64)).sum() - critic(torch.zeros(64, 64)).sum()
        if loss is not None:
            raise StopError

    assert recorded(train_critic).cut_off == ("StopError", None)


def test_steps_that_were_not_recorded_count():
    prof = memwatch.profile(schedule=memwatch.schedule(wait=3, active=1))
    with contextlib.suppress(StopError), prof:
        stop_after(11, prof)
    assert prof.cut_off == ("StopError", 11)


def train_on_longer_batch(*, stop):
    """Hold the result through the backward, as `train` does. The last batch is larger, and its backward may stop."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for iteration in range(4):
        count = 72 if iteration == 3 else 64
        logits = net(torch.ones(count, 64))
        loss = cross_entropy(logits, torch.zeros(count, dtype=torch.long))
        if stop and iteration == 3:
            net[0].weight.register_hook(fail)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def fail(_):
    raise StopError


@pytest.mark.parametrize("stop", [True, False])
def test_results_of_another_size_show_when_a_result_is_used_last(stop):
    (finding,) = (
        each for each in recorded(train_on_longer_batch, stop=stop).findings if each.kind == "output"
    )
    assert finding.nbytes == 72 * 1024 * 4
