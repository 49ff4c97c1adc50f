"""A split of the batch that would train differently is refused with a reason, or needs a decision."""

from __future__ import annotations

import importlib

import pytest
import torch
from recorded_steps import record_steps
from torch import nn
from torch.nn import functional
from ways import make_program, profile_two_steps

import memwatch
from memwatch.analysis.ways.independence import Obstacle
from memwatch.words.ways import split_refused

_TARGETS = torch.randn(256, 96)


def _notes_about_the_split(prof):
    return [text for kind, text in prof.notes if kind == "ways" and "no split of the batch" in text]


def _decisions(prof):
    return {way.decision for way in prof.ways.itertuples() if way.kind == "micro_batches"}


def _trained_with(loss_of):
    """Record the training of a model with a loss of the model and its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(96, 96), nn.GELU()) for _ in range(5)))
    inputs = torch.randn(256, 96)

    def step():
        model.zero_grad()
        loss_of(model, inputs).backward()

    return record_steps(step)


def _centred_after_the_model(model, x):
    return (model(x) - (_TARGETS - _TARGETS.mean(0))).square().mean()


def _centred_at_once(model, x):
    return (model(x) - _TARGETS + _TARGETS.mean(0)).abs().mean()


def _standardized_after_the_model(model, x):
    results = model(x)
    return functional.mse_loss(results, (_TARGETS - _TARGETS.mean()) / _TARGETS.std())


@pytest.mark.parametrize(
    "loss_of", [_centred_after_the_model, _centred_at_once, _standardized_after_the_model]
)
def test_targets_that_the_loss_standardizes_by_the_whole_batch_forbid_a_split(loss_of):
    prof = _trained_with(loss_of)
    assert "micro_batches" not in {*prof.ways["kind"]}
    (note,) = _notes_about_the_split(prof)
    assert "computed from the data of the whole batch" in note


def _standardized_before_the_model(model, x):
    targets = (_TARGETS - _TARGETS.mean()) / _TARGETS.std()
    return functional.mse_loss(model(x), targets)


def _standardized_inputs(model, x):
    return functional.mse_loss(model((x - x.mean(0)) / x.std(0)), _TARGETS)


@pytest.mark.parametrize("loss_of", [_standardized_before_the_model, _standardized_inputs])
def test_data_that_the_step_standardizes_before_the_model_need_a_decision(loss_of):
    """The recording does not show whether the step does so before it calls the code of the way."""
    (decision,) = _decisions(_trained_with(loss_of))
    assert "`mean` at test_ways_split_refused.py" in decision.replace("tests/ways/", "")
    assert "reads the whole batch" in decision


_FORMER = {"loss": torch.zeros(())}


def _standardized_after_a_log(model, x):
    """Reads the former loss before the next forward, as a loop without an optimizer does."""
    _FORMER["loss"].item()
    targets = (_TARGETS - _TARGETS.mean()) / _TARGETS.std()
    loss = functional.mse_loss(model(x), targets)
    _FORMER["loss"] = loss.detach()
    return loss


def test_a_log_of_the_former_loss_begins_no_forward():
    (decision,) = _decisions(_trained_with(_standardized_after_a_log))
    assert "reads the whole batch" in decision


def _added_to_the_loss(model, x):
    return functional.mse_loss(model(x), _TARGETS) + _TARGETS.mean()


def _added_to_each_sample(model, x):
    return ((model(x) - _TARGETS).square().mean(1) - _TARGETS.mean()).mean()


def _centred_for_each_sample(model, x):
    return functional.mse_loss(model(x), _TARGETS - _TARGETS.mean(1, keepdim=True))


@pytest.mark.parametrize("loss_of", [_added_to_the_loss, _added_to_each_sample, _centred_for_each_sample])
def test_a_value_of_the_batch_that_no_gradient_depends_on_is_no_obstacle(loss_of):
    prof = _trained_with(loss_of)
    (decision,) = _decisions(prof)
    assert "reads the whole batch" not in decision
    assert not _notes_about_the_split(prof)


_CLASSES = torch.arange(256) % 96


def _focal(model, x):
    losses = functional.cross_entropy(model(x), _CLASSES, reduction="none")
    return ((1 - (-losses).exp()).square() * losses).mean()


def _weighted_for_each_sample(model, x):
    weights = torch.linspace(0.5, 1.5, 96)
    losses = functional.cross_entropy(model(x), _CLASSES, weight=weights, reduction="none")
    return losses.exp().mean()


@pytest.mark.parametrize("loss_of", [_focal, _weighted_for_each_sample])
def test_a_cross_entropy_with_a_loss_for_each_sample_is_no_mean(loss_of):
    prof = _trained_with(loss_of)
    assert _decisions(prof)
    assert not _notes_about_the_split(prof)


def _weighted_by_class(model, x):
    results = model(x)
    weights = 1 / torch.bincount(_CLASSES, minlength=96)
    return (functional.cross_entropy(results, _CLASSES, reduction="none") * weights[_CLASSES]).mean()


def _weighted_by_class_before_the_model(model, x):
    weights = 1 / torch.bincount(_CLASSES, minlength=96)[_CLASSES]
    return (functional.cross_entropy(model(x), _CLASSES, reduction="none") * weights).mean()


def test_counts_of_the_classes_belong_to_the_whole_batch():
    assert not _decisions(_trained_with(_weighted_by_class))
    (decision,) = _decisions(_trained_with(_weighted_by_class_before_the_model))
    assert "`bincount` at" in decision


def test_an_empty_batch_is_not_split():
    model = nn.Linear(96, 96)
    with memwatch.profile(holders=False) as prof:
        model(torch.empty(0, 96)).sum().backward()
    assert not _decisions(prof)
    assert not _notes_about_the_split(prof)


def _penalized(model, x):
    x = x.clone().requires_grad_()
    results = model(x)
    (gradient,) = torch.autograd.grad(results.sum(), x, create_graph=True)
    return gradient.square().sum(1).mean() + results.mean()


def _contrastive(model, x):
    z = model(x)
    return functional.cross_entropy(z @ z.T, torch.arange(len(z)))


def _masked(model, x):
    return model(x)[_TARGETS > 0].mean()


def _summed(model, x):
    return model(x).square().sum()


@pytest.mark.parametrize(
    ("loss_of", "reason"),
    [
        (_contrastive, "`mm` at"),
        (_masked, "a mask or an index picks"),
        (_summed, "a sum over the batch that nothing divides"),
        (_penalized, "`create_graph=True`"),
    ],
)
def test_a_note_gives_the_reason_why_the_batch_is_not_split(loss_of, reason):
    (note,) = _notes_about_the_split(_trained_with(loss_of))
    assert reason in note


@pytest.mark.parametrize(("name", "reason"), [("gnn", "first dimension"), ("gan", "has several")])
def test_a_note_says_which_programs_the_code_does_not_fit(name, reason):
    (note,) = _notes_about_the_split(profile_two_steps(make_program(name)))
    assert reason in note


@pytest.mark.parametrize("owner", ["library", "program"])
def test_a_backward_that_a_library_calls_gets_a_note_and_no_split(owner, tmp_path, monkeypatch):
    """The code of the change replaces the call of backward. The user cannot edit a library, but the twin."""
    folder = tmp_path / ("site-packages" if owner == "library" else "mine")
    folder.mkdir()
    (folder / f"trainer_of_{owner}.py").write_text("def run_backward(loss):\n    loss.backward()\n")
    monkeypatch.syspath_prepend(folder)
    run_backward = importlib.import_module(f"trainer_of_{owner}").run_backward
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(96, 96), nn.GELU()) for _ in range(5)))
    inputs = torch.randn(256, 96)

    def step():
        model.zero_grad()
        run_backward(model(inputs).square().mean())

    prof = record_steps(step)
    assert ("micro_batches" in {*prof.ways["kind"]}) == (owner == "program")
    notes = _notes_about_the_split(prof)
    assert len(notes) == (owner == "library")
    assert all("a library calls" in note for note in notes)


def test_no_note_says_that_a_batch_is_not_split_where_this_would_lower_nothing():
    """The weights are most of the peak."""
    model = nn.Linear(2_048, 2_048)
    with memwatch.profile(holders=False) as prof:
        z = model(torch.randn(4, 2_048))
        (z @ z.T).square().mean().backward()
    assert not _notes_about_the_split(prof)


@pytest.mark.parametrize("obstacle", Obstacle)
def test_each_reason_has_a_sentence(obstacle):
    """A reason without words would end a summary with a KeyError."""
    assert split_refused(obstacle.value, "`mm` at train.py:1").startswith(
        "no split of the batch is offered, because "
    )
