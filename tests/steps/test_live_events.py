"""The allocator's events that may be left out, tested with random streams of allocations and frees."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from memwatch.record.kept_rows import LiveEvents

CPU = 0


def random_stream(chance, count):
    """Return rows of allocations and frees with different times; some frees are missing."""
    rows, live = [], {}
    for time_ns in range(count):
        if live and chance.random() < 0.48:
            address = chance.choice(list(live))
            rows.append((time_ns, address, -live.pop(address), CPU, -1, 0, 0))
        else:
            address, nbytes = chance.randrange(1, 40), chance.randrange(1, 100)
            live[address] = nbytes  # an address that is live yet: its free was missed
            rows.append((time_ns, address, nbytes, CPU, -1, 0, 0))
    return np.array(rows, dtype=np.int64)


def live_after(rows, baseline):
    """Return the live bytes after each row, block by block."""
    live, found = {}, []
    for _, address, nbytes, *_ in rows.tolist():
        live.pop(address, None)
        if nbytes > 0:
            live[address] = nbytes
        found.append(baseline + sum(live.values()))
    return np.array(found, dtype=np.int64)


@pytest.mark.parametrize("seed", range(12))
def test_the_curve_is_exact_outside_of_what_is_left_out_and_at_the_highest_moment(seed):
    """This holds for any stretches and flushes. The waiting rows never outnumber the live blocks."""
    chance = random.Random(seed)
    rows, baseline = random_stream(chance, 400), 1000
    truth = live_after(rows, baseline)
    bounds = np.array(sorted(chance.sample(range(1, 400), 6)), dtype=np.int64)
    left_out = np.arange(7) % 2 == seed % 2
    stretch = np.searchsorted(bounds, rows[:, 0], side="right")
    events, kept, measured = LiveEvents(), [], []
    events.enter(CPU, baseline, reports_frees=False)
    cuts = [0, *sorted(chance.sample(range(1, 400), 9)), 400]
    for start, after in itertools.pairwise(cuts):
        heard = events.measure(rows[start:after])
        measured.append(heard.live_bytes)
        inside = (bounds > start) & (bounds < after)
        first = int(np.searchsorted(bounds, start, side="right"))
        kept.append(events.sift(heard, bounds[inside], left_out[first : first + 1 + int(inside.sum())]))
    kept.append(events.rest())
    kept = np.concatenate(kept)
    assert np.array_equal(np.concatenate(measured), truth)
    assert (np.diff(kept[:, 0]) > 0).all()
    curve = live_after(kept, baseline)
    position = np.searchsorted(kept[:, 0], rows[:, 0], side="right") - 1
    told = np.where(position < 0, baseline, curve[np.maximum(position, 0)])
    recorded = ~left_out[stretch]
    assert np.array_equal(told[recorded], truth[recorded])
    assert curve.max(initial=baseline) == max(truth.max(), baseline)
    assert told[-1] == truth[-1]


def test_steps_of_no_growth_leave_nothing():
    """A thousand unrecorded steps free all their memory. Only the rows of the first, highest moment are left."""
    events = LiveEvents()
    events.enter(CPU, 0, reports_frees=False)
    left = 0
    for step in range(1000):
        rows = np.array([(2 * step, 8, 64, CPU, -1, 0, 0), (2 * step + 1, 8, -64, CPU, -1, 0, 0)])
        left += len(events.sift(events.measure(rows), np.zeros(0, dtype=np.int64), np.array([True])))
    assert left + len(events.rest()) == 2
