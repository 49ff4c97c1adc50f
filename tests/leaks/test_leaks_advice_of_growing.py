"""The advice is about the reference that grows: taken literally, it ends the leak."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import functools
import io
import itertools
import pickle
import sys
import types
import weakref

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import find_leaks
from memwatch.words.leaks import advice


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def data():
    return torch.ones(64)


def advice_of(step):
    """Return the remedies whose advice the leaks of a step get."""
    given = [leak.advice for leak in find_leaks(step)]
    return [
        [
            remedy
            for remedy in Remedy
            if text in (advice(remedy), advice(remedy, of_objects=True), advice(remedy, name="before"))
        ]
        for text in given
    ]


class Trial:
    """A model with its optimizer, which has stepped once."""

    def __init__(self):
        self.model = nn.Linear(8, 8)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model(torch.ones(1, 8)).sum().backward()
        self.optimizer.step()


class Averaged(torch.optim.Optimizer):
    """Has two parameters, and keeps in its state all gradients, or the last ones."""

    def __init__(self, most):
        self.layer = nn.Linear(8, 64)
        self.most = most
        super().__init__(self.layer.parameters(), {})

    def step(self):
        self.zero_grad()
        self.layer(torch.ones(1, 8)).sum().backward()
        for group in self.param_groups:
            for parameter in group["params"]:
                history = self.state[parameter].setdefault("gradients", [])
                history.append(parameter.grad.clone())
                del history[: -self.most]


def test_a_list_of_trials_is_to_be_limited_and_their_optimizers_are_not_to_be_edited():
    trials, last = [], []

    def keeps():
        trials.append({"score": 1.0, "trial": Trial()})

    def keeps_the_last():
        last[:] = [{"score": 1.0, "trial": Trial()}]

    assert advice_of(keeps) == [[Remedy.ITEM]]
    assert find_leaks(keeps_the_last) == []


def test_a_list_in_the_state_of_an_optimizer_is_to_be_limited():
    grows, slides = Averaged(1000), Averaged(2)
    assert advice_of(grows.step) == [[Remedy.ITEM]]
    assert find_leaks(slides.step, warmup=4) == []


def test_state_of_parameters_that_calls_replace_is_to_be_deleted():
    trial = Trial()

    def replace(*, forget):
        [group] = trial.optimizer.param_groups
        old, new = trial.model.weight, nn.Parameter(torch.ones(8, 8))
        trial.model.weight = new
        group["params"] = [new if each is old else each for each in group["params"]]
        if forget:
            trial.optimizer.state.pop(old, None)
        trial.model(torch.ones(1, 8)).sum().backward()
        trial.optimizer.step()

    assert advice_of(lambda: replace(forget=False)) == [[Remedy.OPTIMIZER_STATE]]
    trial.__init__()
    assert find_leaks(lambda: replace(forget=True)) == []


class Plain:
    """A key that a weak reference can refer to."""


class Slotted:
    """A key that no weak reference can refer to."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Spec:
    """A key that a weak reference can refer to, and that equals other objects."""

    number: int


class Asked(type):
    """A metaclass that must not be asked for the methods of its classes."""

    def __getattribute__(cls, name):
        if name in ("__eq__", "__hash__", "__weakrefoffset__"):
            raise AssertionError(name)
        return super().__getattribute__(name)


class OfMetaclass(metaclass=Asked):
    """A key whose class has a metaclass with code."""


@pytest.mark.parametrize(
    ("make_key", "remedy"),
    [
        (lambda table: len(table), Remedy.VALUE),
        (lambda table: str(len(table)), Remedy.VALUE),
        (lambda table: (len(table), "validation"), Remedy.VALUE),
        (lambda _: Slotted(), Remedy.VALUE),
        (lambda table: range(len(table)), Remedy.VALUE),
        (lambda table: numpy.int64(len(table)), Remedy.VALUE),
        (lambda table: datetime.date.fromordinal(len(table) + 1), Remedy.VALUE),
        (lambda table: Spec(len(table)), Remedy.VALUE),
        (lambda _: OfMetaclass(), Remedy.VALUE_OF_OBJECTS),
        (lambda _: Plain(), Remedy.VALUE_OF_OBJECTS),
        (lambda _: torch.ones(3), Remedy.VALUE_OF_TENSORS),
    ],
    ids=[
        *("number", "text", "tuple", "slots", "range", "scalar", "date", "dataclass"),
        *("metaclass", "object", "tensor"),
    ],
)
def test_the_advice_for_a_dictionary_depends_on_its_keys(make_key, remedy):
    table = {}

    def step():
        table[make_key(table)] = data()

    assert {given for [given] in advice_of(step)} == {remedy}

    def deletes():
        key = make_key(table)
        table[key] = data()
        del table[key]

    assert find_leaks(deletes) == []


def memo(table, key_of):
    """Return a function that looks up its result, and a step that calls it."""

    def inner(x):
        key = key_of(x)
        if key not in table:
            table[key] = x * 2
        return table[key]

    return lambda: inner(torch.ones(3)) is None


def test_a_key_that_equals_others_is_not_to_be_weak():
    """A lookup with a new equal object finds nothing, because the entry went with the first one."""
    table, weak = {}, weakref.WeakKeyDictionary()
    table[Spec(1)] = weak[Spec(1)] = 1
    assert Spec(1) in table
    assert Spec(1) not in weak
    for key in (range(1), numpy.int64(1), datetime.date(2000, 1, 1)):
        with pytest.raises(TypeError, match="weak reference"):
            weak[key] = 1


def test_a_table_with_tensors_as_keys_is_to_have_keys_that_come_again():
    """A `WeakKeyDictionary` raises RuntimeError: it compares the tensors."""
    assert {each for [each] in advice_of(memo({}, lambda x: x))} == {Remedy.VALUE_OF_TENSORS}
    assert find_leaks(memo({}, lambda x: tuple(x.shape))) == []
    tensor, weak = torch.ones(3), weakref.WeakKeyDictionary()
    weak[tensor] = 1
    with pytest.raises(RuntimeError, match="ambiguous"):
        weak.get(tensor)


class Pruner:
    """Wraps a dataset anew for each epoch: the one of the epoch before, or the original one."""

    def __init__(self, *, from_original):
        self.original = self.before = TensorDataset(torch.randn(256, 8))
        self.from_original = from_original

    def prune(self):
        indices = torch.arange(len(self.before) - 1)
        self.before = Subset(self.original if self.from_original else self.before, indices)


def test_a_dataset_is_to_be_made_from_the_original_one():
    """The new one reads through the older ones, so their attribute cannot be deleted."""
    [leak] = find_leaks(Pruner(from_original=False).prune)
    assert leak.advice == advice(Remedy.CHAIN, name="dataset")
    assert "from the original one" in leak.advice
    assert find_leaks(Pruner(from_original=True).prune) == []


class Queue:
    """Runs functions later."""

    def __init__(self):
        self.actions = []

    def run(self):
        while self.actions:
            self.actions.pop()()


def test_partials_are_to_be_removed_after_they_have_run():
    """A partial with a weak reference finds no tensor when it runs."""
    queue = Queue()

    def step(*, run):
        queue.actions.append(functools.partial(torch.sum, data()))
        if run:
            queue.run()

    assert advice_of(lambda: step(run=False)) == [[Remedy.PARTIAL_PER_CALL]]
    assert find_leaks(lambda: step(run=True)) == []


class Timer:
    """Sets a function for the interpreter to call, and knows the one that was set before."""

    def __init__(self, *, put_back):
        self.previous, self.put_back, self.reference = sys.getprofile(), put_back, data()

    def __enter__(self):
        sys.setprofile(self.call)

    def __exit__(self, *_error):
        if self.put_back:
            sys.setprofile(self.previous)

    def call(self, *_event):
        pass


def test_a_method_that_keeps_the_method_before_it_is_to_be_put_back():
    """A weak reference to the method is dead when the new one needs it."""

    def step(*, put_back):
        with Timer(put_back=put_back):
            torch.ones(1)

    before = sys.getprofile()
    try:
        assert advice_of(lambda: step(put_back=False)) == [[Remedy.WRAPPERS]]
    finally:
        sys.setprofile(before)
    assert find_leaks(lambda: step(put_back=True)) == []


def test_a_pickler_is_to_clear_its_memo():
    pickler = pickle.Pickler(io.BytesIO())

    def step(*, clear):
        pickler.dump({"image": torch.ones(64)})
        if clear:
            pickler.clear_memo()

    assert advice_of(lambda: step(clear=False)) == [[Remedy.PICKLER]]
    pickler.clear_memo()
    assert find_leaks(lambda: step(clear=True)) == []


def test_a_branch_of_tee_that_lags_is_to_be_deleted():
    train, preview = itertools.tee(data() for _ in itertools.count())
    next(preview)
    assert advice_of(lambda: next(train) is None) == [[Remedy.TEE]]
    del preview
    assert find_leaks(lambda: next(train) is None) == []


@pytest.mark.parametrize("lagging", range(3))
def test_the_branch_of_tee_that_lags_is_named(lagging):
    """The other branches refer to the same block of items, and have read them."""
    branches = types.SimpleNamespace()
    branches.ends = dict(zip("abc", itertools.tee((data() for _ in itertools.count()), 3), strict=True))
    names = ["a", "b", "c"]
    late = names.pop(lagging)
    [leak] = find_leaks(lambda: [next(branches.ends[name]) for name in names] == [])
    assert f"value of key '{late}' of dict of 3" in leak.holder
    del branches.ends[late]
    assert find_leaks(lambda: [next(branches.ends[name]) for name in names] == []) == []


SEEN = []
BY_IMAGE = weakref.WeakKeyDictionary()


def test_the_list_that_keeps_the_weak_keys_is_named():
    def step(*, drop):
        image = Plain()
        SEEN.append(image)
        BY_IMAGE[image] = data()
        if drop:
            SEEN.pop()

    [leak] = find_leaks(lambda: step(drop=False))
    assert leak.advice == advice(Remedy.KEPT_KEYS, name=f"global `SEEN` of module {__name__}")
    SEEN.clear()
    assert find_leaks(lambda: step(drop=True)) == []


def test_a_value_that_refers_to_its_weak_key_is_to_refer_weakly():
    """No other object keeps the key."""
    features = weakref.WeakKeyDictionary()

    def step(refer):
        image = Plain()
        features[image] = refer(image), data()

    assert advice_of(lambda: step(lambda image: image)) == [[Remedy.WEAK_KEYS]]
    assert find_leaks(lambda: step(weakref.ref)) == []


class Metric(nn.Module):
    """Collects values in a list."""

    def __init__(self):
        super().__init__()
        self.values = []


def test_a_list_of_modules_to_which_calls_add_is_to_be_limited():
    """Each has a list, which has a few tensors for ever."""
    tracker, metric = nn.ModuleList(), Metric()

    def step(*, remove):
        tracker.append(copy.deepcopy(metric))
        tracker[-1].values += [data(), data()]
        if remove:
            del tracker[-1]

    assert advice_of(lambda: step(remove=False)) == [[Remedy.SUBMODULE]]
    assert find_leaks(lambda: step(remove=True)) == []


def test_the_line_of_the_tensor_on_the_path_is_shown():
    """The record has another tensor at the same distance."""
    history = []

    def step():
        small = torch.ones(1)
        large = torch.ones(1000)
        history.append({"loss": small, "weights": large})

    [leak] = find_leaks(step)
    assert leak.path[-1].startswith("value of key 'weights'")
    assert leak.tensor == "Tensor [1000] float32"
    assert find_leaks(lambda: history.clear()) == []
