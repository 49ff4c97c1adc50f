"""What all tests share: pytest's own testing fixture, and the check that memwatch keeps nothing of theirs."""

from __future__ import annotations

import gc
import os
import sys

import pytest
import scrambled_words
import torch

pytest_plugins = ["pytester"]

if scrambled_words.VARIABLE in os.environ:  # see test_words_are_last.py
    scrambled_words.scramble()

_CALL = torch.nn.Module._call_impl
_WATCHING = ("memwatch.record.", "memwatch.heap.", "memwatch.leaks.", "pytest_memwatch.")
_OF_THE_GRAPH = {"Pack"}  # autograd holds it in place of a saved tensor for as long as the user's graph lives

_FIRST = ("leaks", "findings", "heap", "plugin")
_LAST = (
    "test_leaks_programs_autograd.py", "test_leaks_facts.py", "test_leaks_innocent.py", "test_leaks_hygiene.py",
    "test_leaks_pipelining.py", "test_leaks_programs_training.py",  # these import torch's compiler
    "test_truth.py", "test_truth_transformers.py", "test_truth_accelerate.py", "test_truth_diffusers.py",
    "test_truth_lightning.py", "test_compat_opinfo.py",  # libraries, torch's op database
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what searches the whole heap before what imports much: a search takes as long as the heap is large."""

    def place(item: pytest.Item) -> tuple[int, int]:
        folder = item.path.parent.name
        first = _FIRST.index(folder) if folder in _FIRST else len(_FIRST)
        return first, _LAST.index(item.path.name) + 1 if item.path.name in _LAST else 0

    items.sort(key=place)


@pytest.fixture
def intercept(request, monkeypatch):
    """Return the way to intercept, and choose the recorder that the parameter names."""
    way, _, recorder = request.param.partition("-")
    monkeypatch.setenv("MEMWATCH_NATIVE", "0" if recorder == "python" else "1")
    return way


@pytest.fixture(autouse=True, scope="module")
def _memwatch_keeps_nothing():
    """After each file of tests memwatch is off, and nothing that watches holds a tensor of the tests."""
    yield
    gc.collect()
    assert torch.nn.Module._call_impl is _CALL
    assert "Fake" not in str(torch._C._dispatch_tls_local_include_set())
    assert "Fake" not in str(torch._C._dispatch_tls_local_exclude_set())
    assert not torch.autograd._profiler_enabled()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    objects = gc.get_objects()
    classes = {id(cls): cls for cls in map(type, objects)}  # asked once each: objects are many
    watching = {number for number, cls in classes.items() if _watches(cls)}
    watchers = [obj for obj in objects if id(type(obj)) in watching]
    assert [obj for obj in watchers if type(obj).__name__ == "Session"] == []
    tensors = {
        id(obj) for obj in objects if type(obj) in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage)
    }
    # what we may hold is looked at, not who holds each tensor: that would search the heap once per tensor
    ours = [obj for obj in watchers if type(obj).__name__ not in _OF_THE_GRAPH]
    assert [
        type(obj).__name__ for obj in ours if not tensors.isdisjoint(map(id, gc.get_referents(obj)))
    ] == []
    modules = {name: module for name, module in list(sys.modules.items()) if name.startswith(_WATCHING)}
    assert [
        name
        for name, module in modules.items()
        if module is not None and not tensors.isdisjoint(map(id, vars(module).values()))
    ] == []


def _watches(cls: type) -> bool:
    module = cls.__module__  # a class may define it as anything
    return isinstance(module, str) and module.startswith(_WATCHING)
