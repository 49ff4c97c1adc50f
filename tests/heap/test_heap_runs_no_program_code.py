"""memwatch reads the objects of a program without calling any of their methods."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections import Counter
from typing import Any

import pytest
import torch
from recording_classes import (
    METACLASS_METHODS,
    SPECIAL_METHODS,
    metaclass,
    methods,
    note,
    reading,
    recording,
)
from recording_shapes import SHAPES, module_class, optimizer_class, tensor_class
from sampled_ops import sample_every_op
from torch import nn

import memwatch
from memwatch.heap.classes import ByClass
from memwatch.heap.frames import read_locals
from memwatch.heap.inner_tensors import inner_tensors
from memwatch.heap.roots import SHOWS_CALLBACKS_AT_EXIT, RootKind
from memwatch.heap.snapshot import Snapshot
from memwatch.monitor.copies import Fork, copied_structures
from memwatch.monitor.live_memory import live_memory
from memwatch.monitor.objects import grown_containers, python_memory, tensor_memory

WAYS = ["key-native", "mode-native", "key-python", "mode-python"]
ELEMENTS = 20_000
PATHS = 6
"""Holders of one tensor: `why_alive` tells of eight at most."""
NAMED_BY_ROLE = {"torch_module", "module_list"}
"""Objects that are buffers by the end of the block: the role names them."""
BEHIND_NO_REFERENCE = {"function_with_globals_of_a_subclass", "tensor_with_sizes_by_code"}
"""Objects that bounded searches do not open: the globals of a function, and a tensor that names no inner tensors."""
OF_TENSORS = {
    "tensor_subclass", "parameter_subclass", "wrapper", "tensor_with_sizes_by_code", "wrapper_with_sizes_by_code",
}  # fmt: skip
"""Objects that are tensors of a class of the program."""
KEPT: dict[str, list[Any]] = {}


@pytest.fixture(autouse=True)
def _drop_what_was_made(one_thread):
    yield
    KEPT.clear()
    sys.modules.pop("recorded_module", None)
    gc.collect()


def no_calls(calls: Counter[str]) -> bool:
    assert not calls, calls
    return True


def hold(sizes: dict[str, int]) -> list[Any]:
    held = {name: SHAPES[name](torch.ones(size)) for name, size in sizes.items()}
    total = torch.zeros(10)
    for _ in range(3):
        total = total + 1
    return [held, total]


def test_the_classes_have_forty_methods():
    assert len(SPECIAL_METHODS) >= 40
    assert {"__eq__", "__hash__", "__instancecheck__", "__getattribute__"} <= set(METACLASS_METHODS)


def test_a_call_by_memwatch_is_recorded():
    """The tests below would find a call."""
    obj = type("Seen", (), methods("Seen"))()
    with recording() as calls:
        ByClass(obj)(int)
        assert obj == 1
    assert [name.partition(" from ")[0] for name in calls] == ["Seen.__call__"]


@pytest.mark.parametrize("intercept", WAYS, indirect=True)
def test_a_sample_calls_no_method_of_what_it_meets(intercept):
    sizes = {name: ELEMENTS + place for place, name in enumerate(SHAPES)}
    with recording() as calls, sample_every_op() as samples, memwatch.profile(intercept=intercept) as prof:
        result = hold(sizes)
    assert no_calls(calls)
    assert samples[0] > len(SHAPES)
    assert not [text for kind, text in prof.notes if kind == "recorder"]
    evidence = prof.at_peak.set_index("nbytes")["holder_evidence"]
    not_seen = {name for name, size in sizes.items() if evidence[4 * size] != "seen"}
    assert not_seen <= NAMED_BY_ROLE | BEHIND_NO_REFERENCE
    del result


def test_the_copy_of_a_training_state_calls_no_method_of_what_it_meets():
    """`memwatch fit` copies what a step can change, behind its variables. It asks tensors alone for their fields."""
    from memwatch.fit.state import State  # it imports pandas

    held = {name: make(torch.ones(10)) for name, make in SHAPES.items() if name not in OF_TENSORS}

    def step() -> Any:
        return held

    with recording() as calls:
        State(step, nn.Linear(2, 2), [])
    assert no_calls(calls)


def test_the_copy_of_a_training_state_leaves_out_a_tensor_without_memory():
    """A wrapper without `__tensor_flatten__` has a storage with a size, and to read its bytes ends the process."""
    from memwatch.fit.state import State

    held = {"wrapper": SHAPES["tensor_with_sizes_by_code"](torch.ones(10)), "plain": torch.ones(10)}

    def step() -> Any:
        return held

    state = State(step, nn.Linear(2, 2), [])
    held["plain"].zero_()
    state.restore()
    assert held["plain"].sum() == 10


class Worker(threading.Thread):
    """A thread whose name is a property."""

    name = reading("Worker.name", lambda self: "worker")  # type: ignore[assignment]
    ident = reading("Worker.ident", lambda self: 1)  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.is_over = threading.Event()

    def __getattribute__(self, name: str) -> Any:
        note("Worker.__getattribute__")
        return super().__getattribute__(name)

    def run(self) -> None:
        held = torch.ones(ELEMENTS)
        self.is_over.wait()
        del held


def train() -> Any:
    model = module_class(nn.Sequential)(module_class(nn.Linear)(64, 64), module_class(nn.Linear)(64, 64))
    own = torch.Tensor._make_subclass(tensor_class(nn.Parameter, "OfParameter"), torch.ones(64, 64), True)
    nn.Module.register_parameter(model, "own", own)
    parameters = list(nn.Module.parameters(model))
    optimizers = [
        optimizer_class(torch.optim.Adam, wraps=False)(parameters, lr=0.1),
        optimizer_class(torch.optim.SGD, wraps=True)(parameters, lr=0.1, momentum=0.9),
    ]
    for _ in range(2):
        (model(torch.randn(64, 64)) @ own).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizers


# With the Python recorder every read of a subclass's tensor calls its `__getattribute__`, because torch first
# searches the tensor for a `__torch_function__`.
@pytest.mark.parametrize("intercept", ["key-native", "mode-native"], indirect=True)
def test_entry_modules_optimizers_and_threads(intercept):
    before = [hold(dict.fromkeys(SHAPES, ELEMENTS)), train()]
    worker = Worker()
    with recording() as calls, sample_every_op(), memwatch.profile(intercept=intercept) as prof:
        worker.start()
        trained = train()
        worker.is_over.set()
        worker.join()
    assert no_calls(calls)
    assert not [text for kind, text in prof.notes if kind == "recorder"]
    assert set(prof.storages["category"]) >= {"parameter", "optimizer state"}
    del before, trained


def leave(names: list[str]) -> None:
    for name in names:
        KEPT.setdefault(name, []).append(SHAPES[name](torch.ones(ELEMENTS)))


def leave_loops(names: list[str]) -> None:
    for name in names:
        loop = [SHAPES[name](torch.ones(ELEMENTS))]
        loop.append(loop)


@pytest.mark.parametrize("leaving", [leave, leave_loops])
def test_searches_for_leaks_call_no_method(leaving):
    names = list(SHAPES)
    with recording() as calls:
        leaks = memwatch.find_leaks(leaving, names, runs=2)
    assert no_calls(calls)
    assert sum(leak.count for leak in leaks) >= len(names)
    with recording() as calls, pytest.raises(memwatch.TensorLeakError), memwatch.check_leaks():
        leaving(names)
    assert no_calls(calls)


def test_a_leak_watch_calls_no_method():
    names = list(SHAPES)
    watch = memwatch.LeakWatch()
    with recording() as calls:
        watch.mark()
        for _ in range(2):
            leave(names)
            watch.mark()
        report = watch.report()
    assert no_calls(calls)
    assert "KEPT" in report


def test_why_alive_calls_no_method():
    names = list(SHAPES)
    for start in range(0, len(names), PATHS):
        tensor = torch.ones(ELEMENTS)
        held = [SHAPES[name](tensor) for name in names[start : start + PATHS]]
        with recording() as calls:
            why = memwatch.why_alive(tensor)
        assert no_calls(calls)
        assert len(why.paths) >= len(held)
        del held, tensor


@pytest.mark.whole
def test_the_searches_of_a_monitor_call_no_method():
    """The monitor goes through all objects, and so does its search for lists that forked processes copy."""
    names = list(SHAPES)
    KEPT["held"] = hold(dict.fromkeys(names, ELEMENTS))
    large = type("Large", (list,), methods("Large", list))  # as long as the lists that are examined
    KEPT["large"] = [large(range(20_000)), metaclass("Odd")("Odd", (tuple,), {})(range(20_000))]
    with recording() as calls:
        before = python_memory()
        assert tensor_memory().count >= len(names)
        grown_containers(before.lengths, 1)
        copied_structures([Fork(os.getpid(), 0.0), Fork(os.getpid(), 0.0)])
        live_memory()
    assert no_calls(calls)


class Space(dict):  # type: ignore[type-arg]
    """A namespace that a metaclass prepares."""

    vars().update(methods("Space", dict, honest=True))

    def __setitem__(self, name: str, value: Any) -> None:
        note("Space.__setitem__")
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        note("Space.__delitem__")
        super().__delitem__(name)


class Prepared(type):
    @classmethod
    def __prepare__(cls, name: str, bases: Any) -> Any:  # type: ignore[override]
        return Space()


def test_the_namespace_of_a_class_body_is_left_alone():
    found = []
    with recording() as calls:

        class Plain(metaclass=Prepared):
            held = 1
            found.append(read_locals(sys._getframe()))

        class WithCell(metaclass=Prepared):
            held = 1
            found.append(read_locals(sys._getframe()))

            def method(self) -> Any:
                return super().method()

    assert no_calls(calls)
    assert [values.get("held") for values in found] == [1, None]
    del Plain, WithCell


class Callback:
    """Compares, and can be called: atexit may hold such an object."""

    def __call__(self) -> None: ...

    def __eq__(self, other: object) -> bool:
        note("Callback.__eq__")
        return False

    __hash__ = object.__hash__


UNREGISTERED = [Callback()]


def callbacks_in_snapshot() -> list[object]:
    with Snapshot() as snapshot:
        return [
            held.value for root in snapshot.roots if root.kind is RootKind.ATEXIT for held in root.entries
        ]


def test_callbacks_at_exit_are_listed_beside_an_object_that_compares():
    """Importing torch may make such objects: sympy has 42 of them."""

    def callback() -> None: ...

    atexit.register(callback)
    try:
        with recording() as calls:
            found = callbacks_in_snapshot()
        assert no_calls(calls)
        assert any(one is callback for one in found)
    finally:
        atexit.unregister(callback)


def test_callbacks_at_exit_are_not_compared_with_ours():
    callback = Callback()
    atexit.register(callback)
    try:
        with recording() as calls:
            found = callbacks_in_snapshot()
        assert no_calls(calls)
        # from Python 3.14 on, gc shows them without a comparison
        assert any(one is callback for one in found) is SHOWS_CALLBACKS_AT_EXIT
    finally:
        atexit.unregister(callback)


def test_a_value_of_a_class_counts_for_that_class_alone():
    """Classes come and go; each gets the value that was computed for it."""
    label = ByClass(lambda cls: type.__dict__["__name__"].__get__(cls))
    for number in range(2_000):
        cls = metaclass(f"Meta{number % 3}", raises=("__hash__", "__eq__"))(f"Class{number}", (), {})
        assert label(cls) == f"Class{number}"
        assert label(cls) == f"Class{number}"


def test_the_parts_of_a_wrapper_are_those_that_its_method_mentions():
    class Pair(torch.Tensor):
        @staticmethod
        def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, first.size())

        def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
            self.first, self.second, self.beside = first, second, torch.ones(3)

        def __tensor_flatten__(self) -> Any:
            raise AssertionError

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError

    class Named(Pair):
        def __tensor_flatten__(self) -> Any:
            assert self is None, ["first", "second"]

    pair, named = Pair(torch.ones(1), torch.ones(2)), Named(torch.ones(1), torch.ones(2))
    assert [len(part) for part in inner_tensors(named)] == [1, 2]
    assert [len(part) for part in inner_tensors(pair)] == [1, 2, 3]
