"""Functions that both a block and the program replace: the program's replacement stays."""

from __future__ import annotations

import threading

import pytest
from worker_threads import NATIVE, Worker

import memwatch
from memwatch.patches import Patches


class _Place:
    """Has functions that a program replaces too."""

    def own(self):
        return "original"

    @staticmethod
    def static():
        return "original"


class _Inherits(_Place):
    pass


class _Recorder:
    def called(self, original, *args):
        return "recorded " + original(*args)

    def entered(self, *args):
        return lambda: None


@pytest.mark.parametrize("place", [_Place, _Inherits])
@pytest.mark.parametrize("name", ["own", "static"])
def test_a_replacement_of_the_programs_stays(place, name, monkeypatch):
    """A function that the program puts over ours in the block stays.

    Through it the original is called afterwards.
    """
    monkeypatch.setattr(place, name, vars(_Place)[name])
    recorder, patches = _Recorder(), Patches()
    patches.put(place, name, recorder.called)
    ours = getattr(place, name)
    theirs = staticmethod(lambda *args: "theirs " + ours(*args))
    monkeypatch.setattr(place, name, theirs)
    assert getattr(place, name)(place()) if name == "own" else getattr(place, name)()
    patches.take_off()
    assert vars(place)[name] is theirs
    arguments = (place(),) if name == "own" else ()
    assert getattr(place, name)(*arguments) == "theirs original"
    patches.put(place, name, recorder.called)
    assert getattr(place, name)(*arguments) == "recorded theirs original"
    patches.take_off()
    assert vars(place)[name] is theirs


@pytest.mark.parametrize("place", [_Place, _Inherits])
def test_of_overlapping_blocks_the_last_one_to_end_restores_the_original(place):
    """The block that began first may end first. Its replacement must not come back."""
    before = dict(vars(place))
    recorder, first, second, third = _Recorder(), Patches(), Patches(), Patches()
    for patches in (first, second, third):
        patches.put_around(place, "own", recorder.entered)
    for patches in (second, first, third):
        patches.take_off()
        assert place().own() == "original"
    assert dict(vars(place)) == before


def test_an_inherited_function_is_put_back_by_removing_ours():
    """A class that inherits a function inherits it afterwards too, and a running call ends with its original."""
    patches = Patches()
    recorder = _Recorder()
    patches.put_around(_Inherits, "own", recorder.entered)
    assert "own" in vars(_Inherits)
    assert _Inherits().own() == "original"
    patches.take_off()
    assert "own" not in vars(_Inherits)


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_a_programs_own_bootstrap_of_threads_stays(intercept, monkeypatch):
    """A replacement that the program makes of a function of Python in the block is there after it."""
    begun = []
    with memwatch.profile(intercept=intercept):
        ours = threading.Thread._bootstrap_inner

        def theirs(thread):
            begun.append(thread)
            ours(thread)

        threading.Thread._bootstrap_inner = theirs
    try:
        assert threading.Thread._bootstrap_inner is theirs
        Worker().end()
        assert len(begun) == 1
    finally:
        threading.Thread._bootstrap_inner = ours.__wrapped__
