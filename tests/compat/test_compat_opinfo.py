"""PyTorch's own op database, a sample of it: forward and backward with and without memwatch, bit for bit."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
from compat_formulas import changed_nodes
from compat_opinfo import compare, entries, name_of, programs

from memwatch.analysis.observer import BACKWARD

_STEP = 8
_SAMPLES = 2
_GROUPS = 4
_WITHOUT_ENTRY = {
    "aten._ctc_loss",
    "aten.binary_cross_entropy",
    "aten.binary_cross_entropy_with_logits",
    "aten.index",
    "aten.linalg_matrix_exp",
    "aten.max",
    "aten.min",
}
"""Ops in the data of the observer effect that the database has under another name, or as variants only."""


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("group", range(_GROUPS))
def test_ops_are_bit_equal(group, intercept):
    """Every eighth entry (`make opinfo` runs all): equal, or, with the mode, as under an empty mode."""
    sampled = entries()[::_STEP]
    verdicts = {name_of(op): compare(op, intercept, _SAMPLES) for op in sampled[group::_GROUPS]}
    assert {name: verdict for name, verdict in verdicts.items() if verdict == "different"} == {}
    assert "equal" in verdicts.values()


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_ops_are_bit_equal_with_a_sample_after_every_op(intercept):
    """A few entries: `python reports/sampled_programs.py` runs all."""
    sampled = entries()[3 :: 4 * _STEP]
    verdicts = {name_of(op): compare(op, intercept, 1, sampled=True) for op in sampled}
    assert {name: verdict for name, verdict in verdicts.items() if verdict == "different"} == {}
    assert "equal" in verdicts.values()


@functools.cache
def entries_by_packet() -> dict[str, Any]:
    """Return the entries without a variant by the name under which the data would list them."""
    return {op.name.replace(".", "_"): op for op in entries() if not op.variant_test_name}


def entry_name(packet: str) -> str:
    """Return the name under which `entries_by_packet` has a listed op."""
    return packet.removeprefix("aten.").lstrip("_")


# The names come from our data: importing the database takes seconds, so collecting this file must not need it.
@pytest.mark.parametrize("packet", sorted(set(BACKWARD) - _WITHOUT_ENTRY))
def test_listed_ops_change_under_a_mode(packet):
    """The data lists no op whose backward is the same."""
    op = entries_by_packet()[entry_name(packet)]
    changed = set().union(*(changed_nodes(program) for program in programs(op, 6)))
    wanted = re.sub(r"[^a-z]", "", op.name.lower())
    assert any(node.lower().startswith((wanted, "linalg" + wanted)) for node in changed)


def test_no_listed_op_is_left_out():
    """If a listed op lacks a test of its own, the database lacks its name."""
    assert {packet for packet in BACKWARD if entry_name(packet) not in entries_by_packet()} == _WITHOUT_ENTRY
