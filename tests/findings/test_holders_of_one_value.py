"""A variable or a key has one value at a time: inferences that give it more are contradictory, and are dropped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch

STEPS = 24
ROWS = 512


class Probe:
    """Keeps the norms of a weight's gradient, and compares each one with the one before."""

    def __init__(self):
        self.newest, self.store, self.number = None, {}, 0

    def attach(self, weight):
        previous = self.newest

        def compare(grad):
            if previous is not None:
                self.number += int((previous < grad.abs()).sum())
            self.newest = grad.abs()

        weight.register_hook(compare)

    def attach_by_key(self, weight):
        previous = self.store.get("norm")

        def compare(grad):
            if previous is not None:
                self.number += int((previous < grad.abs()).sum())
            self.store["norm"] = grad.abs()

        weight.register_hook(compare)

    def remember(self, weight):
        if self.number == 0:
            weight.register_hook(self.add)
        self.number += 1

    def add(self, grad):
        self.store[self.number] = grad.abs()


class Trainer:
    def __init__(self, way):
        self.probe, self.way = Probe(), way
        self.model = nn.Linear(ROWS, ROWS)

    def step(self):
        getattr(self.probe, self.way)(self.model.weight)
        self.model(torch.randn(16, ROWS)).square().mean().backward()
        self.model.weight.grad = None


def held(way):
    """Return how many gradients are alive at the peak, by the words of their holder."""
    torch.manual_seed(0)
    trainer = Trainer(way)
    with memwatch.profile() as prof:
        for _ in range(STEPS):
            trainer.step()
    peak = prof.at_peak
    rows = peak[peak["op_name"].str.contains("abs")]
    assert len(rows) >= STEPS - 2
    return rows["holder"].str.replace(r" \(inferred.*", "", regex=True).value_counts().to_dict()


@pytest.mark.parametrize(("way", "place"), [("attach", "probe.newest"), ("attach_by_key", "probe.store")])
def test_what_hooks_keep_is_not_in_the_attribute_that_has_the_newest(way, place):
    found = held(way)
    in_place = sum(count for words, count in found.items() if place in words or "`self.newest`" in words)
    in_closures = sum(count for words, count in found.items() if "closure cell `previous`" in words)
    assert in_place <= 2, found
    assert in_closures >= STEPS // 2, found


def test_a_dictionary_that_grows_has_all_its_values():
    found = held("remember")
    assert sum(count for words, count in found.items() if ".store" in words) >= STEPS - 2, found
