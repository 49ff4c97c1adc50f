"""A variable that keeps a graph which no backward needs is named. Tensors that wait for backward count as saved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch

ROWS = 1024
RELU_BYTES = ROWS * 512 * 4


def model():
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))


def keep_the_output(net, prof):
    with prof:
        for _ in range(4):
            out = net(torch.randn(ROWS, 64))
    return out


def keep_the_loss(net, prof):
    with prof:
        for _ in range(4):
            loss = net(torch.randn(ROWS, 64)).square().mean()
    return loss


def keep_the_graph_of_the_last_step(net, prof):
    with prof:
        for _ in range(4):
            loss = net(torch.randn(ROWS, 64)).square().mean()
            loss.backward(retain_graph=True)
    return loss


def train(net, prof):
    with prof:
        for _ in range(4):
            loss = net(torch.randn(ROWS, 64)).square().mean()
            loss.backward()
    return loss


def train_once(net, prof):
    """The backward comes after the block."""
    with prof:
        loss = net(torch.randn(ROWS, 64)).square().mean()
        torch.zeros(ROWS, 1024)
    loss.backward()


def holders_of_relu(program):
    torch.manual_seed(0)
    prof = memwatch.profile()
    program(model(), prof)
    peak = prof.at_peak
    return peak.holder[(peak.op_name == "aten.relu.default") & (peak.nbytes == RELU_BYTES)].tolist()


@pytest.mark.parametrize(
    ("program", "variable"),
    [(keep_the_output, "out"), (keep_the_loss, "loss"), (keep_the_graph_of_the_last_step, "loss")],
)
def test_the_variable_that_keeps_a_graph_without_a_backward_is_named(program, variable):
    found = holders_of_relu(program)
    keeper, saved = f"the autograd graph of `{variable}`, local variable", "; saved by relu in `1`"
    assert any(holder.startswith(keeper) and saved in holder for holder in found), found


@pytest.mark.parametrize("program", [train, train_once])
def test_what_a_backward_still_reads_is_told_as_saved(program):
    assert set(holders_of_relu(program)) == {"saved by relu in `1`"}


def skip_some_backwards(net, prof):
    """The forward of each step has one line; in most steps no backward follows, and the losses are kept."""
    losses = []
    with prof:
        for step in range(6):
            loss = net(torch.randn(ROWS, 64)).square().mean()
            losses.append(loss)
            if step == 0:
                loss.backward()
        losses.clear()


def validate_after_training(net, prof):
    """The forward of the validation has a line of its own."""
    losses = []
    with prof:
        net(torch.randn(ROWS, 64)).square().mean().backward()
        for _ in range(5):
            losses.append(net(torch.randn(ROWS, 64)).square().mean())
        del losses


@pytest.mark.parametrize(
    ("program", "has_no_grad"), [(skip_some_backwards, False), (validate_after_training, True)]
)
def test_no_grad_is_advised_only_where_no_backward_needs_the_forward(program, has_no_grad):
    torch.manual_seed(0)
    prof = memwatch.profile()
    program(model(), prof)
    (finding,) = (each for each in prof.findings if each.kind == "graph")
    assert ("torch.no_grad()" in str(finding)) is has_no_grad, str(finding)
    assert ".detach()" in str(finding)


class Sampler:
    """Keeps the steps of every sample, and returns the last one."""

    def __init__(self):
        self.trajectories = []

    def sample(self, net):
        x, frames = torch.randn(ROWS, 64), []
        for _ in range(3):
            x = x - 0.1 * net(x)
            frames.append(x)
        self.trajectories.append(frames)
        return x.clamp(-1, 1)


def sample_while_training(prof, *, grad):
    net, sampler = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)), Sampler()
    with prof:
        for _ in range(6):
            net(torch.randn(ROWS, 64)).square().mean().backward()
            with torch.set_grad_enabled(grad):
                image = sampler.sample(net)
        torch.zeros(8 * ROWS, 512)  # the peak
    return image


@pytest.mark.parametrize("grad", [True, False])
def test_the_list_that_keeps_most_graphs_is_named(grad):
    """`image` has the graph of the last sample only. The last searches before the peak ran inside `sample`."""
    prof = memwatch.profile()
    sample_while_training(prof, grad=grad)
    names = [
        finding.holder.split("`")[1].split(".")[-1] for finding in prof.findings if finding.kind == "graph"
    ]
    assert names == ["trajectories"] * grad
