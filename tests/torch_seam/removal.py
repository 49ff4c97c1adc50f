"""Run memwatch in processes whose torch lacks one name each: forked from one that has imported torch.

Started as a script it reads names, one a line, and answers each with a line of JSON: what happened.
"""

from __future__ import annotations

import sys
import traceback
import warnings

import numba  # noqa: F401  # what memwatch imports beside torch is imported once, before the forks
import pandas  # noqa: F401

TIME_LIMIT_S = 60


def run_without(name: str) -> dict[str, object]:
    """Use memwatch on a torch that lacks the name; return what came of it, by the step."""
    from memwatch._torch import lookup

    assert [module for module in sys.modules if module.startswith("memwatch._torch.")] == [
        "memwatch._torch.lookup"
    ]
    find = lookup.find
    lookup.find = lambda path: lookup.ABSENT if f"{path}.".startswith(f"{name}.") else find(path)
    steps = {
        "profile native": _profile_natively,
        "profile python": _profile,
        "mode": _profile_by_mode,
        "leaks": _leaks,
    }
    return {step: _outcome(run, name) for step, run in steps.items()}


def _outcome(run, name: str) -> str:
    """Return "ok", or the error: a MemwatchError that speaks of the name is an answer, a traceback is none."""
    import memwatch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(name)
    except memwatch.MemwatchError as error:
        return f"refused: {error}"
    except BaseException:
        return traceback.format_exc()
    return "ok"
