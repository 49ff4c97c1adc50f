"""Each rule that names a holder is needed: without it, the holders of a program are others."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from truth_checks import run

from memwatch.analysis.holders import rules

PROGRAMS = {
    "_running_op": "tied_weights",
    "_role": "mixture_of_experts",
    "_variable_of_graph": "codebook_with_moving_averages",
    "_saved_tensor": "tied_weights",
    "_recomputed": "checkpoint_that_selects",
    "_autocast_cache": "autocast_to_bfloat16",
    "_region_seen": "checkpoint_without_reentry",
    "_argument_instead_of_guess": "generator_of_windows",
    "_variable": "function_that_keeps_on_ctx",
    "_recomputing": "checkpoint_nested",
    "_region": "checkpoint_with_reentry, without samples",
    "_awaited_argument": "mixture_of_experts",
    "_awaited": "tied_weights",
    "_kernel": "weight_descended_by_hand",
    "_passed_on": "tied_weights",
    "_argument": "gradient_of_the_input",
    "_compiled_code": "compiled_with_aot_eager",
    "_stack_of_call": "forward_mode",
}
WITHOUT_SAMPLES = ", without samples"
"""A program under which the rule is asked only where no sample was taken in time."""
EVENTS = 40
"""How many instants of a program are compared, evenly spaced: an inference may count for one op alone."""


@pytest.fixture(scope="module")
def recorded():
    """Return a program's reading; each program runs once."""
    for name in ("algorithms", "autograd", "by_hand", "frameworks", "python", "recompute", "transforms"):
        importlib.import_module(f"patterns_{name}")
    known = {}

    def read(name):
        if name not in known:
            program, is_unsampled, _ = name.partition(WITHOUT_SAMPLES)
            prof = known[name] = run(program).prof
            if is_unsampled:
                tables = prof._tables.facts.capture.tables
                tables["holders"] = {column: values[:0] for column, values in tables["holders"].items()}
        return known[name]

    return read


def holders_of(prof):
    """Return the holders of everything that is alive, at many events."""
    tables = prof._tables
    every = tables.facts.allocations
    found = []
    for event in np.unique(np.linspace(0, len(tables.facts.curve.time_ns) - 1, EVENTS).astype(int)).tolist():
        is_alive = (every.birth_event <= event) & ((every.death_event == -1) | (every.death_event > event))
        found += tables._holders.describe(np.flatnonzero(is_alive).tolist(), event)
    return found


@pytest.mark.parametrize("rule", PROGRAMS)
def test_without_a_rule_other_holders_are_named(recorded, monkeypatch, rule):
    prof = recorded(PROGRAMS[rule])
    with_all = holders_of(prof)
    monkeypatch.setattr(rules, "RULES", tuple(each for each in rules.RULES if each.holder.__name__ != rule))
    assert holders_of(prof) != with_all


def test_every_rule_is_tested():
    assert [each.holder.__name__ for each in rules.RULES] == list(PROGRAMS)
    assert len({each.reason for each in rules.RULES}) == len(PROGRAMS)
