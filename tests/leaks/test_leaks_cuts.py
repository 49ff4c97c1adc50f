"""The references that a leak of a cycle names are enough: once they are cut by hand, nothing is left for gc."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import weakref
from pathlib import Path
from types import FunctionType

import pytest
import torch
from torch import nn

from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.leaks import Remedy
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.words.leaks import advice

sys.path.insert(0, str(Path(__file__).parent))
from all_programs import PROGRAMS, lean


class Part:
    """Has the trainer, as it was given it."""

    def __init__(self, trainer):
        self.trainer = trainer


class Validation:
    """The same by a line of its own."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.metric = torch.ones(8)


class Trainer:
    """Two parts have it, so two cycles have one object."""

    def __init__(self, given=lambda trainer: trainer, *, parts=2):
        self.model = nn.Linear(8, 8)
        self.loop = Part(given(self))
        self.validation = Validation(given(self)) if parts > 1 else None


class Schedule(Part):
    """A further class whose objects one line of its base makes refer to the trainer."""


class TrainerOfOneBase:
    """Three parts of two classes have it by one line."""

    def __init__(self, given=lambda trainer: trainer):
        self.model = nn.Linear(8, 8)
        self.parts = {"loop": Part(given(self)), "test": Part(given(self))}
        self.schedule = Schedule(given(self))


def new_forward(module, *args, **kwargs):
    return module.original_forward(*args, **kwargs)


def wrap(module):
    """Do to a module what accelerate's `add_hook_to_module` does."""
    module.original_forward = module.forward
    module.forward = functools.update_wrapper(functools.partial(new_forward, module), module.original_forward)
    return module


def wrapped_layers():
    model = nn.Sequential(wrap(nn.Linear(8, 8)), nn.ReLU(), wrap(nn.Linear(8, 8)))
    model(torch.ones(2, 8))


def wrapped_twice():
    """A wrapped model has wrapped layers: the cycles of one hang on the cycles of the other."""
    wrap(nn.Sequential(wrap(nn.Linear(8, 8)), nn.ReLU()))


class Ring:
    """Leads back to itself, by an attribute whose name differs."""

    def __init__(self, name, batch):
        setattr(self, name, self)
        self.batch = batch


def in_two_rings():
    """Two cycles that have nothing to do with one another have one tensor."""
    batch = torch.ones(64)
    Ring("first", batch)
    Ring("second", batch)


def rings_behind_one_another():
    Ring("outer", Ring("inner", torch.ones(64)))


SEVERAL = [
    (Trainer, {"trainer"}, 2),
    (TrainerOfOneBase, {"trainer"}, 1),
    (lambda: Trainer(parts=1), {"trainer"}, 1),
    (wrapped_layers, {"original_forward", "forward"}, 2),
    (wrapped_twice, {"original_forward", "forward"}, 4),
    (in_two_rings, {"first", "second"}, 2),
    (rings_behind_one_another, {"inner", "outer"}, 2),
]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def leaks_of(program):
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        program()
    return caught.value.leaks


def cut(edge, objects):
    """Cut a reference of some objects as the leak asks: delete the attribute, the submodule or the variable."""
    for obj in objects:
        if edge.kind is EdgeKind.ATTRIBUTE:
            is_owner = type(obj).__qualname__.replace("<locals>.", "") == edge.owner.name
            values = getattr(obj, "__dict__", None)
            # the line may be of several classes
            if isinstance(values, dict) and (is_owner or edge.line is not None):
                values.pop(edge.name, None)
        elif edge.kind is EdgeKind.SUBMODULE and isinstance(obj, nn.Module):
            obj._modules.pop(edge.name, None)
        elif edge.kind is EdgeKind.CLOSURE_CELL and type(obj) is FunctionType:
            names, name = obj.__code__.co_freevars, obj.__qualname__.replace("<locals>.", "")
            if edge.name in names and name == edge.owner.name:
                with contextlib.suppress(ValueError):  # it is empty
                    del obj.__closure__[names.index(edge.name)].cell_contents


def survivors_after(program, edges):
    """Return how many tensors are left, with no collection, after references of a program's objects were cut."""
    gc.collect()
    gc.disable()
    try:
        older = gc.get_objects()  # kept alive, so that no new object has the id of one of them
        before = {id(older), *map(id, older)}
        before.add(id(before))
        program()
        objects = [obj for obj in gc.get_objects() if id(obj) not in before]
        tensors = [weakref.ref(obj) for obj in objects if isinstance(obj, torch.Tensor)]
        for edge in edges:
            cut(edge, objects)
        objects.clear()
        return sum(tensor() is not None for tensor in tensors)
    finally:
        gc.enable()
        gc.collect()


@pytest.mark.parametrize(("program", "names", "count"), SEVERAL)
def test_all_cuts_together_free_the_tensors_and_none_is_one_too_many(program, names, count):
    """If several cycles keep a tensor, one edit frees nothing.

    The named edits free it together, and each is needed.
    """
    leaks = leaks_of(program)
    edges = {(edge.name, edge.owner.name, edge.line): edge for leak in leaks for edge in leak.cuts}.values()
    assert {edge.name for edge in edges} == names
    assert len(edges) == count, edges
    assert survivors_after(program, edges) == 0
    by_name = {edge.name: edge for edge in edges}
    for name in names if len(names) > 1 else ():
        others = [edge for other, edge in by_name.items() if other != name]
        assert survivors_after(program, others) > 0, name


BY_HAND = (EdgeKind.ATTRIBUTE, EdgeKind.SUBMODULE, EdgeKind.CLOSURE_CELL)
NOT_BY_HAND = {
    "exception_cycle",  # a local variable of a call that has ended
    "own_frame",
    "generator_of_itself",
    "function_class_per_call",  # a class leads to itself
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [each for each in lean(PROGRAMS) if each.kind == "cycle"], ids=str)
def test_the_references_to_cut_of_every_leak_program_free_its_tensors(program):
    """The programs were written for other tests; what is named is carried out as it stands."""
    edges = [edge for leak in find_leaks(program.leak) if leak.kind == "cycle" for edge in leak.cuts]
    by_hand = all(edge.kind in BY_HAND for edge in edges)
    assert by_hand == (program.name not in NOT_BY_HAND), edges
    if by_hand:
        assert survivors_after(program.leak, edges) == 0, edges


def test_one_set_of_cuts_is_one_leak():
    """Tensors on the cycles of one object are reported once, whichever cycle is nearest to them."""
    [leak] = find_leaks(lambda: Trainer() and None)
    assert leak.nbytes == 4 * (64 + 8 + 8)
    assert {edge.owner.name for edge in leak.cuts} == {"Part", "Validation"}
    assert "Also remove attribute .trainer of " in leak.advice
    assert find_leaks(lambda: Trainer(weakref.ref) and None) == []
    assert find_leaks(lambda: TrainerOfOneBase(weakref.ref) and None) == []


def test_a_reference_to_what_a_function_was_given_is_cut_first():
    """The caller has the argument too. A weak reference to a new object would be dead at once."""
    [leak] = find_leaks(lambda: Trainer(parts=1) and None)
    assert (leak.cut.name, leak.cut.owner.name, leak.cut.of_argument) == ("trainer", "Part", True)
    assert leak.cuts == (leak.cut,)


class Alias(nn.Module):
    """Has a method of its own as an attribute, directly or in a table, or by a weak reference."""

    def __init__(self, how):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        how(self)

    def check(self):
        return self.weight.sum()


def alias(model):
    model.alias = model.check


def alias_by_weak_method(model):
    model.alias = weakref.WeakMethod(model.check)
    assert model.alias()() == 64


def alias_by_function(model):
    model.alias = type(model).check
    assert model.alias(model) == 64


def table(model):
    model.priors = {"noise": (0.1, model.check)}


def table_of_functions(model):
    model.priors = {"noise": (0.1, lambda model: model.check())}


def cached_alias(model):
    model.alias = functools.lru_cache(model.check)


def cached_by_function(model):
    model.alias = functools.lru_cache(type(model).check)


@pytest.mark.parametrize("how", [alias, table, cached_alias])
def test_a_method_that_its_object_keeps_is_kept_weakly_by_weak_method_alone(how):
    """A plain weak reference to a bound method is dead as soon as it is made."""
    [leak] = find_leaks(lambda: Alias(how) and None)
    assert leak.advice == advice(Remedy.BOUND_METHOD)
    weakly = weakref.ref(Alias(how).check)
    assert weakly() is None


@pytest.mark.parametrize(
    "how", [alias_by_weak_method, alias_by_function, table_of_functions, cached_by_function]
)
def test_a_method_that_is_kept_as_advised_is_no_leak(how):
    assert find_leaks(lambda: Alias(how) and None) == []


class Solve(torch.autograd.Function):
    """Keeps what it is given on `ctx`."""

    @staticmethod
    def forward(ctx, x, given):
        ctx.given = given
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


class Equation:
    """Has the output of a Function, which was given what leads back to here."""

    def __init__(self, given):
        self.state = Solve.apply(torch.ones(64, requires_grad=True), given(self))

    def residual(self):
        return self.state


def delete_after_backward():
    equation = Equation(lambda equation: [equation])
    node = equation.state.grad_fn
    equation.state.sum().backward()
    del node.given


@pytest.mark.parametrize("given", [lambda equation: equation, lambda equation: [equation]])
def test_what_is_no_tensor_cannot_be_saved_for_backward(given):
    """An object on `ctx` that leads back to the output gets advice of its own."""
    [leak] = find_leaks(lambda: Equation(given) and None)
    assert leak.advice == advice(Remedy.CTX_OBJECT), str(leak)


def test_a_method_on_ctx_whose_object_keeps_the_output_gets_the_advice_of_the_known_leak():
    [leak] = find_leaks(lambda: Equation(lambda equation: equation.residual) and None)
    assert leak.known is not None
    assert leak.known.link.endswith("pytorch/issues/52140")
    assert leak.advice == leak.known.remedy, str(leak)


@pytest.mark.parametrize(
    "program",
    [
        lambda: Equation(lambda equation: weakref.WeakMethod(equation.residual)) and None,
        lambda: Equation(lambda equation: type(equation).residual) and None,
        delete_after_backward,
    ],
)
def test_what_backward_needs_alone_on_ctx_is_no_leak(program):
    assert find_leaks(program) == []


class View:
    """Has a function that closes over the object, or over a weak reference to it."""

    def __init__(self, *, weakly):
        self.weight = torch.ones(64)
        if weakly:
            me = weakref.ref(self)
            self.show = lambda: me().weight
        else:
            self.show = lambda: self.weight


SHOWN = []


def test_a_function_that_closes_over_self_is_told_to_hold_it_weakly():
    """A method needs the name `self`, so "delete the name" would be wrong."""
    [leak] = find_leaks(lambda: View(weakly=False) and None)
    assert leak.advice == advice(Remedy.CLOSURE_OF_OBJECT, name="self")
    [leak] = find_leaks(lambda: SHOWN.append(View(weakly=False).show))
    assert leak.advice == advice(Remedy.CLOSURE_OF_OBJECT, name="self")
    SHOWN.clear()
    assert find_leaks(lambda: View(weakly=True) and None) == []
    assert find_leaks(lambda: SHOWN.append(View(weakly=True).show)) == []
    SHOWN.clear()


class Caller:
    """Keeps the frame of its own call."""

    def call(self, *, text):
        self.weight = torch.ones(64)
        frame = sys._getframe()
        self.frame = frame.f_lineno if text else frame
        del frame


def test_a_frame_is_kept_as_text_as_advised():
    """A frame cannot be referred to weakly."""
    [leak] = find_leaks(lambda: Caller().call(text=False))
    assert leak.advice == advice(Remedy.FRAME)
    assert find_leaks(lambda: Caller().call(text=True)) == []


class Family:
    """Has itself in a list, which an attribute leads to."""

    def __init__(self):
        self.weight = torch.ones(64)
        self.members = [self]


def cleared_family():
    Family().members.clear()


def test_of_a_container_its_entry_is_told():
    """No weak reference to a list can be made; it can be cleared."""
    [leak] = find_leaks(lambda: Family() and None)
    assert leak.advice == advice(Remedy.ITEM_IN_CYCLE)
    assert find_leaks(cleared_family) == []


class Recorder:
    """Records outputs by hooks that it removes, in tables named as tables of hooks often are."""

    def __init__(self, model):
        self.layer_hooks = {}
        self.handles = [layer.register_forward_hook(self.record) for layer in model]

    def record(self, layer, args, output):
        self.layer_hooks[id(layer), len(self.layer_hooks)] = output.detach()

    def remove(self):
        for handle in self.handles:
            handle.remove()


MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
RECORDED = Recorder([])


def recorded(*, clear):
    recorder = Recorder(MODEL)
    recorder.layer_hooks = RECORDED.layer_hooks
    MODEL(torch.ones(2, 8))
    recorder.remove()
    if clear:
        RECORDED.layer_hooks.clear()


def test_of_hooks_that_were_removed_the_table_that_they_filled_is_told():
    """Whatever its name: the handles are of no use any more."""
    [leak] = find_leaks(lambda: recorded(clear=False))
    assert leak.advice == advice(Remedy.VALUE)
    assert find_leaks(lambda: recorded(clear=True)) == []


class Numbered:
    """Has methods by number, in an ordered dictionary of its own."""

    def __init__(self):
        from collections import OrderedDict

        self.weight = torch.ones(64)
        self.layer_hooks = OrderedDict({0: self.call})

    def call(self):
        pass


def test_methods_by_number_are_no_hooks_of_torch():
    """They have no handle to remove."""
    [leak] = find_leaks(lambda: Numbered() and None)
    assert leak.advice == advice(Remedy.BOUND_METHOD)


KEEPS_ITS_FRAME = """
import sys

def register():
    frame = sys._getframe()

register()
"""


class Stage:
    """The first one loads a module, whose frame is in a cycle and keeps the frames of its importers."""

    def __init__(self, given):
        self.weights = torch.ones(64)
        self.me = given(self)
        import keeps_its_frame  # noqa: F401


@pytest.mark.parametrize("given", [lambda stage: stage, weakref.ref], ids=["cycle", "twin"])
def test_the_frames_of_an_import_are_no_further_cycle(given, tmp_path, monkeypatch):
    """Torch does this when the first optimizer of a program loads torch._dynamo. The user cannot edit it."""
    (tmp_path / "keeps_its_frame.py").write_text(KEEPS_ITS_FRAME)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "keeps_its_frame", raising=False)
    leaks = []
    try:
        with check_leaks():
            for _ in range(2):
                Stage(given)
    except TensorLeakError as error:
        leaks = error.leaks
    monkeypatch.delitem(sys.modules, "keeps_its_frame")
    assert [(leak.count, len(leak.cuts)) for leak in leaks] == ([(2, 1)] if given(Part) is Part else [])
