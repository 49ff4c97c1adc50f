"""The code for several optimizers: it names each by an expression that is valid before the loop that steps them."""

from __future__ import annotations

import gc

import torch
from torch import nn
from ways import run_lines

import memwatch

_WIDTH = 256


def _record(model, optimizers, x, *, lines="", steps=2):
    """Record steps of a program that keeps its optimizers in a dictionary or a list, and steps them in a loop."""
    run_lines(lines, model=model, optimizers=optimizers)
    gc.collect()  # tensors of earlier tests
    with memwatch.profile(holders=False) as prof:
        for _ in range(steps):
            model(x).square().mean().backward()
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
    return prof


def _model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))


def _optimizers(model):
    return {
        "low": torch.optim.AdamW(model[:2].parameters(), foreach=True),
        "high": torch.optim.AdamW(model[2:].parameters(), foreach=True),
    }


def _way(prof, kind):
    (found,) = [way for way in prof.ways.itertuples() if way.kind == kind]
    return found


def test_the_code_does_not_use_the_variable_of_the_loop_over_the_optimizers():
    """Before the loop that variable has no value, or that of another loop."""
    model, x = _model(), torch.randn(4, _WIDTH)
    before = _record(model, _optimizers(model), x)
    way = _way(before, "foreach")
    assert way.lines.endswith("without_foreach(optimizers['low'])\n\nwithout_foreach(optimizers['high'])\n")
    assert way.lines.count("def ") == 1
    model = _model()
    changed = _record(model, _optimizers(model), x, lines=way.lines)
    assert changed.peak_bytes < before.peak_bytes


def test_a_variable_that_only_a_loop_binds_is_better_than_no_name():
    model, x = _model(), torch.randn(4, _WIDTH)
    with memwatch.profile(holders=False) as prof:
        for optimizer in (torch.optim.AdamW(model.parameters(), foreach=True),):
            for _ in range(2):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    assert _way(prof, "foreach").lines.endswith("without_foreach(optimizer)\n")


def test_another_optimizer_is_offered_in_place_of_one_alone():
    """The steps of two optimizers that follow each other look like one step."""
    model, x = _model(), torch.randn(4, _WIDTH)
    assert not {"sgd", "adafactor"} & {*_record(model, _optimizers(model), x).ways["kind"]}
    model = _model()
    alone = _record(model, {"only": torch.optim.AdamW(model.parameters(), foreach=True)}, x)
    assert {"sgd", "adafactor"} <= {*alone.ways["kind"]}


def test_an_optimizer_of_sparse_gradients_is_not_replaced_by_one_that_refuses_them():
    """Adafactor does not take them. With dense gradients, the same table gets the advice."""

    def kinds(is_sparse, make_optimizer):
        torch.manual_seed(0)
        table = nn.Embedding(4_000, 32, sparse=is_sparse)
        optimizers = {"only": make_optimizer(table.parameters())}
        return {*_record(table, optimizers, torch.randint(0, 4_000, (64,))).ways["kind"]}

    def sgd_with_momentum(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    assert not {"sgd", "adafactor"} & kinds(True, torch.optim.SparseAdam)
    assert "adafactor" not in kinds(True, sgd_with_momentum)
    assert {"sgd", "adafactor"} <= kinds(False, torch.optim.Adam)
