"""Advice is checked: done as it says, the leak is gone."""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextvars
import functools
import threading
import weakref

import pytest
import torch

from memwatch.heap.roots import SHOWS_CALLBACKS_AT_EXIT
from memwatch.kinds.leaks import Remedy
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.words.leaks import advice

VIEWS, GRAPHS, LOSSES, ENTRIES, FUNCTIONS, ERRORS, OBJECTS = ([] for _ in range(7))
LINEAR = torch.nn.Linear(8, 8)
PARAMETER = torch.nn.Parameter(torch.ones(8))
VARIABLE = contextvars.ContextVar("variable")


def data():
    return torch.ones(64)


def kept_view():
    VIEWS.append(data()[0])


def kept_clone():
    VIEWS.append(data()[0].clone().item())


def kept_view_with_graph():
    GRAPHS.append((torch.ones(64, requires_grad=True) * 2)[0])


def kept_number():
    GRAPHS.append((torch.ones(64, requires_grad=True) * 2)[0].item())


def kept_loss():
    LOSSES.append((torch.ones(64, requires_grad=True) * 2).sum())


def collects():
    found = []
    while True:
        found.append(data())
        yield


def counts():
    found = 0
    while True:
        found += len(data())
        yield


COLLECTING, COUNTING = collects(), counts()


def kept_by_a_generator():
    next(COLLECTING)


def counted_by_a_generator():
    next(COUNTING)


def kept_entry():
    ENTRIES.append(data())


BOUNDED = collections.deque(maxlen=4)


def bounded_entry():
    BOUNDED.append(data())


def hook_on_module():
    mask = data()
    LINEAR.register_forward_hook(lambda module, args, output: output * mask[0])


def hook_removed():
    mask = data()
    handle = LINEAR.register_forward_hook(lambda module, args, output: output * mask[0])
    handle.remove()


def hook_on_parameter():
    mask = data()
    PARAMETER.register_hook(lambda grad: grad * mask[0])


def hook_on_parameter_removed():
    mask = data()
    PARAMETER.register_hook(lambda grad: grad * mask[0]).remove()


class Hooked(torch.nn.Module):
    """Keeps a hook of its own."""

    def __init__(self, hook=None):
        super().__init__()
        self.weight = torch.nn.Parameter(data())
        self.register_load_state_dict_pre_hook(hook or self.check)

    def check(self, *args):
        pass


def hook_of_self():
    Hooked()


def hook_by_function():
    Hooked(lambda module, *args: None)


def hook_of_own_tensor():
    y = torch.ones(64, requires_grad=True).exp()
    y.register_hook(lambda grad: grad * y)


def hook_of_gradient_alone():
    y = torch.ones(64, requires_grad=True).exp()
    y.register_hook(lambda grad: grad * 2)


class Service:
    """A class with a method whose cache is global, and one whose cache is its own."""

    def __init__(self):
        self.weight = data()

    @functools.cache  # noqa: B019 - the leak
    def size(self):
        return len(self.weight)

    @functools.cached_property
    def length(self):
        return len(self.weight)


def cached_method():
    Service().size()


def cached_property():
    _ = Service().length


WEAK_OBJECTS = weakref.WeakSet()


class Listed(Service):
    """Puts itself into a list of all."""

    def __init__(self):
        super().__init__()
        OBJECTS.append(self)


class ListedWeakly(Service):
    """Puts itself into a set that does not keep it."""

    def __init__(self):
        super().__init__()
        WEAK_OBJECTS.add(self)


def registry():
    Listed()


def weak_registry():
    ListedWeakly()


def closure():
    value = data()
    FUNCTIONS.append(lambda: value.sum())


def passed_as_argument():
    FUNCTIONS.append(lambda value: value.sum())


def exception():
    value = data()
    try:
        raise ValueError(len(value))
    except ValueError as error:
        ERRORS.append(error)


def exception_without_traceback():
    value = data()
    try:
        raise ValueError(len(value))
    except ValueError as error:
        ERRORS.append(error.with_traceback(None))


def context_variable():
    VARIABLE.set((VARIABLE.get(None), data()))


def context_variable_reset():
    token = VARIABLE.set((VARIABLE.get(None), data()))
    VARIABLE.reset(token)


def at_exit():
    atexit.register(len, data())


def at_exit_with_a_weak_reference():
    atexit.register(len, weakref.ref(data()))


@pytest.fixture
def busy():
    """Return an executor whose one thread waits."""
    released = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        executor.submit(released.wait)
        yield executor
        released.set()


RULES = [
    (Remedy.VIEW, kept_view, kept_clone),
    (Remedy.VIEW_WITH_GRAPH, kept_view_with_graph, kept_number),
    (Remedy.ITEM, kept_loss, kept_number),
    (Remedy.ITEM, kept_entry, bounded_entry),
    (Remedy.ITEM, kept_by_a_generator, counted_by_a_generator),
    (Remedy.HOOK_PER_CALL, hook_on_module, hook_removed),
    (Remedy.HOOK_PER_CALL, hook_on_parameter, hook_on_parameter_removed),
    (Remedy.HOOK_OF_SELF, hook_of_self, hook_by_function),
    (Remedy.TENSOR_HOOK, hook_of_own_tensor, hook_of_gradient_alone),
    (Remedy.CACHED_METHOD, cached_method, cached_property),
    (Remedy.REGISTRY, registry, weak_registry),
    (Remedy.FUNCTION_PER_CALL, closure, passed_as_argument),
    (Remedy.EXCEPTION, exception, exception_without_traceback),
    (Remedy.CONTEXT_VARIABLE, context_variable, context_variable_reset),
    # from Python 3.14 on, gc shows what atexit keeps
    (
        Remedy.ATEXIT if SHOWS_CALLBACKS_AT_EXIT else Remedy.ARGUMENTS_IN_C,
        at_exit,
        at_exit_with_a_weak_reference,
    ),
]


@pytest.fixture(autouse=True)
def _tidy():
    torch.set_num_threads(1)
    yield
    for kept in (VIEWS, GRAPHS, LOSSES, ENTRIES, FUNCTIONS, ERRORS, OBJECTS, BOUNDED):
        kept.clear()
    LINEAR._forward_hooks.clear()
    PARAMETER._backward_hooks = None
    Service.size.cache_clear()
    VARIABLE.set(None)
    atexit.unregister(len)


def test_a_leak_is_gone_when_its_advice_is_taken():
    """Each leak gets the advice of its mechanism, with the graph only where there is one; mended, none is left.

    All programs run in one call: the heap is searched once.
    """
    leaks = find_leaks(lambda: [leak() for _, leak, _ in RULES] and None)
    by_advice = {leak.advice: leak for leak in leaks}
    for remedy, _, _ in RULES:
        assert {advice(remedy), advice(remedy, with_graph=True)} & by_advice.keys(), remedy
    assert len(leaks) == len(RULES), "\n".join(map(str, leaks))
    for leak in leaks:
        assert (".detach()" in leak.advice) <= leak.keeps_graph, str(leak)
    mended = find_leaks(lambda: [mended() for _, _, mended in RULES] and None, warmup=4)
    assert [str(leak) for leak in mended] == []


def test_calls_that_wait_in_an_executor(busy):
    """A waiting call keeps its arguments. After its future is cancelled, they live until the queue drops it."""
    first = find_leaks(lambda: busy.submit(len, data()) and None)[0]
    assert first.advice == advice(Remedy.EXECUTOR), str(first)
    with concurrent.futures.ThreadPoolExecutor(1) as idle:
        assert find_leaks(lambda: idle.submit(len, data()).result() and None) == []


def test_a_clone_keeps_its_own_bytes_alone():
    """Detached, a view keeps all of its storage; cloned, only what it shows."""

    def both():
        VIEWS.append(data()[:2].detach())
        ENTRIES.append(data()[:2].clone())

    leaks = find_leaks(both)
    assert [leak.nbytes for leak in leaks] == [256, 8]


def test_a_hook_elsewhere_on_the_path_is_not_blamed():
    """The tensor of an object that refers to itself has a hook that is innocent."""

    def cycle():
        node = Service()
        node.me = node
        node.weight.requires_grad_().register_hook(lambda grad: grad * 2)

    [leak] = find_leaks(cycle)
    assert leak.advice == advice(Remedy.ATTRIBUTE_IN_CYCLE)


def test_torchs_wrapper_of_a_hook_is_looked_through():
    """The reference to cut is the bound method that the program registered, whatever torch wraps it in."""
    [leak] = find_leaks(hook_of_self)
    assert (leak.cut.kind.name, leak.cut.owner.inner.name) == ("BOUND_SELF", "Hooked.check")


def test_what_a_hook_from_before_the_pass_collects_goes_with_its_handle():
    """One pass does not show that its list grows, so the advice names the hook."""

    def registered():
        saved = []
        return PARAMETER.register_hook(lambda grad: saved.append(data()))

    handle = registered()
    with pytest.raises(TensorLeakError) as error, check_leaks():
        PARAMETER.sum().backward()
    assert [leak.advice for leak in error.value.leaks] == [advice(Remedy.MODULE_HOOK)]
    with check_leaks():
        PARAMETER.sum().backward()
        handle.remove()


def test_a_hook_that_collects_is_removed_by_its_handle():
    """The lists that the hooks of earlier calls fill grow too. The handles end both, so it is one leak."""
    handles = []

    def collecting():
        saved = []
        handles.append(LINEAR.register_forward_hook(lambda *args: saved.append(data())))
        handles.append(PARAMETER.register_hook(lambda grad: saved.append(data())))
        LINEAR(torch.ones(8))
        PARAMETER.sum().backward()

    def removing():
        collecting()
        for handle in handles:
            handle.remove()
        handles.clear()

    collecting()
    leaks = find_leaks(collecting, runs=2)
    assert {leak.advice for leak in leaks} == {advice(Remedy.HOOK_PER_CALL)}
    assert find_leaks(removing, runs=2) == []


def test_numbers_of_an_ordered_dictionary_are_no_hooks():
    """A table of the program's own may have numbers as keys."""
    table = collections.OrderedDict()

    def fill(table):
        table[len(table)] = data()

    [leak] = find_leaks(fill, table, runs=2)
    assert leak.advice == advice(Remedy.VALUE)


FEATURES: dict[str, torch.Tensor] = {}


def kept_features(*, keep):
    FEATURES["layer1"] = data()
    if keep:
        ENTRIES.append(FEATURES["layer1"])


def test_a_list_of_all_is_told_rather_than_the_name_of_the_last():
    """A dictionary has the latest value under one name, a list has every one: the list leaks."""
    kept_features(keep=True)
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        kept_features(keep=True)
    [leak] = caught.value.leaks
    assert "ENTRIES" in leak.holder
    ENTRIES.clear()
    with check_leaks():
        kept_features(keep=False)
    FEATURES.clear()


BY_USER: dict[str, torch.Tensor] = {}


def kept_for(user, *, keep):
    FEATURES["last"] = data()
    if keep:
        BY_USER[user] = FEATURES["last"]


def test_a_table_with_older_entries_is_told_rather_than_a_slot():
    """Whatever the texts of the keys: the table has an older entry beside, the slot has none."""
    kept_for("alice", keep=True)
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        kept_for("bob", keep=True)
    [leak] = caught.value.leaks
    assert "BY_USER" in leak.holder
    BY_USER.clear()
    with check_leaks():
        kept_for("carol", keep=False)
    FEATURES.clear()


LAYER = torch.nn.Linear(8, 8)


class Trainer:
    average = 0.0


def averaged(*, detach):
    loss = LAYER(torch.randn(4, 8)).square().mean()
    Trainer.average = 0.9 * Trainer.average + 0.1 * (loss.detach() if detach else loss)


def test_of_a_moving_average_with_its_graph_the_graph_alone_is_told():
    """The newest value is not part of the growth, and to detach it is the whole remedy."""
    averaged(detach=False)
    [leak] = find_leaks(lambda: averaged(detach=False))
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        averaged(detach=False)
    added_bytes = 2 * 4 * 8 * 4 + 2 * 8  # two activations of float32, and the two factors as float64
    assert {leak.nbytes, caught.value.leaks[0].nbytes} == {added_bytes}
    assert {leak.advice, caught.value.leaks[0].advice} == {advice(Remedy.GRAPH)}
    Trainer.average = 0.0
    averaged(detach=True)
    assert find_leaks(lambda: averaged(detach=True)) == []
