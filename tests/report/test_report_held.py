"""The headline names the variable that keeps much of the peak across iterations, though the program needs it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch
from memwatch.report.facts import headline
from memwatch.sizes import format_bytes

_STEPS, _ROWS, _CLASSES = 6, 256, 512


def _evaluate(outputs):
    return torch.cat(outputs).argmax(1).float().mean().item()


def _trained(*, reads):
    """Keep the logits of each step; read them after the last step if `reads`, and else only their mean."""
    model = nn.Linear(64, _CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        outputs = []
        for _ in range(_STEPS):
            logits = model(torch.randn(_ROWS, 64))
            optimizer.zero_grad()
            logits.logsumexp(1).mean().backward()
            optimizer.step()
            outputs.append(logits.detach() if reads else logits.mean().item())
            del logits
        if reads:
            _evaluate(outputs)
    return prof


@pytest.mark.words
def test_the_headline_names_a_list_of_outputs_that_an_evaluation_reads():
    told = headline(_trained(reads=True))
    nbytes = format_bytes(_STEPS * _ROWS * _CLASSES * 4)
    assert "`outputs`" in told
    assert f"keeps {nbytes} (" in told
    assert f"in {_STEPS} storages, across iterations." in told


@pytest.mark.words
def test_the_headline_names_no_variable_that_keeps_numbers():
    assert "across iterations" not in headline(_trained(reads=False))


@pytest.mark.words
def test_the_headline_does_not_repeat_the_holder_of_a_finding():
    """A list that nothing reads again is a finding, which names it."""
    model, kept = nn.Linear(64, _CLASSES), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(_STEPS):
            logits = model(torch.randn(_ROWS, 64))
            optimizer.zero_grad()
            logits.logsumexp(1).mean().backward()
            optimizer.step()
            kept.append(logits.detach())
            del logits
        kept.clear()
    assert any("kept" in finding.holder for finding in prof.findings)
    assert headline(prof).count("`kept`") <= 1
