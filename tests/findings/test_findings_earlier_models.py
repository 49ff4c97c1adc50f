"""Models that earlier passes trained and that nothing uses again: found, with the peak without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch

PASSES = 6


def trained(width=256):
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)
    )
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        loss = model(torch.ones(32, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), model, optimizer


def keeps_all():
    trials = [trained() for _ in range(PASSES)]
    return min(score for score, *_ in trials)


def keeps_all_of_them_up_to_a_large_forward(keeps=True):
    """The peak is in the last forward, where the gradients of earlier models are idle too."""
    trials = [trained()[: None if keeps else 1] for _ in range(PASSES)]
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    model(torch.ones(2_000, 64)).sum()
    return trials


def keeps_all_after_another_model():
    """Other calls make this model, which nothing uses again either."""
    first = nn.Linear(64, 64)
    first(torch.ones(8, 64)).sum().backward()
    return first, [trained() for _ in range(PASSES)]


def keeps_scores():
    return min(trained()[0] for _ in range(PASSES))


def keeps_an_ensemble():
    models = [trained()[1] for _ in range(PASSES)]
    with torch.no_grad():
        return torch.stack([model(torch.ones(32, 64)) for model in models]).mean()


def keeps_the_best():
    best = None
    for _ in range(PASSES):
        score, model, _ = trained()
        best = min(best or (score, model), (score, model), key=lambda one: one[0])
    return best


def trains_heads_of_one_model():
    """Heads that are never used lie between the layers of a model."""
    layers = nn.ModuleList(nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)]) for _ in range(PASSES))
    x = torch.ones(32, 64)
    for layer, _ in layers:
        x = layer(x)
    x.sum().backward()
    return layers


def learns_one_task_after_the_other(drops=False):
    """One optimizer trains a body and the head of each task, and keeps the heads and their state."""
    body = nn.Linear(64, 256)
    optimizer = torch.optim.Adam(body.parameters())
    for _ in range(PASSES):
        head = nn.Linear(256, 256)
        optimizer.add_param_group({"params": list(head.parameters())})
        for _ in range(2):
            loss = head(body(torch.ones(32, 64))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if drops:
            for parameter in optimizer.param_groups.pop()["params"]:
                del optimizer.state[parameter]


def drops_the_heads():
    learns_one_task_after_the_other(drops=True)


def recorded(program):
    with memwatch.profile(holders=False) as prof:
        program()
    return prof


def of_models(prof):
    return [finding for finding in prof.findings if finding.kind == "models"]


def test_models_of_earlier_passes_are_found_with_the_peak_without_them():
    """The last model is not among them. The line is the one that makes the models."""
    prof = recorded(keeps_all)
    (found,) = of_models(prof)
    assert found.site == f"{__file__}:{trained.__code__.co_firstlineno + 2}"
    assert str(PASSES - 1) in found.holder
    mended_bytes = recorded(keeps_scores).peak_bytes
    assert abs(found.predicted_peak_bytes - mended_bytes) < 0.05 * mended_bytes


def test_the_line_is_that_of_the_models_and_not_of_one_before_them():
    (found,) = of_models(recorded(keeps_all_after_another_model))
    assert found.site == f"{__file__}:{trained.__code__.co_firstlineno + 2}"


def test_gradients_of_earlier_models_count_once():
    prof = recorded(keeps_all_of_them_up_to_a_large_forward)
    (found,) = of_models(prof)
    rows = [row for finding in prof.findings for row in finding.storages]
    assert len(set(rows)) == len(rows)
    mended = recorded(lambda: keeps_all_of_them_up_to_a_large_forward(keeps=False))
    assert found.predicted_peak_bytes >= 0.95 * mended.peak_bytes


def test_heads_of_earlier_tasks_are_found_though_the_body_is_still_used():
    (found,) = of_models(recorded(learns_one_task_after_the_other))
    mended_bytes = recorded(drops_the_heads).peak_bytes
    assert abs(found.predicted_peak_bytes - mended_bytes) < 0.05 * mended_bytes


@pytest.mark.parametrize(
    "program",
    [keeps_scores, keeps_an_ensemble, keeps_the_best, trains_heads_of_one_model, drops_the_heads],
)
def test_models_that_are_needed_or_gone_are_not_reported(program):
    assert of_models(recorded(program)) == []
