"""A leak names the lines that register its hooks, that add modules, and that make an object from the one before."""

from __future__ import annotations

import bisect
import contextlib
import functools
import heapq
import importlib.util
import itertools

import pytest
import torch
from torch import nn

from memwatch.leaks import find_leaks

LAYER = nn.Linear(8, 8)
NUMBERS = itertools.count()
KEPT: list[contextlib.ExitStack] = []


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    LAYER._forward_hooks.clear()
    LAYER._forward_pre_hooks.clear()


def made():
    return torch.ones(64)


def program(tmp_path, name, text, **names):
    """Import a program and return its module."""
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    spec.loader.exec_module(module)
    return module


def note(_module, _args, _output):
    pass


def other(_module, _args):
    pass


class Monitor:
    def __init__(self, module):
        self.last = made()
        module.register_forward_hook(self.look)

    def look(self, _module, _args, _output):
        pass


class OtherMonitor:
    def __init__(self, module):
        self.handle = module.register_forward_hook(self.look)

    def look(self, _module, _args, _output):
        pass


def of_a_function():
    LAYER.register_forward_hook(note)
    LAYER.register_forward_pre_hook(other).remove()


def of_a_method():
    Monitor(LAYER)


class Watch:
    def see(self, _module, _args, _output):
        pass


class Viewer:
    def look(self, _module, _args, _output):
        pass


def of_a_method_of_another_object():
    watch = Watch()
    LAYER.register_forward_hook(watch.see)


def of_a_method_of_an_unknown_object():
    """Three classes have a method of this name, so the line may be about another one of them."""
    viewer = Viewer()
    LAYER.register_forward_hook(viewer.look)


def of_an_inner_function():
    kept = made()

    def hook(_module, _args, _output):
        assert kept is not None

    LAYER.register_forward_hook(hook)


def of_a_lambda():
    LAYER.register_forward_hook(lambda *_args: None)


def of_a_lambda_on_its_own_line():
    LAYER.register_forward_pre_hook(
        lambda *_args: None,
    ).remove()
    LAYER.register_forward_hook(
        lambda *_args: None,
    )


def of_a_partial_on_its_own_line():
    LAYER.register_forward_hook(
        functools.partial(
            lambda *_args: None,
            made(),
        )
    )


def noted(_module, _args, _output):
    pass


def of_a_block():
    with LAYER.register_forward_hook(noted):
        LAYER(torch.ones(1, 8))
    with torch.no_grad(), LAYER.register_forward_hook(noted) as _handle:
        LAYER(torch.ones(1, 8))
    LAYER.register_forward_hook(noted)


def stacked(_module, _args, _output):
    pass


def of_an_exit_stack():
    with contextlib.ExitStack() as stack:
        stack.enter_context(LAYER.register_forward_hook(stacked))
        LAYER(torch.ones(1, 8))
    with contextlib.ExitStack() as given_away:
        given_away.enter_context(LAYER.register_forward_hook(stacked))
        KEPT.append(given_away.pop_all())


def of_a_partial():
    kept = made()
    LAYER.register_forward_pre_hook(functools.partial(with_more, kept))


def with_more(_kept, _module, _args):
    pass


def register(module, note):
    module.register_forward_hook(note)


def given(_module, _args, _output):
    pass


def of_an_argument():
    """The line of `register` may register any function."""
    register(LAYER, given)


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (of_a_function, "in of_a_function: `LAYER.register_forward_hook(note)`"),
        (of_a_method, "in __init__: `module.register_forward_hook(self.look)`"),
        (of_a_method_of_another_object, "`LAYER.register_forward_hook(watch.see)`"),
        (of_a_method_of_an_unknown_object, ""),
        (of_an_inner_function, "in of_an_inner_function: `LAYER.register_forward_hook(hook)`"),
        (of_a_lambda, "in of_a_lambda: `LAYER.register_forward_hook(lambda *_args: None)`"),
        (of_a_lambda_on_its_own_line, "in of_a_lambda_on_its_own_line: `LAYER.register_forward_hook( ...`"),
        (of_a_partial_on_its_own_line, "in of_a_partial_on_its_own_line: `LAYER.register_forward_hook( ...`"),
        (of_a_block, "in of_a_block: `LAYER.register_forward_hook(noted)`"),
        (of_an_exit_stack, "in of_an_exit_stack: `LAYER.register_forward_hook(stacked)`"),
        (
            of_a_partial,
            "in of_a_partial: `LAYER.register_forward_pre_hook(functools.partial(with_more, kept))`",
        ),
        (of_an_argument, ""),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_line_that_registers_a_hook_is_named(step, code):
    [leak] = find_leaks(step)
    if code:
        assert leak.added_at.endswith(code)
        assert leak.added_at.count("register_") == 1
        assert f"  added at: {leak.added_at}\n" in str(leak)
    else:
        assert leak.added_at == ""


def test_the_hook_is_named_with_its_module():
    """Whether it keeps a tensor or none."""

    def keeps_nothing(_module, _args, _output):
        pass

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    [leak] = find_leaks(lambda: model[0].register_forward_hook(keeps_nothing) is None)
    assert "  hook `keeps_nothing` on submodule '0' of Sequential, defined at " in str(leak)

    def keeps():
        kept = made()

        def hook(_module, _args, _output):
            assert kept is not None

        model[1].register_forward_hook(hook)

    [leak] = find_leaks(keeps)
    assert "hook` on submodule '1' of Sequential, defined at " in str(leak)
    assert "this hook" in leak.advice


def test_every_line_that_registers_a_hook_is_named():
    """It is not known which of them has a `remove()`."""

    def watch(_module, _args, _output):
        pass

    def removes():
        handle = LAYER.register_forward_hook(watch)
        handle.remove()

    def forgets():
        LAYER.register_forward_hook(watch)

    [leak] = find_leaks(lambda: [each() for each in (removes, forgets)] == [])
    assert "in removes" in leak.added_at
    assert "in forgets" in leak.added_at
    assert find_leaks(removes) == []


def test_a_hook_of_another_file_is_found_by_its_import(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    hooks = "def note(module, args, output):\n    pass\n"
    unlike = "def watch(layer, note):\n    layer.register_forward_hook(note)\n"
    program(tmp_path, "hooks_of_the_team", hooks + unlike)
    text = "from hooks_of_the_team import note\ndef step():\n    layer.register_forward_hook(note)\n"
    main = program(tmp_path, "main_of_the_team", f"import torch\nlayer = torch.nn.Linear(8, 8)\n{text}")
    [leak] = find_leaks(main.step)
    assert leak.added_at.endswith("main_of_the_team.py:5 in step: `layer.register_forward_hook(note)`")


class Tracker(nn.ModuleList):
    def increment(self, layer):
        self.append(layer)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict()

    def add(self, layer):
        self.heads[str(next(NUMBERS))] = layer


class Best:
    def __init__(self):
        self.scores, self.ordered = [], []

    def offer(self, value):
        heapq.heappush(self.scores, (next(NUMBERS), value))

    def place(self, value):
        bisect.insort(self.ordered, (next(NUMBERS), value))


def calls(method, make):
    """Return a step whose line of the new tensor is not the one that keeps it."""
    return lambda: method(make()) is None


def linear():
    return nn.Linear(8, 8)


class Averages:
    """Keeps a dictionary for each name."""

    def __init__(self):
        self.state = {}

    def add(self, value):
        for name in ("weight",):
            state = self.state.setdefault(name, {})
            if not state:
                state["values"] = []
            state["values"].append(value)


class Listeners:
    def __init__(self):
        self.by_name = {}

    def add(self, value):
        self.by_name.setdefault("end", []).append(value)


class Wrapper:
    def __init__(self, before):
        self.before, self.values = before, made()


class Nodes:
    def __init__(self):
        self.newest = self.first = None

    def wrap(self, _value):
        self.newest = Wrapper(self.newest)


def memo(function):
    results = {}

    @functools.wraps(function)
    def inner(key):
        value = function(key)
        results[next(NUMBERS)] = value
        return value

    return inner


@memo
def doubled(value):
    return value * 2


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (calls(Tracker().increment, linear), "in increment: `self.append(layer)`"),
        (calls(Heads().add, linear), "in add: `self.heads[str(next(NUMBERS))] = layer`"),
        (calls(Best().offer, made), "in offer: `heapq.heappush(self.scores, (next(NUMBERS), value))`"),
        (calls(Best().place, made), "in place: `bisect.insort(self.ordered, (next(NUMBERS), value))`"),
        (calls(Averages().add, made), 'in add: `state["values"].append(value)`'),
        (calls(Listeners().add, made), 'in add: `self.by_name.setdefault("end", []).append(value)`'),
        (calls(Nodes().wrap, made), "in wrap: `self.newest = Wrapper(self.newest)`"),
        (calls(doubled, made), "in inner: `results[next(NUMBERS)] = value`"),
    ],
    ids=["self", "modules", "heap", "sorted", "entry", "setdefault", "chain", "wraps"],
)
def test_the_line_that_adds_is_named_alone(step, code):
    [leak] = find_leaks(step)
    assert leak.added_at.endswith(code)
    assert ", or " not in leak.added_at


class Rebinding:
    """Fills the list of an entry that it has replaced."""

    def __init__(self):
        self.by_name = {"end": []}

    def add(self, value):
        before = self.by_name["end"]
        self.by_name["end"] = [*before, value]
        before.append(1)


def test_a_name_of_an_entry_that_gets_a_new_value_is_not_named():
    [leak] = find_leaks(calls(Rebinding().add, made))
    assert "before.append" not in leak.added_at


def with_tensor():
    """Return a hook that has a tensor."""
    data = made()

    def hook(*_args):
        assert len(data)

    return hook


@pytest.mark.parametrize(
    ("register", "owner"),
    [
        (lambda: LAYER.weight.register_hook(with_tensor()), "parameter 'weight' of Linear"),
        (
            lambda: LAYER.bias.register_post_accumulate_grad_hook(with_tensor()),
            "parameter 'bias' of Linear",
        ),
        (lambda: LAYER.register_forward_hook(with_tensor()), "global `LAYER`"),
    ],
    ids=["tensor", "gradient", "module"],
)
def test_a_hook_with_a_tensor_is_named_with_the_object_that_has_it(register, owner):
    """The first hook makes the table of a parameter's hooks, so the reference to cut leads to the table."""
    [leak] = find_leaks(register)
    assert f" on {owner}" in leak.hook
    LAYER.weight._backward_hooks = LAYER.bias._post_accumulate_grad_hooks = None
    LAYER._forward_hooks.clear()


def test_correct_programs_stay_silent():
    nodes, tracker = Nodes(), Tracker()

    def step():
        nodes.newest = None
        nodes.wrap(made())
        tracker.increment(linear())
        del tracker[-1]
        LAYER.register_forward_hook(note).remove()
        with (
            LAYER.register_forward_hook(noted),
            LAYER.register_forward_hook(
                lambda *_args: None,
            ),
        ):
            LAYER(made()[:8])

    assert find_leaks(step) == []
