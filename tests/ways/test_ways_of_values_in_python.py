"""A loss may depend on values that the program reads with `tolist()` or `numpy()`, which call no op."""

from __future__ import annotations

import pytest
import torch
from recorded_steps import record_steps
from torch import nn
from torch.nn import functional

import memwatch
from memwatch.record.reads_in_python import reads_in_python

pytestmark = pytest.mark.words

BATCH, WIDE = 64, 64
INPUTS, TARGETS = torch.randn(BATCH, WIDE), torch.randn(BATCH, WIDE)
CLASSES = torch.randint(0, WIDE, (BATCH,))


def chain():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU()) for _ in range(5)))


def decision(prof):
    found = prof.ways[prof.ways["kind"] == "micro_batches"]
    assert len(found), prof.notes
    return found.iloc[0]["decision"]


def divided_by_a_list(model):
    count = sum(CLASSES.tolist())
    return (model(INPUTS) - TARGETS).square().mean() / count


def scaled_by_an_array(model):
    results = model(INPUTS)
    return functional.mse_loss(results, TARGETS) * float(TARGETS.numpy().std())


def weighted_by_counts(model):
    results = model(INPUTS)
    counts = torch.tensor([1.0 + CLASSES.tolist().count(each) for each in range(WIDE)])
    return ((results - TARGETS).square() * counts).mean()


def clean(model):
    return functional.mse_loss(model(INPUTS), TARGETS)


@pytest.mark.parametrize("loss_of", [divided_by_a_list, scaled_by_an_array, weighted_by_counts, clean])
def test_a_step_that_reads_values_in_python_needs_a_decision(loss_of):
    model = chain()
    prof = record_steps(lambda: loss_of(model).backward())
    is_named = "values in Python" in decision(prof)
    assert is_named == (loss_of is not clean)


def logged(model, losses):
    """Read the loss after the backward."""
    loss = functional.mse_loss(model(INPUTS), TARGETS)
    loss.backward()
    losses.append(loss.detach().numpy())


def test_a_log_after_the_backward_needs_no_decision():
    model, losses = chain(), []
    assert "values in Python" not in decision(record_steps(lambda: logged(model, losses)))


def train_with_a_number_from_before(steps):
    model = chain()
    divisor = max(CLASSES.tolist())
    for _ in range(steps):
        model.zero_grad()
        loss = functional.mse_loss(model(INPUTS), TARGETS) / divisor
        loss.backward()


def train_with_a_number_of_each_batch(steps):
    model = chain()
    for _ in range(steps):
        model.zero_grad()
        divisor = max(CLASSES.tolist())
        loss = functional.mse_loss(model(INPUTS), TARGETS) / divisor
        loss.backward()


@pytest.mark.parametrize("train", [train_with_a_number_from_before, train_with_a_number_of_each_batch])
def test_values_that_the_program_reads_before_its_loop_need_no_decision(train):
    train(1)
    with memwatch.profile(holders=False) as prof:
        train(3)
    assert ("values in Python" in decision(prof)) == (train is train_with_a_number_of_each_batch)


def test_code_without_lines_and_with_objects_as_constants_is_read():
    """Compilers of Python code may make such functions, and no code of the program may run while they are read."""

    class Strict:
        def __eq__(self, other):
            raise AssertionError("compared")

        __hash__ = object.__hash__

    def reads_in_a_loop(batches):
        for batch in batches:
            batch.tolist()
        return 1.5

    code = reads_in_a_loop.__code__
    assert [read[2] for read in reads_in_python([code])] == ["tolist"]
    constants = tuple(Strict() if each == 1.5 else each for each in code.co_consts)
    generated = code.replace(co_linetable=b"", co_consts=constants)
    assert [read[2] for read in reads_in_python([generated])] == ["tolist"]
