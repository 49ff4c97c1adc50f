"""An output that an object keeps: the advice is about its attribute. An output in a variable: `del` frees it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import memwatch

CLASSES = 4000


class Trainer:
    def __init__(self):
        self.model, self.shown = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, CLASSES)), None

    def keep_the_last(self):
        scores = self.model(torch.randn(64, 16))
        loss = functional.cross_entropy(scores, torch.randint(0, CLASSES, (64,)))
        loss.backward()
        self.shown = scores

    def keep_in_a_variable(self):
        scores = self.model(torch.randn(64, 16))
        loss = functional.cross_entropy(scores, torch.randint(0, CLASSES, (64,)))
        loss.backward()


def finding_of(way):
    torch.manual_seed(0)
    trainer = Trainer()
    with memwatch.profile() as prof:
        for _ in range(4):
            getattr(trainer, way)()
        if trainer.shown is not None:
            trainer.shown.argmax().item()  # the last output is needed
    outputs = {each.holder.partition(",")[0]: each for each in prof.findings if each.kind == "output"}
    return outputs.get("`self.shown`") or outputs["`scores`"]


def test_the_advice_for_an_output_in_an_attribute_is_about_the_attribute():
    finding = finding_of("keep_the_last")
    assert finding.holder.startswith("`self.shown`")
    assert "set it to None before backward()" in finding.advice
    assert "`del`" not in finding.advice


def test_the_advice_for_an_output_in_a_variable_is_to_delete_it():
    assert "`del` the output before backward()" in finding_of("keep_in_a_variable").advice
