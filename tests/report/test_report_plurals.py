"""A count of one has a singular noun on every screen."""

from types import SimpleNamespace

import pytest

from memwatch.estimate.words import _run
from memwatch.ranks.terminal import _more
from memwatch.replay.checkpoints.apply import AppliedPlan
from memwatch.replay.run import ReplayResult
from memwatch.report.plan import check_words
from memwatch.words.processes import counted
from memwatch.words.ranks import LOWER_PEAKS, MORE_DIFFER


def replayed(number: int, differs: bool) -> ReplayResult:
    return ReplayResult(1, 1, not differs, 0.0, 0.0, 0.1, 0, number, False)


def applied(number: int) -> str:
    modules = [f"layers.{each}" for each in range(number)]
    told = SimpleNamespace(
        peak_increase_bytes=1,
        budget_bytes=1,
        extra_cost_ratio=0.5,
        modules=modules,
        saved={"layers.0": number},
    )
    return AppliedPlan.__str__(told)


COUNTS = {
    "a noun": lambda number: counted(number, "site"),
    "a noun that ends in a hiss": lambda number: counted(number, "search"),
    "processes of a job": lambda number: _more(number, *LOWER_PEAKS)[0].plain,
    "differences of a job": lambda number: _more(number, *MORE_DIFFER)[0].plain,
    "a replay": lambda number: str(replayed(number, False)),
    "a replay with other random numbers": lambda number: str(replayed(number, True)),
    "the replay of a plan": lambda number: check_words(replayed(number, False)),
    "a plan that is applied": applied,
    "an estimate": lambda number: _run(
        SimpleNamespace(job=SimpleNamespace(world_size=None, rank=0), steps=number)
    ),
}
"""What a screen says about a count."""
PHRASES = {
    "a noun": ("1 site", "2 sites"),
    "a noun that ends in a hiss": ("1 search", "2 searches"),
    "processes of a job": ("1 more process with a lower peak", "2 more processes with lower peaks"),
    "differences of a job": ("1 more thing differs", "2 more things differ"),
    "a replay": ("; 1 storage bitwise", "; 2 storages bitwise"),
    "a replay with other random numbers": ("; 1 storage bitwise", "; 2 storages bitwise"),
    "the replay of a plan": ("1 storage bitwise", "2 storages bitwise"),
    "a plan that is applied": ("1 module and saves 1 result in", "2 modules and saves 2 results in"),
    "an estimate": ("1 step of the optimizer", "2 steps of the optimizer"),
}


@pytest.mark.parametrize("what", COUNTS)
def test_one_has_a_singular(what):
    for number, phrase in enumerate(PHRASES[what], 1):
        assert phrase in COUNTS[what](number)
