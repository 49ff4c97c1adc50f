"""Micro-batches for programs that keep outputs of a step: their bytes stay, whatever the number of parts is."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional
from ways import run_lines

import memwatch

_BATCH, _WIDTH, _CLASSES, _STEPS = 512, 64, 256, 4
_LARGEST_ERROR_RATIO = 0.02


class _Training:
    """Trains for some steps. `keep` gets the logits and targets of each step, and returns what the program keeps."""

    def __init__(self, keep, *, finish=None, epochs=1, depth=2):
        self.keep, self.finish, self.epochs, self.depth = keep, finish, epochs, depth

    def peak(self, lines=""):
        return self.recorded(lines).peak_bytes

    def recorded(self, lines=""):
        gc.collect()
        torch.manual_seed(0)
        layers = [nn.Linear(_WIDTH, _WIDTH), nn.Tanh()] * self.depth
        model = nn.Sequential(*layers, nn.Linear(_WIDTH, _CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        in_parts = run_lines(lines).get("backward_in_parts")
        with memwatch.profile(holders=False) as prof:
            for _ in range(self.epochs):
                self._train(model, optimizer, in_parts)
        return prof

    def _train(self, model, optimizer, in_parts):
        kept = []

        def loss_of(x, targets):
            logits = model(x)
            kept.append(self.keep(logits, targets))
            return functional.cross_entropy(logits, targets)

        for _ in range(_STEPS):
            x, targets = torch.randn(_BATCH, _WIDTH), torch.randint(0, _CLASSES, (_BATCH,))
            optimizer.zero_grad()
            if in_parts:
                in_parts(loss_of, x, targets)
            else:
                logits = model(x)
                functional.cross_entropy(logits, targets).backward()
            optimizer.step()
            if not in_parts:
                kept.append(self.keep(logits, targets))
                del logits
        if self.finish is not None:
            self.finish(model, kept)


def _split(prof):
    return prof.ways[prof.ways["kind"] == "micro_batches"]


def _logits(logits, targets):
    return logits


def _nothing(logits, targets):
    return None


def _join(model, kept):
    torch.cat(kept).argmax(1).float().mean().item()


def _validate(model, kept, rows=4 * _BATCH):
    with torch.no_grad():
        model(torch.randn(rows, _WIDTH)).softmax(1).mean().item()


def _validate_with_a_batch(model, kept):
    _validate(model, kept, rows=_BATCH)


def _validate_with_an_odd_batch(model, kept):
    _validate(model, kept, rows=_BATCH - 7)


def _validate_at_the_peak(model, kept):
    """Validate with a batch of the training's size. The joined outputs take more bytes than a step."""
    with torch.no_grad():
        logits = model(torch.randn(_BATCH, _WIDTH))
        torch.cat([logits.softmax(1)] * 8).mean().item()


def _generate(model, kept):
    """Call the model on its own results, as generation does."""
    with torch.no_grad():
        x = torch.randn(_BATCH, _WIDTH)
        for _ in range(3):
            x = model(x)[:, :_WIDTH]


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("finish", [_join, _validate, _validate_at_the_peak])
def test_a_peak_after_the_steps_gets_no_split(finish, epochs):
    """What an evaluation joins or computes stays as large as before."""
    training = _Training(_logits if finish is _join else _nothing, finish=finish, epochs=epochs)
    assert _split(training.recorded()).empty


@pytest.mark.parametrize(
    "training",
    [
        _Training(_logits, depth=8),
        _Training(_logits, depth=24, finish=_join),
        _Training(_nothing, depth=8),
        _Training(_nothing, depth=8, finish=_validate_with_a_batch, epochs=3),
        _Training(_nothing, depth=8, finish=_validate_with_an_odd_batch, epochs=3),
        _Training(_nothing, depth=8, finish=_generate, epochs=3),
    ],
    ids=["outputs", "outputs joined", "nothing", "validation", "odd validation", "generation"],
)
def test_the_peak_with_a_split_is_that_of_the_changed_program(training):
    """The function of the change keeps for each part what the step kept."""
    found = _split(training.recorded())
    assert len(found)
    for way in found.itertuples():
        assert training.peak(way.lines) == pytest.approx(way.peak_bytes, rel=_LARGEST_ERROR_RATIO)


@pytest.mark.parametrize(
    "training",
    [
        _Training(lambda logits, targets: logits.argmax(1), depth=8),
        _Training(lambda logits, targets: logits.detach().mean(), depth=8),
        _Training(lambda logits, targets: (logits.argmax(1) == targets).sum().item(), depth=8),
        _Training(_nothing, depth=8, finish=lambda model, _: _validate(model, _, rows=_BATCH)),
    ],
    ids=["predictions", "means", "numbers", "validation"],
)
def test_a_metric_that_moves_into_the_function_takes_no_more_than_predicted(training):
    """What it computes of each step does not keep the outputs, so a split is offered."""
    found = _split(training.recorded())
    assert len(found)
    for way in found.itertuples():
        assert training.peak(way.lines) <= way.peak_bytes * (1 + _LARGEST_ERROR_RATIO)


class _Evaluating:
    """Evaluates the model on the very batch of each step, before the step, and joins the outputs of some calls."""

    def __init__(self, calls):
        self.calls = calls

    def peak(self, lines=""):
        return self.recorded(lines).peak_bytes

    def recorded(self, lines=""):
        gc.collect()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(_WIDTH, _CLASSES), nn.Tanh(), nn.Linear(_CLASSES, _WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        in_parts = run_lines(lines).get("backward_in_parts")

        def loss_of(x, targets):
            return functional.mse_loss(model(x), targets)

        with memwatch.profile(holders=False) as prof:
            for _ in range(_STEPS):
                x, targets = torch.randn(_BATCH, _WIDTH), torch.randn(_BATCH, _WIDTH)
                with torch.no_grad():
                    outputs = torch.cat([model(x) for _ in range(self.calls)])
                    assert outputs.square().mean().item() > 0
                del outputs
                optimizer.zero_grad()
                if in_parts:
                    in_parts(loss_of, x, targets)
                else:
                    loss_of(x, targets).backward()
                optimizer.step()
        return prof


@pytest.mark.parametrize("calls", [3, 8])
def test_an_evaluation_on_the_batch_of_the_step_stays_whole(calls):
    """It reads the same tensor as the training, but no result of the training, and the training reads none of it."""
    training = _Evaluating(calls)
    ways = training.recorded().ways
    ways = ways[ways["kind"] == "micro_batches"]
    assert ways.empty == (calls == 8)  # then the evaluation makes the peak
    for way in ways.itertuples():
        assert training.peak(way.lines) == pytest.approx(way.peak_bytes, rel=_LARGEST_ERROR_RATIO)
