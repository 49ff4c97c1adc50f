"""Run a program plainly and under memwatch.profile(), and tell every difference the program could notice."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import re
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from compat_deaths import observed_order, plain_order
from compat_frozen import freeze, tensors_in
from compat_state import differences, torch_state
from kept_objects import assert_memwatch_keeps_nothing
from kept_values import Kept, forget
from sampled_ops import sample_every_op
from torch.utils._python_dispatch import TorchDispatchMode

import memwatch
from memwatch.analysis.observer import observer_effects

INTERCEPTS = ("key", "mode", "key-python", "mode-python")
"""The ways to intercept, with the native recorder and with the one in Python: parameters of the fixture `intercept`."""

_DEEP_EVERY = 25
"""Of so many samples one searches the heap: a deep search takes 10 times as long as a near one."""

Program = Callable[[], Any]


@dataclass
class Outcome:
    """The observable results of one run of a program."""

    result: Any
    error: Any
    warned: list[tuple[type, str]]
    random_state: Any
    freed_at_once: list[bool]
    freed_by_gc: list[bool]


def run(program: Program, around: Callable[[], Any] = contextlib.nullcontext) -> Kept:
    """Run a program with fixed seeds inside `around()`; memwatch's own entry and exit count as the program's.

    Returns:
        The `Outcome`.
    """
    _seed()
    gc.collect()
    gc.disable()
    error = None
    value: Any = None
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with around():
                    value = program()
            except Exception as raised:
                error = freeze(raised)
        numpys = np.random.get_state()
        state = (torch.get_rng_state().numpy().tobytes(), random.getstate(), numpys[1].tobytes(), numpys[2:])
        result = freeze(value)
        alive = [weakref.ref(tensor) for tensor in tensors_in(value)]
        del value
        at_once = [reference() is None for reference in alive]
        gc.collect()
        by_gc = [reference() is None for reference in alive]
    finally:
        gc.enable()
    warned = [(each.category, _without_harness(str(each.message))) for each in caught]
    return Kept(Outcome(result, error, warned, state, at_once, by_gc))


def _seed() -> None:
    """Seed all generators; `torch.manual_seed` would list the stack for each kind of device that is not there."""
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    random.seed(0)
    np.random.seed(0)


def _without_replay(run: Kept) -> Any:
    """Leave out the documented effects of `replay=True`: it holds storages, so gradients are summed out of place."""
    outcome = run.value
    return _without_versions(outcome.result), outcome.error, outcome.warned, outcome.random_state


def _without_versions(frozen: Any) -> Any:
    if isinstance(frozen, tuple) and frozen[:1] == ("tensor",):
        return (*map(_without_versions, frozen[:7]), *map(_without_versions, frozen[8:]))
    if isinstance(frozen, (tuple, list)):
        return type(frozen)(map(_without_versions, frozen))
    return frozen


def _without_harness(text: str) -> str:
    """Leave the frames of this file out of a traceback that a warning quotes."""
    return re.sub(rf'  File "{re.escape(__file__)}", line \d+, in \w+\n.*\n', "", text)


def check(
    program: Program, intercept: str, *, deaths: bool = True, raises: bool = False, formula: str = ""
) -> memwatch.Profile:
    """Assert that the program runs the same under memwatch, and that nothing of memwatch stays.

    Where the report says that ATen took other formulas because a mode was on, or `formula` does, the program
    must run as it does under an empty mode.
    """
    forget()
    run(program)  # first-time effects: lazy imports, warnings given once, caches
    gc.collect()
    assert_memwatch_keeps_nothing()
    # the collections below then skip the objects that torch has just imported, which saves half of a test's
    # time
    gc.freeze()
    plain = run(program)
    with _no_collections():
        expected = Kept(plain_order(_repeated(program)) if deaths else [])
    before = Kept(torch_state())
    prof = memwatch.profile(intercept=intercept)
    observed = run(program, lambda: prof)
    after = Kept(torch_state())
    again = run(program)
    assert (plain.value.error is not None) is raises, plain.value.error
    assert plain == again, "the program does not repeat plainly: it cannot be compared"
    assert differences(before.value, after.value) == []
    # a program at the limit of recursion leaves the recorder no room either, and the recorder says so
    unsaid = [text for kind, text in prof.notes if kind == "recorder" and "RecursionError" not in text]
    assert unsaid == []
    if observed != plain and intercept == "mode" and (formula or mode_effects(prof)):
        assert observed == run(program, EmptyMode)
        return prof
    assert observed == plain
    # only the recorder in Python records the data for a replay
    if intercept == "key" and os.environ.get("MEMWATCH_NATIVE") == "0":
        replayed = run(program, lambda: memwatch.profile(intercept=intercept, replay=True))
        assert _without_replay(replayed) == _without_replay(plain)
    if deaths:
        with _no_collections():
            with memwatch.profile(intercept=intercept) as prof:
                result = _repeated(program)()
            del result
            order = Kept(observed_order(prof))
            if order != expected and intercept == "mode":
                expected = Kept(plain_order(_under_mode(_repeated(program))))
        assert mode_effects(prof) or order == expected
    return prof


def check_sampled(
    program: Program, intercept: str, *, formula: str = "", deep_every: int = _DEEP_EVERY
) -> int:
    """Assert that a program with a holder sample after every op runs as plainly; return the number of samples.

    Args:
        program: the program.
        intercept: how memwatch intercepts the ops.
        formula: a change that ATen makes under any mode in this program, if the report cannot know it.
        deep_every: one of this many samples searches the heap.
    """
    forget()
    run(program)  # first-time effects: lazy imports, warnings given once, caches
    plain, again = run(program), run(program)
    # except when a result was freed: on an accelerator this depends on the thread of its backward
    assert _shown(plain) == _shown(again), "the program does not repeat plainly: it cannot be compared"
    prof = memwatch.profile(intercept=intercept)
    with sample_every_op(deep_every=deep_every) as count:
        observed = run(program, lambda: prof)
    unsaid = [text for kind, text in prof.notes if kind == "recorder" and "RecursionError" not in text]
    assert unsaid == []
    if _shown(observed) != _shown(plain) and intercept == "mode" and (formula or mode_effects(prof)):
        assert _shown(observed) == _shown(run(program, EmptyMode))
    else:
        assert _shown(observed) == _shown(plain)
    return count[0]


def _shown(outcome: Kept) -> Any:
    """Return the results of a run; `check` compares when they were freed."""
    value = outcome.value
    return value.result, value.error, value.warned, value.random_state


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the gc from freeing at a moment of its own."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _under_mode(program: Program) -> Program:
    def run_it() -> Any:
        with EmptyMode():
            return program()

    return run_it


class EmptyMode(TorchDispatchMode):
    """A mode that does nothing but be there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def mode_effects(prof: memwatch.Profile) -> list[str]:
    """Name the ops that ran in another way because a mode was on, by the report's own words."""
    return [
        op
        for effect in observer_effects(prof._tables.facts)
        if "dispatch mode" in effect.text
        for op in effect.ops
    ]


def _repeated(program: Program) -> Program:
    def run_it() -> Any:
        _seed()
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program()
        return None

    return run_it


def unnoticed(
    program: Program | None = None, *, deaths: Any = True, raises: bool = False, formula: str = ""
) -> Any:
    """Turn a program into a test that it does not notice memwatch, once for each way to intercept.

    Args:
        program: the program; it takes no arguments and returns everything to compare.
        deaths: whether storages must die in the plain program's order; a collection of intercepts limits it to those.
        raises: whether the program raises on purpose.
        formula: a change that ATen makes under any mode in this program, if the report cannot know it.
    """
    if program is None:
        return functools.partial(unnoticed, deaths=deaths, raises=raises, formula=formula)

    @pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
    def test(intercept: str) -> None:
        compared = deaths if isinstance(deaths, bool) else intercept in deaths
        check(program, intercept, deaths=compared, raises=raises, formula=formula)

    test.__name__ = test.__qualname__ = program.__name__
    test.__doc__ = program.__doc__
    test.__module__ = program.__module__
    test.program, test.formula = program, formula
    return test
