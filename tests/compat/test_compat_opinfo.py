"""PyTorch's own op database, a sample of it: forward and backward with and without memwatch, bit for bit."""

from __future__ import annotations

import re

import pytest
from compat_formulas import changed_nodes
from compat_opinfo import compare, entries, name_of, programs

from memwatch.analysis.mode_formulas import BACKWARD

_STEP = 5
_SAMPLES = 2
_GROUPS = 8
_SAMPLED = entries()[::_STEP]


@pytest.mark.parametrize("group", range(_GROUPS))
def test_ops_are_bit_equal_under_the_key(group):
    """Every fifth entry (`make opinfo` runs all): equal under the key, or it does not repeat plainly either."""
    different = {}
    for op in _SAMPLED[group::_GROUPS]:
        verdict = compare(op, "key", _SAMPLES)
        if verdict not in ("equal", "not repeatable", "no sample"):
            different[name_of(op)] = verdict
    assert different == {}


@pytest.mark.parametrize("group", range(_GROUPS))
def test_ops_are_bit_equal_under_the_mode(group):
    """Likewise under the mode, but for ops whose formula a mode changes; those are listed in the data."""
    different = {}
    for op in _SAMPLED[group::_GROUPS]:
        verdict = compare(op, "mode", _SAMPLES)
        if verdict == "different" and not listed(op.name):
            different[name_of(op)] = verdict
    assert different == {}


def listed(name: str) -> bool:
    """Tell whether the data of the observer effect names an op."""
    return any(packet.removeprefix("aten.").lstrip("_") == name.replace(".", "_") for packet in BACKWARD)


_LISTED = [op for op in entries() if listed(op.name) and not op.variant_test_name]


@pytest.mark.parametrize("op", _LISTED, ids=name_of)
def test_listed_ops_change_under_a_mode(op):
    """The data lists no op whose backward is the same."""
    changed = set().union(*(changed_nodes(program) for program in programs(op, 8)))
    wanted = re.sub(r"[^a-z]", "", op.name.lower())
    assert any(node.lower().startswith((wanted, "linalg" + wanted)) for node in changed)
