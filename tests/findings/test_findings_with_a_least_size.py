"""A gate with a least size searches for holders only where a finding of this size is possible."""

from __future__ import annotations

import threading

import pytest
import torch

import memwatch

KIB = 1 << 10


def drag():
    kept = torch.ones(64, KIB)  # 256 KiB
    total = kept.sum()
    scratch = torch.ones(64, KIB) + total
    return float(scratch.sum())


def recorded(from_bytes):
    prof = memwatch.profile()
    prof.holders_from_bytes = from_bytes
    with prof:
        drag()
    return prof


def test_no_holder_is_searched_for_while_the_block_has_fewer_bytes():
    prof = recorded(16 << 20)
    assert prof.meta["holder_samples"] == 0
    assert prof.peak_bytes == recorded(0).peak_bytes


def test_the_findings_of_the_least_size_stay_the_same():
    every = recorded(0)
    prof = recorded(256 * KIB)
    assert 0 < prof.meta["holder_samples"] <= every.meta["holder_samples"]
    assert [(each.kind, each.holder, each.nbytes) for each in prof.findings] == [
        (each.kind, each.holder, each.nbytes) for each in every.findings
    ]
    assert any(each.nbytes == 256 * KIB for each in prof.findings)


@pytest.mark.parametrize("uses_it", [False, True])
def test_memory_of_another_thread_hides_no_finding_of_the_least_size(uses_it):
    """The other thread makes most of the peak. It counts only if the block uses it, and is no finding itself."""
    prof = memwatch.profile()
    every = memwatch.profile()
    for each, from_bytes in ((every, 0), (prof, 256 * KIB)):
        each.holders_from_bytes = from_bytes
        made = []
        with each:
            thread = threading.Thread(target=lambda to=made: to.append(torch.ones(KIB, KIB)))
            thread.start()
            thread.join()
            if uses_it:
                made[0].sum()
            drag()
    assert [(each.kind, each.holder, each.nbytes) for each in prof.findings] == [
        (each.kind, each.holder, each.nbytes) for each in every.findings
    ]
    assert any(each.nbytes == 256 * KIB for each in prof.findings)


@pytest.mark.parametrize("has_older_gradients", [False, True])
def test_no_finding_exceeds_the_bound(has_older_gradients):
    """Gradients from before the block are part of the bound."""
    model = torch.nn.Linear(KIB, KIB)
    x = torch.randn(8, KIB)
    if has_older_gradients:
        model(x).sum().backward()
    with memwatch.profile() as prof:
        for _ in range(2):
            loss = model(x).sum()
            model.zero_grad()
            loss.backward()
    most_bytes = prof.most_finding_bytes
    assert all(each.nbytes <= most_bytes for each in [*prof.findings, *prof.small_findings])
    older_bytes = 4 * KIB * (KIB + 1) if has_older_gradients else 0
    assert most_bytes == prof.peak_increase_bytes + older_bytes
