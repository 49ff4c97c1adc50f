"""memwatch reads the objects of a program without calling any of their methods."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import pytest
import torch
from recording_classes import CALLS, METACLASS_METHODS, SPECIAL_METHODS, metaclass, note, recording
from recording_shapes import SHAPES, module_class, tensor_class
from sampled_ops import sample_every_op
from torch import nn

import memwatch

WAYS = ["key-native", "mode-native", "key-python", "mode-python"]
ELEMENTS = 20_000
KEPT: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _drop_what_was_made():
    yield
    KEPT.clear()
    sys.modules.pop("recorded_module", None)
    gc.collect()


def make_all(sizes: dict[str, int]) -> dict[str, Any]:
    return {name: SHAPES[name](torch.ones(size)) for name, size in sizes.items()}


def program(sizes: dict[str, int]) -> list[Any]:
    held = make_all(sizes)
    total = torch.zeros(10)
    for _ in range(3):
        total = total + 1
    return [held, total]


@pytest.mark.parametrize("intercept", WAYS, indirect=True)
def test_a_sample_calls_no_method_of_the_objects_that_it_meets(intercept, one_thread):
    sizes = {name: ELEMENTS + place for place, name in enumerate(SHAPES)}
    with recording() as calls, sample_every_op() as samples, memwatch.profile(intercept=intercept) as prof:
        result = program(sizes)
    assert samples[0] > len(SHAPES)
    assert not calls, calls
    assert not [text for kind, text in prof.notes if kind == "recorder"]
    rows = prof.storages.set_index("nbytes")
    evidence = {name: rows.at[4 * size, "holder_evidence"] for name, size in sizes.items()}
    assert set(evidence.values()) == {"seen"}, evidence
    del result
