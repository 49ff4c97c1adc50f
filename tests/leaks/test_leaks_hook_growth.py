"""A hook per call slows every later call down, though it holds no tensor."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.leaks import LeakKind, Remedy
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.leaks.groups import merge_and_sort
from memwatch.words.leaks import advice

LAYER = nn.Linear(8, 8)
WEIGHT = torch.ones(3, requires_grad=True)
OPTIMIZER = None
OF_MODULES = (EdgeKind.SUBMODULE, EdgeKind.PARAMETER)
KEPT: list[nn.Module] = []


def does_nothing(*_args):
    pass


@pytest.fixture(autouse=True, scope="module")
def _optimizer():
    """Make it before the first test, not at import: torch imports its compiler then."""
    global OPTIMIZER  # noqa: PLW0603
    OPTIMIZER = torch.optim.SGD(LAYER.parameters(), lr=0.1)


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    yield
    KEPT.clear()


def on_a_module():
    LAYER.register_forward_hook(does_nothing)


def on_a_tensor():
    WEIGHT.register_hook(does_nothing)


def on_an_accumulated_gradient():
    WEIGHT.register_post_accumulate_grad_hook(does_nothing)


def on_an_optimizer():
    OPTIMIZER.register_step_post_hook(does_nothing)


def removed():
    LAYER.register_forward_hook(does_nothing).remove()


def on_a_module_of_the_call():
    nn.Linear(8, 8).register_forward_hook(does_nothing)


@pytest.mark.parametrize("runs", [2, "auto"])
@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (on_a_module, "attribute ._forward_hooks of Linear"),
        (on_a_tensor, "tensor hooks"),
        (on_an_accumulated_gradient, "post-accumulate-grad hooks"),
        (on_an_optimizer, "attribute ._optimizer_step_post_hooks of SGD"),
    ],
)
def test_a_hook_of_each_call_is_a_leak(fn, words, runs):
    (leak,) = find_leaks(fn, runs=runs)
    assert (leak.kind, leak.count, leak.nbytes) == (LeakKind.HOOKS, 1, 0)
    assert words in leak.holder
    assert leak.advice == advice(Remedy.HOOK_PER_CALL, with_graph=False)
    assert str(leak).startswith("hooks: 1 hook on each call, registered on global")


MODEL = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(3)])
OPTIMIZERS = []


def other(grad):
    return None


def on_each_parameter():
    for parameter in MODEL.parameters():
        parameter.register_hook(does_nothing)


def two_functions():
    on_each_parameter()
    MODEL[0].weight.register_hook(other)


def test_hooks_of_one_function_on_many_parameters_are_one_leak():
    OPTIMIZERS[:] = [torch.optim.SGD(MODEL.parameters())]
    (leak,) = find_leaks(on_each_parameter)
    assert (leak.kind, leak.count) == (LeakKind.HOOKS, 6)
    assert not any(edge.owner is not None and edge.owner.name == "SGD" for edge in leak.edges)


def test_hooks_of_different_functions_are_not_joined():
    assert sorted(leak.count for leak in find_leaks(two_functions)) == [2, 5]


class EverySecond:
    """Registers a hook on every second call, and removes the one before if it is told to."""

    def __init__(self, *, removes):
        self.calls, self.handle, self.removes = 0, None, removes

    def __call__(self):
        self.calls += 1
        if self.calls % 2 == 0:
            if self.removes and self.handle is not None:
                self.handle.remove()
            self.handle = LAYER.register_forward_hook(does_nothing)


@pytest.mark.parametrize("runs", [4, "auto"])
def test_a_hook_of_every_second_call_is_a_leak(runs):
    (leak,) = find_leaks(EverySecond(removes=False), runs=runs)
    assert (leak.kind, leak.count, leak.every) == (LeakKind.HOOKS, 1, 2)


@pytest.mark.parametrize("runs", [4, "auto"])
def test_a_hook_that_replaces_the_one_before_is_no_leak(runs):
    assert find_leaks(EverySecond(removes=True), runs=runs) == []


@pytest.mark.parametrize("fn", [removed, on_a_module_of_the_call])
def test_hooks_that_go_are_no_leak(fn):
    assert find_leaks(fn) == []


def test_a_module_of_each_call_that_is_kept_with_its_hook_is_one_leak():
    """The list keeps the module, and that its hook: one edit ends both."""

    def keeps_a_module():
        layer = nn.Linear(8, 8)
        layer.register_forward_hook(does_nothing)
        KEPT.append(layer)

    (leak,) = find_leaks(keeps_a_module)
    assert leak.kind is LeakKind.RETAINED


def test_hooks_that_keep_tensors_are_one_leak():
    def keeps_a_tensor():
        value = torch.ones(100)
        LAYER.register_forward_hook(lambda *_: value)

    (leak,) = find_leaks(keeps_a_tensor)
    assert (leak.kind, leak.nbytes) == (LeakKind.RETAINED, 400)


@pytest.mark.words
@pytest.mark.parametrize("keeps", [True, False])
def test_hooks_that_each_fill_a_list_of_their_own_are_one_leak(keeps):
    """Each call registers a hook, and all hooks run: both the hooks and the list of each hook grow."""
    layer = nn.Linear(8, 8)

    def watches():
        seen = []
        handle = layer.register_forward_hook(lambda *args: seen.append(args[2].detach().mean()))
        layer(torch.ones(4, 8))
        if not keeps:
            handle.remove()

    leaks = find_leaks(watches, runs=8)
    assert len(leaks) == keeps
    for leak in leaks:
        assert leak.cut.name.isdecimal()
        assert "call `handle.remove()` after use" in leak.advice
        assert leak.rises
        assert "tensors on average, more on each call" in str(leak)
        assert "list of" in leak.path[-1]


def test_two_lists_that_one_line_fills_are_two_leaks():
    """To empty one of them leaves the other."""
    first, second = [], []

    def fills():
        for each in (first, second):
            each.append(torch.ones(100))

    assert len(find_leaks(fills, runs=4)) == 2
    assert not any(leak.rises for leak in find_leaks(fills, runs=4))


def hooks_left(block):
    try:
        with check_leaks():
            block()
    except TensorLeakError as error:
        return [(leak.kind, leak.count) for leak in error.leaks]
    return []


def registers_a_closure(layer):
    layer.register_forward_hook(lambda *_args: None)


class Meter:
    def notes(self, gradient):
        pass


def registers_a_method(layer):
    layer.weight.register_hook(Meter().notes)


@pytest.mark.parametrize("registers", [registers_a_closure, registers_a_method])
def test_one_pass_shows_one_more_hook_of_a_function(registers):
    """The first hook may be set up once. The second one of its function is one more."""
    layer = nn.Linear(4, 4)
    assert hooks_left(lambda: registers(layer)) == []
    [(kind, count)] = hooks_left(lambda: registers(layer))
    assert (kind, count) == (LeakKind.HOOKS, 1)
    [(kind, count)] = hooks_left(lambda: [registers(layer) for _ in range(3)])
    assert count == 3


def test_one_pass_counts_no_hook_that_is_removed_or_of_another_function_or_object():
    layer = nn.Linear(4, 4)
    registers_a_closure(layer)

    def removes():
        layer.register_forward_hook(does_nothing).remove()

    def on_a_new_layer():
        new = nn.Linear(4, 4)
        for _ in range(3):
            registers_a_closure(new)

    assert hooks_left(removes) == []
    assert hooks_left(on_a_new_layer) == []
    assert hooks_left(lambda: layer.register_forward_hook(does_nothing)) == []


def test_hooks_of_one_function_that_are_set_up_at_once_are_no_leak():
    """One closure for each name, as a tool for activations registers them. A second setup is one more of each."""
    layer = nn.Linear(4, 4)

    def sets_up():
        for _name in ("input", "output"):
            registers_a_closure(layer)

    assert hooks_left(sets_up) == []
    assert hooks_left(sets_up) == [(LeakKind.HOOKS, 2)]


def test_a_hook_is_named_with_the_place_of_its_function():
    (leak,) = find_leaks(on_a_module)
    line = does_nothing.__code__.co_firstlineno
    assert leak.hook.startswith("hook `does_nothing` on global `LAYER` of module ")
    assert leak.hook.endswith(f"test_leaks_hook_growth.py:{line}")
    assert leak.hook in str(leak)


class Records:
    """A hook that is an object."""

    def __call__(self, *_):
        pass


@pytest.mark.parametrize("wraps", [lambda hook: hook, partial], ids=["object", "partial"])
def test_a_hook_that_is_an_object_is_named_with_its_class(wraps):
    (leak,) = find_leaks(lambda: LAYER.register_forward_hook(wraps(Records())))
    assert leak.hook.startswith("hook `Records.__call__` on ") or sys.version_info < (3, 11), leak.hook
    assert leak.hook.endswith(f"test_leaks_hook_growth.py:{Records.__call__.__code__.co_firstlineno}")
    assert hooks_left(lambda: LAYER.register_forward_hook(wraps(Records()))) == [(LeakKind.HOOKS, 1)]


def test_hooks_of_a_layers_weight_are_shown_through_the_layer():
    """A graph that the program keeps leads to the weight too, by a shorter path."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    KEPT.append(model(torch.ones(1, 4)))
    (leak,) = find_leaks(lambda model: model[0][0].weight.register_hook(does_nothing), model)
    assert EdgeKind.GRAD_FN not in [edge.kind for edge in leak.edges], leak
    assert [edge.name for edge in leak.edges if edge.kind in OF_MODULES] == ["0", "0", "weight"], leak


def test_a_container_in_a_container_in_a_third_one_loses_no_tensors():
    """Three leaks of one line, each behind the other: the outermost is reported, with the tensors of all."""
    kept = []
    [leak] = find_leaks(lambda: kept.append(torch.ones(8)))
    entry = leak.cut
    way = leak.edges[: next(at for at, edge in enumerate(leak.edges) if edge is entry)]
    entries = [dataclasses.replace(entry, name=str(number)) for number in range(5)]

    def behind(*path):
        edges = (*way, *path)
        return dataclasses.replace(leak, edges=edges, cut=path[-1], cause=f"cause-{len(path)}")

    first, second, third, fourth, fifth = entries
    leaks = [behind(first, second, third), behind(first, fourth), behind(fifth)]
    [merged] = merge_and_sort(leaks)
    assert merged.cause == "cause-1"
    assert (merged.count, merged.nbytes) == (3 * leak.count, 3 * leak.nbytes)


@pytest.mark.parametrize("remove", [False, True])
def test_a_hook_that_torch_puts_around_one_of_the_program_is_named_by_the_programs_line(remove):
    """One call registers it on all parameters, so they are one cause."""
    parameters = [torch.ones(3, requires_grad=True), torch.ones(2, 3, requires_grad=True)]

    def step():
        total = parameters[0].sum() + parameters[1].sum()
        handle = register_multi_grad_hook(parameters, lambda _grads: total.item())
        total.backward()
        if remove:
            handle.remove()

    leaks = find_leaks(step)
    assert len(leaks) == (not remove), [str(leak) for leak in leaks]
    for leak in leaks:
        assert leak.advice == advice(Remedy.HOOK_PER_CALL)
        assert "lambda" in leak.hook
        assert "torch/autograd" not in leak.hook
        assert "register_multi_grad_hook(parameters, lambda _grads: total.item())" in leak.added_at
