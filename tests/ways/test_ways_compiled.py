"""A model that is compiled as a whole: its modules are never called, so no checkpoint is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch


def recorded(wrap):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3)))
    called = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(2):
            called(torch.randn(512, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return prof


def compiled(model):
    return torch.compile(model, backend="eager")


def with_compiled_blocks(model):
    return nn.Sequential(*(torch.compile(block, backend="eager") for block in model))


def about_ways(prof):
    return [text for kind, text in prof.notes if kind == "ways"]


def test_a_note_says_that_compiled_code_hides_the_blocks():
    prof = recorded(compiled)
    assert not prof.ways["kind"].str.contains("checkpoint").any()
    assert len(about_ways(prof)) == 1


@pytest.mark.words
def test_the_note_names_the_run_that_would_show_checkpoints():
    assert "without torch.compile" in about_ways(recorded(compiled))[0]


@pytest.mark.parametrize("wrap", [lambda model: model, with_compiled_blocks])
def test_a_model_whose_blocks_are_called_gets_no_such_note(wrap):
    assert not about_ways(recorded(wrap))
