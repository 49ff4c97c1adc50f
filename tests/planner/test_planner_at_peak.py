"""at_peak(): the buffers that keep a plan above a budget that no bound excludes."""

from __future__ import annotations

import numpy as np

from memwatch.planner import Effect, Graph, OpSpec, Schedule
from memwatch.planner.peak import at_peak
from memwatch.planner.request import op_text


def graph() -> Graph:
    """Return a program whose op "large" runs while a kept, a random and another buffer wait."""
    ops = [
        OpSpec("give", ["x"], {"result": 300}),
        OpSpec("draw", ["x"], {"mask": 200}, effect=Effect.RNG, recomputable=False),
        OpSpec("wait", ["x"], {"later": 100}),
        OpSpec("large", ["x"], {"big": 1000}, workspace_bytes=24),
        OpSpec("use", ["big", "mask", "later"], {"end": 4}),
    ]
    return Graph.build(ops, ["result", "end"], external_nbytes={"x": 5000})


def test_each_byte_at_the_peak_counts_once():
    """The parts are the op's own bytes, kept bytes, results of ops that run once, and the rest.

    Inputs are not a part.
    """
    program = graph()
    found = at_peak(program, Schedule.from_order(np.arange(program.num_ops)), op_text)
    assert found is not None
    assert (found.op, found.own_bytes) == ("op 'large'", 1024)
    assert (found.kept_bytes, found.once_bytes, found.other_bytes) == (300, 200, 100)


def test_what_is_small_has_no_word():
    """A share below one in a hundred is left out of the sentence, not out of the figures."""
    ops = [
        OpSpec("give", [], {"result": 1}),
        OpSpec("draw", [], {"mask": 200}, effect=Effect.RNG, recomputable=False),
        OpSpec("large", [], {"big": 1000}, workspace_bytes=24),
        OpSpec("shrink", ["big"], {"small": 4}),
        OpSpec("use", ["small", "mask"], {"end": 4}),
    ]
    program = Graph.build(ops, ["result", "end"], external_nbytes={})
    found = at_peak(program, Schedule.from_order(np.arange(program.num_ops)), op_text)
    assert found is not None
    assert (found.own_bytes, found.kept_bytes, found.once_bytes, found.other_bytes) == (1024, 1, 200, 0)
    assert (
        str(found) == "at its peak op 'large' needs 1.00 KiB while 200 B were made by ops that run only once"
    )
