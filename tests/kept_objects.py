"""The check that memwatch is off, and that it holds no objects of the tests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from itertools import compress

import torch

_CALL = torch.nn.Module._call_impl
_WATCHING = ("memwatch.record.", "memwatch.heap.", "memwatch.leaks.", "pytest_memwatch.")
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage)
_OF_THE_GRAPH = {"Pack"}  # autograd holds it in place of a saved tensor for as long as the user's graph lives


def assert_memwatch_keeps_nothing():
    """Assert that every block is off, and that no unfrozen object of memwatch holds a tensor."""
    assert torch.nn.Module._call_impl is _CALL
    assert "Fake" not in str(torch._C._dispatch_tls_local_include_set())
    assert "Fake" not in str(torch._C._dispatch_tls_local_exclude_set())
    assert not torch.autograd._profiler_enabled()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    objects = gc.get_objects()
    # each class is tested once, because there are many objects
    classes = {id(cls): cls for cls in map(type, objects)}
    watchers = _of_classes(objects, (number for number, cls in classes.items() if _watches(cls)))
    assert [obj for obj in watchers if type(obj).__name__ == "Session"] == []
    tensors = set(map(id, _of_classes(objects, map(id, _TENSORS))))
    # start from memwatch's objects: to start from the tensors would search the heap once per tensor
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


def _of_classes(objects: list, ids: Iterable[int]) -> list:
    """Return the objects of the classes with these ids; a class may define its hash and comparison as anything."""
    return list(compress(objects, map(set(ids).__contains__, map(id, map(type, objects)))))


def _watches(cls: type) -> bool:
    module = type.__getattribute__(cls, "__module__")  # a class may define it as anything, and how to read it
    return isinstance(module, str) and module.startswith(_WATCHING)
