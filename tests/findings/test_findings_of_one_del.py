"""One `del` before the backward: the findings about it promise the peak of the mended program."""

from __future__ import annotations

import gc
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import memwatch

_ROWS, _WORDS = 256, 400


class _Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(64, width)
        self.rest = nn.Sequential(*(nn.Linear(width, width) for _ in range(12)))
        self.head = nn.Linear(width, _WORDS)

    def forward(self, x):
        return {"logits": self.head(self.rest(self.first(x)))}


def _distilled(*, dropped):
    gc.collect()
    torch.manual_seed(0)
    teacher, student = _Net(256), _Net(128)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(_ROWS, 64)
            t = teacher(x)
            s = student(x)
            loss = functional.kl_div(
                s["logits"].log_softmax(-1), t["logits"].softmax(-1), reduction="batchmean"
            )
            if dropped:
                del t, s
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return prof


def _trained(*, dropped):
    gc.collect()
    torch.manual_seed(0)
    model = _Net(128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = torch.randint(0, _WORDS, (_ROWS,))
    with memwatch.profile() as prof:
        for _ in range(3):
            out = model(torch.randn(_ROWS, 64))
            out["noise"] = torch.randn(_ROWS, 128)
            loss = functional.cross_entropy(out["logits"], target) + out["noise"].sum()
            if dropped:
                del out
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return prof


def test_results_that_matter_only_together_are_found():
    prof = _distilled(dropped=False)
    least_bytes = 0.05 * prof.peak_increase_bytes
    found = [each for each in prof.findings if each.kind == "output"]
    assert sorted(each.holder[:3] for each in found) == ["`s`", "`t`"]
    assert all(prof.peak_bytes - each.predicted_peak_bytes < least_bytes for each in found)
    measured_bytes = _distilled(dropped=True).peak_bytes
    for each in found:
        assert each.together_peak_bytes == pytest.approx(measured_bytes, rel=0.001)


def test_results_that_the_program_dropped_are_no_findings():
    assert not _distilled(dropped=True).findings


def test_the_peak_without_a_variable_counts_all_that_it_holds():
    """The noise is no result of the model, and too small for a finding of its own."""
    (found,) = _trained(dropped=False).findings
    assert found.kind == "output"
    assert "with all findings fixed" not in found.advice
    measured_bytes = _trained(dropped=True).peak_bytes
    assert found.predicted_peak_bytes == found.together_peak_bytes == pytest.approx(measured_bytes, rel=0.001)


def _summed(*, dropped):
    gc.collect()
    with memwatch.profile() as prof:
        parts = [torch.ones(256, 1_024) for _ in range(8)]
        total = sum(parts)
        if dropped:
            del parts
        total = [total + number for number in range(8)]
        assert len(total) == 8
    return prof


def test_a_list_is_freed_after_the_last_use_of_all_its_items():
    """While the sum is computed, the list keeps the items that are in the sum already."""
    prof, mended = _summed(dropped=False), _summed(dropped=True)
    (found,) = prof.findings
    assert found.holder.startswith("`parts`")
    assert found.predicted_peak_bytes == mended.peak_bytes
    assert not mended.findings


def test_two_lines_that_bind_one_name_get_a_del_each():
    """A GAN makes `fake` once for each of its two losses."""
    gc.collect()
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU()]
    generator = nn.Sequential(*hidden, nn.Linear(1024, 784), nn.Tanh())
    discriminator = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    optimizers = [torch.optim.Adam(each.parameters()) for each in (generator, discriminator)]
    with memwatch.profile() as prof:
        for _ in range(3):
            real = torch.randn(1024, 784)
            fake = generator(torch.randn(1024, 64))
            of_discriminator = discriminator(real).square().mean() - discriminator(fake).mean()
            optimizers[1].zero_grad()
            of_discriminator.backward()
            optimizers[1].step()
            fake = generator(torch.randn(1024, 64))
            of_generator = discriminator(fake).square().mean()
            optimizers[0].zero_grad()
            of_generator.backward()
            optimizers[0].step()
    (finding,) = [finding for finding in prof.findings if "`fake`" in finding.holder]
    start = test_two_lines_that_bind_one_name_get_a_del_each.__code__.co_firstlineno
    lines = [start + number for number in (14, 19)]
    assert re.findall(r"one_del\.py:(\d+)", finding.advice) == [*map(str, lines)]
