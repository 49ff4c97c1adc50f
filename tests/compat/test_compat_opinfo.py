"""PyTorch's own op database, a sample of it: forward and backward with and without memwatch, bit for bit."""

from __future__ import annotations

import re

import pytest
from compat_formulas import changed_nodes
from compat_opinfo import compare, entries, name_of, programs

from memwatch.analysis.mode_formulas import BACKWARD

_STEP = 8
_SAMPLES = 2
_GROUPS = 4
_SAMPLED = entries()[::_STEP]


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("group", range(_GROUPS))
def test_ops_are_bit_equal(group, intercept):
    """Every eighth entry (`make opinfo` runs all): equal, or, with the mode, as under an empty mode."""
    verdicts = {name_of(op): compare(op, intercept, _SAMPLES) for op in _SAMPLED[group::_GROUPS]}
    assert {name: verdict for name, verdict in verdicts.items() if verdict == "different"} == {}
    assert "equal" in verdicts.values()


def listed(name: str) -> bool:
    """Tell whether the data of the observer effect names an op."""
    return any(packet.removeprefix("aten.").lstrip("_") == name.replace(".", "_") for packet in BACKWARD)


_LISTED = [op for op in entries() if listed(op.name) and not op.variant_test_name]


@pytest.mark.parametrize("op", _LISTED, ids=name_of)
def test_listed_ops_change_under_a_mode(op):
    """The data lists no op whose backward is the same."""
    changed = set().union(*(changed_nodes(program) for program in programs(op, 6)))
    wanted = re.sub(r"[^a-z]", "", op.name.lower())
    assert any(node.lower().startswith((wanted, "linalg" + wanted)) for node in changed)
