"""The code for several optimizers: it names each by an expression that is valid before the loop that steps them."""

from __future__ import annotations

import contextlib
import gc

import pytest
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
    return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(8)))


def _optimizers(model):
    return {
        "low": torch.optim.AdamW(model[:4].parameters(), foreach=True),
        "high": torch.optim.AdamW(model[4:].parameters(), foreach=True),
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


class _StopError(Exception):
    """Ends a program in the middle of its work."""


_COUNTING = {"micro_batches", "sgd", "adafactor", "step_in_backward", "sparse_gradients"}
"""Changes for a program with one optimizer."""


def _kinds_of_gan(point, *, critic_steps=1, iterations=3):
    """Return the kinds of ways for the training of a GAN that stops at a point."""
    gc.collect()
    generator, discriminator = _model(), _model()
    of_generator = torch.optim.AdamW(generator.parameters(), foreach=True)
    of_discriminator = torch.optim.AdamW(discriminator.parameters(), foreach=True)
    real, noise = torch.randn(64, _WIDTH), torch.randn(64, _WIDTH)

    def pass_by(name):
        if name == point:
            raise _StopError

    prof = memwatch.profile()
    with contextlib.suppress(_StopError), prof:
        for _ in range(iterations):
            for _ in range(critic_steps):
                with torch.no_grad():
                    fake = generator(noise)
                loss = discriminator(fake).square().mean() - discriminator(real).square().mean()
                loss.backward()
                pass_by("backward of discriminator")
                of_discriminator.step()
                of_discriminator.zero_grad()
            pass_by("step of discriminator")
            loss = discriminator(generator(noise)).square().mean()
            pass_by("forward of generator")
            loss.backward()
            of_generator.step()
            of_generator.zero_grad()
    return {kind for kinds in prof.ways["kind"] for kind in kinds.split(" + ")}


@pytest.mark.parametrize(
    "point", ["backward of discriminator", "step of discriminator", "forward of generator"]
)
def test_a_model_without_gradients_so_far_may_have_an_optimizer_of_its_own(point):
    assert _COUNTING.isdisjoint(_kinds_of_gan(point))
    assert _COUNTING.isdisjoint(_kinds_of_gan(point, critic_steps=5))


@pytest.mark.parametrize("point", ["first backward", "second backward"])
def test_a_recording_of_one_model_that_was_cut_off_gets_the_changes_for_one_optimizer(point):
    """A part that does not train, as under adapters, is no other model."""
    model, x = _model(), torch.randn(512, _WIDTH)
    model[1].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=True)
    prof = memwatch.profile()
    with contextlib.suppress(_StopError), prof:
        if point == "second backward":
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model(x).square().mean().backward()
        raise _StopError
    kinds = {*prof.ways["kind"]}
    assert "micro_batches" in kinds
    assert ("adafactor" in kinds) == (point == "second backward")
