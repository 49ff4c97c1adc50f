"""Graphs that are still there when the block ends: kept for good in a list, or waiting for their backward."""

from __future__ import annotations

import os
import re

import pytest
import torch
from torch import nn

import memwatch
from memwatch.sizes import parse_bytes


def train(prof, iterations, *, validate, kept):
    """Train. After each iteration keep the loss of a second batch, whose backward never runs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with prof:
        for _ in range(iterations):
            model(torch.randn(512, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(validate(model, torch.randn(512, 64)))


def with_graph(model, batch):
    return model(batch).square().mean()


def without_graph(model, batch):
    with torch.no_grad():
        return model(batch).square().mean()


def test_graphs_that_a_list_keeps_are_told_with_the_forward_that_made_them():
    """The finding names the list and the forward's line. Its predicted peak equals the peak without the graphs."""
    kept, prof, mended = [], memwatch.profile(), memwatch.profile()
    train(prof, 5, validate=with_graph, kept=kept)
    (finding,) = prof.findings
    assert finding.kind == "graph"
    assert "`kept`" in finding.holder
    line = with_graph.__code__.co_firstlineno + 1
    assert re.search(
        rf"\(the forward is at \S*{re.escape(os.path.basename(__file__))}:{line}\)", finding.advice
    )
    kept.clear()
    train(mended, 5, validate=without_graph, kept=kept)
    assert finding.predicted_peak_bytes - prof.baseline_bytes == mended.peak_increase_bytes
    assert mended.findings == []


@pytest.mark.parametrize("saves_its_result", [True, False], ids=["relu", "linear"])
def test_a_stored_tensor_that_its_graph_saves_too_is_no_memory_that_detach_frees(saves_its_result):
    """The graph of a ReLU saves its result, which stays in the list without the graph. The advice then is a number."""

    def hidden(model, batch):
        found = model[0](batch)
        return found.relu() if saves_its_result else found.exp().mean(1)

    def number(model, batch):
        return hidden(model, batch).mean().item()

    kept, prof, mended = [], memwatch.profile(), memwatch.profile()
    train(prof, 5, validate=hidden, kept=kept)
    finding = next(each for each in prof.findings if each.kind == "graph")
    assert ("`.detach()` alone would leave" in finding.advice) == saves_its_result
    assert ("`.item()` or `.detach()`" in finding.advice) != saves_its_result
    if saves_its_result:  # samples may not find all entries of a list
        least_bytes = parse_bytes(re.search(r"have at least ([\d.]+ \w+)", finding.advice)[1])
        assert 0 < least_bytes <= sum(each.nbytes for each in kept)
    kept.clear()
    train(mended, 5, validate=number, kept=kept)
    measured = mended.peak_increase_bytes
    assert finding.predicted_peak_bytes - prof.baseline_bytes == pytest.approx(measured, rel=0.02)


def test_a_graph_that_may_still_run_is_no_finding():
    """A block that ends between a forward and its backward says nothing of it, nor of one from the iteration before."""
    kept, prof = [], memwatch.profile()
    train(prof, 2, validate=with_graph, kept=kept)
    assert [finding for finding in prof.findings if finding.kind == "graph"] == []


def train_and_evaluate(prof, *, gradients):
    """Train and evaluate twice. The variable `value` keeps the graph of an evaluation until the next one ends."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with prof:
        for _ in range(2):
            for _ in range(2):
                model(torch.randn(128, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            with torch.set_grad_enabled(gradients):
                value = sum(model(torch.randn(512, 64)).square().mean() for _ in range(3))
    return value


def test_an_evaluation_at_the_end_gets_no_backward_if_the_earlier_ones_got_none():
    """The finding counts its graph too. The predicted peak equals the peak of an evaluation under `no_grad`."""
    prof, mended = memwatch.profile(), memwatch.profile()
    train_and_evaluate(prof, gradients=True)
    train_and_evaluate(mended, gradients=False)
    (finding,) = [finding for finding in prof.findings if finding.kind == "graph"]
    assert finding.predicted_peak_bytes - prof.baseline_bytes == pytest.approx(
        mended.peak_increase_bytes, abs=64
    )
    assert not [finding for finding in mended.findings if finding.kind == "graph"]


@pytest.mark.parametrize("trains_first", [False, True])
def test_a_graph_at_the_end_may_still_run_if_an_earlier_one_of_its_calls_did(trains_first):
    """One pass of the same line goes without a backward, such as a step that the program skips."""
    torch.manual_seed(0)
    model, losses = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), []
    with memwatch.profile() as prof:
        for has_backward in (trains_first, not trains_first, None):
            samples = 2_048 if has_backward is None else 512  # the peak is at the end
            losses.append(model(torch.randn(samples, 64)).square().mean())
            if has_backward:
                losses[-1].backward()
            if has_backward is not None:
                losses.clear()
    graphs = [finding for finding in prof.findings if finding.kind == "graph"]
    assert graphs == []


def train_on_one_batch(prof, iterations, *, in_one_line, kept):
    """Train. Each iteration also keeps the loss of a second forward of its batch, from its line or another."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with prof:
        for _ in range(iterations):
            batch = torch.randn(512, 64)
            if in_one_line:
                loss, second = (with_graph(model, batch) for _ in range(2))
            else:
                loss = model(batch).square().mean()
                second = with_graph(model, batch)
            kept.append(second)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def test_a_second_forward_of_the_same_batch_can_run_without_a_graph():
    """The advice is `no_grad`: the loss has a forward of its own, which only reads the same batch."""
    kept, prof = [], memwatch.profile()
    train_on_one_batch(prof, 5, in_one_line=False, kept=kept)
    (finding,) = [finding for finding in prof.findings if finding.kind == "graph"]
    assert "run it under torch.no_grad()" in finding.advice


def test_no_grad_is_no_advice_for_the_forward_of_the_loss():
    """The line that makes the kept graph also makes the graph that trains the model."""
    kept, prof = [], memwatch.profile()
    train_on_one_batch(prof, 5, in_one_line=True, kept=kept)
    (finding,) = [finding for finding in prof.findings if finding.kind == "graph"]
    assert "run it under torch.no_grad()" not in finding.advice
    assert "keep only `.item()` or `.detach()` of the result" in finding.advice


def test_no_grad_is_advice_for_a_teacher_whose_detached_result_the_loss_reads():
    """The backward of the student reads the teacher's result, and runs none of the teacher's nodes."""

    def distill():
        torch.manual_seed(0)
        teacher, student = (
            nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(2)
        )
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(4):
            batch = torch.randn(256, 64)
            target = teacher(batch)
            optimizer.zero_grad()
            nn.functional.mse_loss(student(batch), target.detach()).backward()
            optimizer.step()

    with memwatch.profile() as prof:
        distill()
    (finding,) = [finding for finding in prof.findings if finding.kind == "graph"]
    assert "`target`" in finding.holder
    assert "run it under torch.no_grad()" in finding.advice


def _generate(prof, *, gradients):
    """Generate words with a cache of all states so far; the scores of the words are kept."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    head = nn.Linear(64, 1_000)
    with prof, torch.set_grad_enabled(gradients):
        caches, scores = [torch.zeros(64, 1, 64)] * len(layers), []
        x = torch.randn(64, 1, 64)
        for _ in range(20):
            former, caches = caches, []
            for layer, cache in zip(layers, former, strict=True):
                caches.append(torch.cat([cache, layer(x).tanh()], 1))
                x = caches[-1].mean(1, keepdim=True)
            scores.append(head(x).log_softmax(-1)[..., 0])
        result = torch.stack(scores)
    return result


def test_without_any_backward_no_grad_comes_first_and_gives_the_promised_peak():
    """`.detach()` of the scores frees the graph only when it has all been made."""
    prof, mended = memwatch.profile(), memwatch.profile()
    _generate(prof, gradients=True)
    _generate(mended, gradients=False)
    (finding,) = [finding for finding in prof.findings if finding.kind == "graph"]
    assert "; run it under torch.no_grad() if no backward needs this forward" in finding.advice
    assert finding.predicted_peak_bytes == pytest.approx(mended.peak_bytes, rel=0.05)
    assert not [finding for finding in mended.findings if finding.kind == "graph"]
