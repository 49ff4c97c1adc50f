"""Tensors that one edit frees are one leak with one cause. Two edits are two."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
import weakref

import pytest
import torch
from torch import nn

from memwatch.leaks import TensorLeakError, check_leaks, find_leaks


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def causes_of(program):
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        program()
    return {leak.cause for leak in caught.value.leaks}


def functional(module, name="Functional{}"):
    """Make a class for a module and call it after the module's class, as `higher` does."""
    base = type(module)
    box = [None]

    class Patched(base):
        def __init__(self):
            nn.Module.__init__(self)
            self.children_ = [functional(child) for child in module.children()]

        def forward(self, x):
            box[0] = x
            return base.forward(module, x)

    Patched.__name__ = Patched.__qualname__ = name.format(base.__name__)
    return Patched()


def stateless(module):
    """Make a class for a module by a line of its own."""
    base = type(module)

    class Stateless(base):
        def __init__(self):
            nn.Module.__init__(self)

        def forward(self, x):
            return base.forward(module, x)

    Stateless.__name__ = Stateless.__qualname__ = f"Stateless{base.__name__}"
    return Stateless()


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Embedding(4, 4), nn.Conv1d(4, 4, 1))


class Kept(nn.Module):
    """A class that is made once, for any module."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_classes_that_one_line_makes_are_one_cause_whatever_they_are_called():
    """The edit is the one line; the names of the classes follow the modules that they were made for."""
    [leak] = find_leaks(lambda: functional(model()) and None)
    assert leak.nbytes == 4 * (20 + 8 + 16 + 20)
    assert "Functional" in leak.holder  # under the name that the class goes by
    assert causes_of(lambda: functional(nn.Linear(4, 4))) == causes_of(lambda: functional(nn.Conv1d(4, 4, 1)))
    assert find_leaks(lambda: Kept(model()) and None) == []


def test_classes_of_two_lines_are_two_causes():
    """Each function has a line that makes a class in every call."""
    assert len(causes_of(lambda: (functional(nn.Linear(4, 4)), stateless(nn.LayerNorm(4))))) == 2


@functools.lru_cache
def scaled(x, by):
    return x * by


BY_KEY = {}


@pytest.mark.parametrize(
    "keys",
    [
        ("a", "b"),
        ("it's one", "it's another"),
        ("a" * 80, "b" * 80),
        (1, -1),
        (0.5, 1e-9),
        ("it's one", "another"),
    ],
)
def test_all_values_of_a_dictionary_with_numbers_or_texts_as_keys_are_one_leak(keys):
    def program():
        for key in keys:
            BY_KEY[key] = torch.ones(100)

    try:
        with pytest.raises(TensorLeakError) as caught, check_leaks():
            program()
        [leak] = caught.value.leaks
        assert leak.count == len(keys)
    finally:
        BY_KEY.clear()


def test_the_argument_and_the_result_of_one_cache_are_one_cause():
    """One `cache_clear()` drops both."""

    def call():
        scaled(torch.ones(64), by=torch.ones(64))

    leaks = []
    try:
        with check_leaks():
            call()
    except TensorLeakError as error:
        leaks = error.leaks
    assert sum(leak.count for leak in leaks) == 3
    assert len(leaks) == 1, [str(leak) for leak in leaks]
    scaled.cache_clear()

    with check_leaks():
        call()
        scaled.cache_clear()


class Replica(nn.Module):
    """Wraps a layer and gives the wrapper a hook: a method of its own, or a plain function."""

    def __init__(self, hook=None):
        super().__init__()
        self.replica = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
        self.replica.register_comm_hook(None, hook or self.reduce)

    def reduce(self, state, bucket):
        return reduce(state, bucket)


def reduce(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@pytest.fixture
def _group():
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_group")
def test_the_buckets_of_a_reducer_are_told_with_the_hook_that_keeps_it():
    """The reducer has them in C++, and its hook leads back to the model: to cut the hook frees both."""
    [leak] = find_leaks(lambda: Replica().replica(torch.ones(2, 8)).sum().backward())
    assert leak.kind == "uncollectable"
    assert leak.nbytes >= 3 * 288  # parameters, gradients and buckets
    assert find_leaks(lambda: Replica(reduce).replica(torch.ones(2, 8)).sum().backward()) == []


class Loader:
    """Keeps two batches ahead in its queue, and one in the hand of its thread."""

    def __init__(self, work):
        self.batches, self.is_over = queue.Queue(maxsize=2), threading.Event()
        self.thread = threading.Thread(target=work, args=(self,), daemon=True)
        self.thread.start()

    def first(self):
        total = self.batches.get().get("x").sum().item()
        while (
            not self.batches.not_full._waiters
        ):  # a busy machine may stop the thread between two of its lines
            time.sleep(0.001)
        return total

    def end(self):
        self.is_over.set()
        while self.thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self.batches.get(timeout=0.01)


def batch():
    return {"x": torch.ones(64), "y": torch.ones(64)}


def fills(loader):
    while not loader.is_over.is_set():
        loader.batches.put(batch())


def fills_from_a_generator(loader):
    source = (batch() for _ in iter(loader.is_over.is_set, True))
    for latest in source:
        latest["x"] = latest["x"] + 1
        loader.batches.put(latest)


WORK = [fills, fills_from_a_generator]


@pytest.mark.parametrize("work", WORK)
def test_a_thread_that_each_call_abandons_is_one_cause_whichever_of_its_variables_hold_tensors(work):
    """The queue, the thread's variables and the arguments of its calls hold batches: to end the thread frees all."""
    loaders = []

    def call(*, ends):
        loader = Loader(work)
        loaders.append(weakref.ref(loader))
        loader.first()
        if ends:
            loader.end()

    try:
        [leak] = find_leaks(call, ends=False)
        assert (leak.count, leak.nbytes) == (6, 6 * 256)
        assert "thread" in leak.holder
        assert causes_of(lambda: call(ends=False)) == {leak.cause}
        [of_two] = find_leaks(call, ends=False, runs=2)
        assert of_two.cause == leak.cause
    finally:
        for ref in loaders:
            ref().end()
    assert find_leaks(call, ends=True) == []


def test_two_threads_with_work_of_their_own_are_two_causes():
    loaders = []

    def call():
        for work in WORK:
            loader = Loader(work)
            loaders.append(weakref.ref(loader))
            loader.first()

    try:
        assert len({leak.cause for leak in find_leaks(call)}) == 2
    finally:
        for ref in loaders:
            ref().end()


def test_two_lists_of_a_thread_from_before_the_calls_are_two_causes():
    """The thread is to run on: each list has an edit of its own."""
    tasks, done = queue.Queue(), queue.Queue()

    def serves():
        inputs, outputs = [], []
        while (task := tasks.get()) is not None:
            inputs.append(task)
            outputs.append(task + 1)
            done.put(len(outputs))

    def call():
        tasks.put(torch.ones(64))
        done.get()

    thread = threading.Thread(target=serves, daemon=True)
    thread.start()
    try:
        assert len({leak.cause for leak in find_leaks(call)}) == 2
    finally:
        tasks.put(None)
        thread.join()


class Cell:
    """A base class whose one line stores a method of each subclass, as norse's SNNRecurrentCell does."""

    def __init__(self, fallback):
        self.weight = torch.ones(64)
        self.fallback = fallback


class OtherCell:
    def __init__(self, fallback):
        self.weight = torch.ones(64)
        self.fallback = fallback


def subclasses_of(base):
    class First(base):
        def __init__(self):
            super().__init__(self.initial)

        def initial(self):
            pass

    class Second(base):
        def __init__(self):
            super().__init__(self.zeros)

        def zeros(self):
            pass

    return First, Second


FIRST, SECOND = subclasses_of(Cell)
_, OTHER = subclasses_of(OtherCell)


def test_a_line_of_a_base_class_that_stores_a_method_of_each_subclass_is_one_cause():
    assert len(causes_of(lambda: [FIRST(), SECOND()])) == 1


def test_lines_of_two_classes_that_store_an_attribute_of_one_name_are_two_causes():
    assert len(causes_of(lambda: [FIRST(), OTHER()])) == 2
