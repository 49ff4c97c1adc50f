"""More advice that is checked by taking it: on tables, names and classes that grow, on loops of containers."""

from __future__ import annotations

import builtins
import collections
import functools
import io
import itertools
import pickle
import queue
import sys
import threading
import types
import weakref
from unittest import mock

import pytest
import torch

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.words.leaks import advice

NUMBERS = itertools.count()
TABLE, BY_IMAGE, WEAK_BY_IMAGE = {}, {}, weakref.WeakKeyDictionary()
MEMBERS, PLUGINS, METHODS, PARTIALS, HISTORY = set(), [], [], [], []
LAYERS = torch.nn.ModuleDict()
OPTIMIZER = None
SETTINGS = types.ModuleType("settings")


def data():
    return torch.ones(64)


class Image:
    """An object that tables may be keyed by."""

    def __init__(self):
        self.pixels = data()
        self.me = None


class Runs:
    """Has results as attributes of the class."""


def entry():
    TABLE[next(NUMBERS)] = data()


def entry_deleted():
    key = next(NUMBERS)
    TABLE[key] = data()
    del TABLE[key]


def descriptor():
    BY_IMAGE[Image()] = data()


def descriptor_with_weak_keys():
    WEAK_BY_IMAGE[Image()] = data()


class Statistics:
    """Refers to the image that it is about."""

    def __init__(self, image):
        self.image, self.histogram = image, data()


def value_with_its_key():
    image = Image()
    WEAK_BY_IMAGE[image] = Statistics(image)


def value_with_a_weak_key():
    image = Image()
    WEAK_BY_IMAGE[image] = Statistics(weakref.ref(image))


class Request:
    """Has two views of one storage, which together show most of it."""

    def __init__(self):
        _, self.key, self.value = torch.ones(96).chunk(3)


def requests():
    TABLE[next(NUMBERS)] = Request()


def requests_deleted():
    key = next(NUMBERS)
    TABLE[key] = Request()
    del TABLE[key]


def member():
    MEMBERS.add(Image())


def member_discarded():
    image = Image()
    MEMBERS.add(image)
    MEMBERS.discard(image)


def registered_class():
    PLUGINS.append(type("Plugin", (), {"weights": data()}))


PLUGIN = type("Plugin", (), {"weights": data()})


def registered_class_made_once():
    if PLUGIN not in PLUGINS:
        PLUGINS.append(PLUGIN)


def class_attribute():
    setattr(Runs, f"result_{next(NUMBERS)}", data())


def class_attribute_on_an_instance():
    runs = Runs()
    runs.result = data()


def class_attribute_deleted():
    name = f"result_{next(NUMBERS)}"
    setattr(Runs, name, data())
    delattr(Runs, name)


def submodule():
    LAYERS[str(next(NUMBERS))] = torch.nn.Linear(4, 4)


def submodule_deleted():
    name = str(next(NUMBERS))
    LAYERS[name] = torch.nn.Linear(4, 4)
    del LAYERS[name]


def global_name():
    setattr(SETTINGS, f"mask_{next(NUMBERS)}", data())


def global_name_deleted():
    name = f"mask_{next(NUMBERS)}"
    setattr(SETTINGS, name, data())
    delattr(SETTINGS, name)


def bound_method():
    METHODS.append(Image().__init__)


def weak_method():
    METHODS.append(weakref.WeakMethod(Image().__init__))


def partial():
    PARTIALS.append(functools.partial(print, data()))


def partial_removed_after_it_has_run():
    PARTIALS.append(functools.partial(len, data()))
    PARTIALS.pop()()


def partial_under_a_new_name():
    setattr(SETTINGS, f"on_end_{next(NUMBERS)}", functools.partial(print, data()))


def partial_of_a_weak_reference():
    image = Image()
    setattr(SETTINGS, f"on_end_{next(NUMBERS)}", functools.partial(print, weakref.ref(image)))


def state_of_a_replaced_parameter(*, delete):
    parameter = torch.nn.Parameter(data())
    OPTIMIZER.param_groups[0]["params"] = [parameter]
    parameter.sum().backward()
    OPTIMIZER.step()
    if delete:
        del OPTIMIZER.state[parameter]
    OPTIMIZER.param_groups[0]["params"] = []


def gradient_with_its_graph():
    weight = torch.ones(64, requires_grad=True)
    (weight**3).sum().backward(create_graph=True)


def gradient_by_grad():
    weight = torch.ones(64, requires_grad=True)
    torch.autograd.grad((weight**3).sum(), weight, create_graph=True)


def list_in_itself():
    ring = [data()]
    ring.append(ring)


def list_in_itself_cleared():
    ring = [data()]
    ring.append(ring)
    ring.clear()


def dictionary_in_itself():
    tree = {"value": data()}
    tree["root"] = tree


def dictionary_in_itself_without_the_entry():
    tree = {"value": data()}
    tree["root"] = tree
    del tree["root"]


def object_in_itself():
    image = Image()
    image.me = image


def object_in_itself_by_a_weak_reference():
    image = Image()
    image.me = weakref.ref(image)


def module_in_itself():
    module = types.ModuleType("made")
    module.value, module.me = data(), module


def module_in_itself_without_the_name():
    module = types.ModuleType("made")
    module.value, module.me = data(), module
    del module.me


SLICES = {}


def growing_tensor():
    SLICES["kept"] = torch.cat([SLICES["kept"], torch.ones(4, 8)])


def growing_tensor_cut():
    SLICES["cut"] = torch.cat([SLICES["cut"], torch.ones(4, 8)])[-64:].clone()


def iterator():
    globals()[f"source_{next(NUMBERS)}"] = itertools.repeat(data())


def iterator_dropped():
    globals()["source"] = itertools.repeat(data())
    del globals()["source"]


class Prefetcher(threading.Thread):
    """Runs on, and has a list that grows, or a window."""

    def __init__(self, batches):
        super().__init__(daemon=True)
        self.batches, self.asked, self.given = batches, queue.SimpleQueue(), queue.SimpleQueue()
        self.start()

    def run(self):
        while self.asked.get():
            self.batches.append(data())
            self.given.put(True)

    def give(self):
        self.asked.put(True)
        self.given.get()


def shown_in_the_shell():
    builtins._ = (getattr(builtins, "_", None), data())


def evaluated_something_else():
    builtins._ = data().sum().item()


def arrays():
    HISTORY.append(data().numpy())


def numbers():
    HISTORY.append(data().numpy().mean().item())


RULES = [
    (Remedy.VALUE, entry, entry_deleted),
    (Remedy.VALUE_OF_OBJECTS, descriptor, descriptor_with_weak_keys),
    (Remedy.VALUE, requests, requests_deleted),
    (Remedy.WEAK_KEYS, value_with_its_key, value_with_a_weak_key),
    (Remedy.MEMBER, member, member_discarded),
    (Remedy.CLASS_PER_CALL, registered_class, registered_class_made_once),
    (Remedy.CLASS_ATTRIBUTE, class_attribute, class_attribute_on_an_instance),
    (Remedy.CLASS_ATTRIBUTE, class_attribute, class_attribute_deleted),
    (Remedy.SUBMODULE, submodule, submodule_deleted),
    (Remedy.GLOBAL, global_name, global_name_deleted),
    (Remedy.BOUND_METHOD, bound_method, weak_method),
    (Remedy.PARTIAL_PER_CALL, partial, partial_removed_after_it_has_run),
    (Remedy.PARTIAL, partial_under_a_new_name, partial_of_a_weak_reference),
    (
        Remedy.OPTIMIZER_STATE,
        functools.partial(state_of_a_replaced_parameter, delete=False),
        functools.partial(state_of_a_replaced_parameter, delete=True),
    ),
    (Remedy.GRADIENT, gradient_with_its_graph, gradient_by_grad),
    (Remedy.ITEM_IN_CYCLE, list_in_itself, list_in_itself_cleared),
    (Remedy.VALUE_IN_CYCLE, dictionary_in_itself, dictionary_in_itself_without_the_entry),
    (Remedy.ATTRIBUTE_IN_CYCLE, object_in_itself, object_in_itself_by_a_weak_reference),
    (Remedy.GLOBAL_IN_CYCLE, module_in_itself, module_in_itself_without_the_name),
    (Remedy.GROWING_TENSOR, growing_tensor, growing_tensor_cut),
    (Remedy.NUMPY, arrays, numbers),
    (Remedy.ITERATOR, iterator, iterator_dropped),
    (Remedy.SHELL_RESULT, shown_in_the_shell, evaluated_something_else),
]


@pytest.fixture(autouse=True, scope="module")
def _optimizer():
    """Make it before the first test, not at import: torch imports its compiler then."""
    global OPTIMIZER  # noqa: PLW0603
    OPTIMIZER = torch.optim.SGD([torch.nn.Parameter(torch.ones(8))], lr=0.1, momentum=0.9)


@pytest.fixture(autouse=True)
def _tidy():
    torch.set_num_threads(1)
    SLICES.update(kept=torch.ones(64, 8), cut=torch.ones(64, 8))
    yield
    for kept in (
        TABLE,
        BY_IMAGE,
        WEAK_BY_IMAGE,
        MEMBERS,
        PLUGINS,
        METHODS,
        PARTIALS,
        HISTORY,
        LAYERS,
        SLICES,
    ):
        kept.clear()
    OPTIMIZER.state.clear()
    for name in [name for name in vars(Runs) if name.startswith("result_")]:
        delattr(Runs, name)
    SETTINGS.__dict__.clear()
    for name in [name for name in globals() if name.startswith("source_")]:
        del globals()[name]
    vars(builtins).pop("_", None)
    vars(sys).pop("last_traceback", None)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("rules", [RULES[first::4] for first in range(4)], ids=range(4))
def test_a_leak_is_gone_when_its_advice_is_taken(rules):
    """Each leak gets the advice of its mechanism; mended as it says, none is left. One search finds several."""
    leaks = find_leaks(lambda: [leak() for _, leak, _ in rules] and None)
    given = collections.Counter(leak.advice for leak in leaks)
    for remedy, _, _ in rules:
        assert {advice(remedy), advice(remedy, with_graph=True)} & given.keys(), f"{remedy}: {given}"
    mended = find_leaks(lambda: [mended() for _, _, mended in rules] and None, warmup=4)
    assert [str(leak) for leak in mended] == []


def test_a_list_that_a_closure_captured_before_the_calls_is_the_list_that_grows():
    """The function of the calls captures it. To delete that variable would end the program, not the leak."""
    kept, window = [], collections.deque(maxlen=2)
    [leak] = find_leaks(lambda: kept.append(data()))
    assert leak.advice == advice(Remedy.ITEM)
    assert find_leaks(lambda: window.append(data())) == []


def test_of_functions_in_a_list_the_list_that_grows_is_named():
    functions = []

    def keeps_a_function():
        value = data()
        functions.append(lambda: value)

    def empties_the_list():
        keeps_a_function()
        functions.clear()

    [leak] = find_leaks(keeps_a_function)
    assert leak.advice == advice(Remedy.FUNCTION_PER_CALL)
    assert find_leaks(empties_the_list) == []


def test_of_a_function_under_a_new_name_the_captured_variable_is_named():
    names = types.SimpleNamespace()

    def keeps_a_function():
        value = data()
        setattr(names, f"callback_{next(NUMBERS)}", lambda: value)

    def passes_an_argument():
        setattr(names, f"callback_{next(NUMBERS)}", lambda value: value)

    [leak] = find_leaks(keeps_a_function)
    assert leak.advice == advice(Remedy.CLOSURE_CELL)
    assert find_leaks(passes_an_argument) == []


class Channel:
    """Sends objects with one pickler, whose memo keeps each of them."""

    def __init__(self):
        self.stream = io.BytesIO()
        self.pickler = pickle.Pickler(self.stream)

    def send(self, message):
        self.pickler.dump(message)
        self.stream.seek(0)


class Message:
    def __init__(self):
        self.payload = data()

    def __getstate__(self):
        return {"length": 64}


def test_a_pickler_that_collects_is_to_clear_its_memo():
    """The attribute of what it collects is one of many."""
    channel = Channel()
    [leak] = find_leaks(lambda: channel.send(Message()))
    assert leak.advice == advice(Remedy.PICKLER)

    def send_alone():
        channel.send(Message())
        channel.pickler.clear_memo()

    assert find_leaks(send_alone) == []


class Noted:
    """Keeps values in a tuple, which each call replaces, as `torch.nn.utils.prune` keeps its masks."""

    def __init__(self, values):
        self.values = values

    def __call__(self, *args):
        return None


class Pruned:
    def __init__(self):
        self.layer = torch.nn.Linear(4, 4)
        self.hook(())

    def hook(self, values):
        self.layer._forward_pre_hooks.clear()
        self.layer.register_forward_pre_hook(Noted(values))

    def values(self):
        [noted] = self.layer._forward_pre_hooks.values()
        return noted.values


def test_of_a_hook_that_each_call_replaces_it_is_the_tuple_behind_it_that_grows():
    """The table has one hook, so none was forgotten."""
    grows, has_one = Pruned(), Pruned()

    [leak] = find_leaks(lambda: grows.hook((*grows.values(), data())))
    assert leak.advice == advice(Remedy.ITEM)
    assert find_leaks(lambda: has_one.hook((data(),))) == []


def save(table, key, _module, _args, out):
    table[key(table)] = out.detach()


def test_of_a_partial_that_got_a_table_before_the_calls_it_is_the_table_that_grows():
    """To drop the partial, or to remove the hook, would end the program's work."""
    layer = torch.nn.Linear(4, 64)

    def step(key):
        if not layer._forward_hooks:
            layer.register_forward_hook(functools.partial(save, {}, key))
        layer(torch.ones(1, 4))

    [leak] = find_leaks(step, len)
    assert leak.advice == advice(Remedy.VALUE)
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        step(len)
    assert [leak.advice for leak in caught.value.leaks] == [advice(Remedy.VALUE)]
    layer._forward_hooks.clear()
    assert find_leaks(step, lambda table: "last") == []


def test_of_a_thread_that_runs_on_it_is_the_list_that_grows():
    """It need not end: its list is to be bounded."""
    keeps, slides = Prefetcher([]), Prefetcher(collections.deque(maxlen=2))
    [leak] = find_leaks(keeps.give)
    assert leak.advice == advice(Remedy.ITEM)
    assert find_leaks(slides.give) == []
    for prefetcher in (keeps, slides):
        prefetcher.asked.put(False)
        prefetcher.join()


def test_the_last_error_of_a_shell_is_dropped_as_told():
    """By the names that the interpreter gave it."""

    def fail(*, delete):
        value = data()
        try:
            raise ValueError(len(value))
        except ValueError as error:
            sys.last_traceback = error.__traceback__
        if delete:
            del sys.last_traceback

    with pytest.raises(TensorLeakError) as caught, check_leaks():
        fail(delete=False)
    assert caught.value.leaks[0].advice == advice(Remedy.LAST_EXCEPTION)
    with check_leaks():
        fail(delete=True)


def test_what_a_shell_displayed_is_reset_as_told(monkeypatch):
    """Its history keeps each value."""
    monkeypatch.setattr("memwatch.heap.shapes.in_interactive_shell", lambda: True)
    SETTINGS.Out = {}
    [leak] = find_leaks(lambda: SETTINGS.Out.setdefault(next(NUMBERS), data()), runs=2)
    assert leak.advice == advice(Remedy.OUTPUT_HISTORY)

    def reset():
        SETTINGS.Out[next(NUMBERS)] = data()
        SETTINGS.Out.clear()

    assert find_leaks(reset, runs=2) == []


def test_ipython_alone_is_told_to_end_the_line_with_a_semicolon(monkeypatch):
    """A semicolon hides the value from IPython. Elsewhere it changes nothing."""

    def shown(*, hidden):
        value = data()
        if not hidden:
            builtins._ = (getattr(builtins, "_", None), value)

    [leak] = find_leaks(lambda: shown(hidden=False))
    assert leak.advice == advice(Remedy.SHELL_RESULT)
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    [leak] = find_leaks(lambda: shown(hidden=False))
    assert leak.advice == advice(Remedy.SHELL_RESULT)
    ipython.get_ipython = object
    [leak] = find_leaks(lambda: shown(hidden=False))
    assert leak.advice == advice(Remedy.IPYTHON_RESULT)
    assert find_leaks(lambda: shown(hidden=True)) == []


def test_a_mock_is_reset_as_told():
    """Nobody can edit the loop that it is; what it remembers of its calls can be dropped."""

    def called(*, reset):
        model = mock.MagicMock()
        model(data())
        if reset:
            model.reset_mock()

    [leak] = find_leaks(lambda: called(reset=False))
    assert leak.advice == advice(Remedy.MOCK)
    assert find_leaks(lambda: called(reset=True)) == []
