"""Exceptions that a program keeps: their tracebacks keep the calls that raised, and the graphs of these calls."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import memwatch


class NotFiniteError(Exception):
    pass


def mean_square(a, b):
    return (a - b).square().mean()


class Guard:
    def __init__(self, keep):
        self.failures, self.keep = [], keep
        self.model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, number):
        x, y = torch.randn(256, 128), torch.randn(256, 128)
        loss = mean_square(self.model(x), y)
        if number % 2:
            loss = loss * float("nan")
        if torch.isnan(loss):
            raise NotFiniteError(f"not finite in step {number}")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def run(self):
        for number in range(16):
            try:
                self.step(number)
            except NotFiniteError as error:
                self.failures.append(self.keep(error))


def findings(keep):
    guard = Guard(keep)
    gc.collect()
    with memwatch.profile() as prof:
        guard.run()
    return prof.findings


def itself(error):
    return error


def test_kept_exceptions_are_one_finding():
    """The graphs and the batches go with the exceptions, so that two findings would be one change."""
    (finding,) = findings(itself)
    assert finding.kind == "graph"
    assert "attribute .failures" in finding.path
    assert finding.nbytes > 4 * 2**20


@pytest.mark.words
def test_kept_exceptions_get_the_advice_for_exceptions():
    (finding,) = findings(itself)
    assert "exception's text" in finding.advice
    assert "`loss`" in finding.holder


def test_the_text_of_an_exception_keeps_nothing():
    assert findings(str) == []
