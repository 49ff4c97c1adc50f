"""Every kind of reference has a name a person can edit; one snapshot names them all."""

from __future__ import annotations

import collections
import contextvars
import functools
import gc
import sys
import threading
import weakref
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from memwatch.heap import Snapshot, search, steps_of
from memwatch.heap.paths import name_chain
from memwatch.heap.shapes import name_edge
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.leaks import find_leaks
from memwatch.words import edges as edge_words


class Point(NamedTuple):
    x: torch.Tensor


class Slots:
    __slots__ = ("inside",)


class Holder:
    on_class = None

    def method(self):
        return self


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.remembered = x.detach() * 2
        ctx.save_for_backward(x.clone())
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def new():
    return torch.randn(4)


def numbers():
    suspended_local = new()
    yield suspended_local
    yield suspended_local


def closing_over(captured):
    return lambda: captured


def raising():
    local_of_failed_call = new()
    raise ValueError(local_of_failed_call.shape)


VARIABLE = contextvars.ContextVar("in_context")
LOCAL = threading.local()
CASES: dict[str, tuple[object, str]] = {}


def build():
    """Make one holder of each kind; return a weak reference to each held object, and the holders."""
    held, words = {}, {}

    def case(name, holder, tensor, expected):
        held[name], words[name] = (holder, weakref.ref(tensor)), expected

    t = new()
    case("list", [t], t, "item [0] of list of 1")
    t = new()
    case("dict", {"loss": t}, t, "value of key 'loss' of dict of 1")
    t = new()
    case("dict key", {t: 1}, t, "a key of dict of 1")
    t = new()
    case("set", {t}, t, "member of set of 1")
    t = new()
    case("deque", collections.deque([t]), t, "item [0] of deque")
    t = new()
    case("ordered dict", collections.OrderedDict(a=t), t, "value of key 'a' of OrderedDict of 1")
    t = new()
    case("named tuple", Point(t), t, "field .x of Point")
    slots = Slots()
    slots.inside = t = new()
    case("slot", slots, t, "attribute .inside of Slots")
    t = new()
    case("instance", SimpleNamespace(thing=t), t, "attribute .thing of")
    holder = Holder()
    holder.thing = t = new()
    case("instance attribute", holder, t, "attribute .thing of Holder")
    case("bound method", holder.method, t, "attribute .thing of Holder")
    t = new()
    case("closure", closing_over(t), t, "closure cell `captured` of closing_over.<lambda> (")
    t = new()
    case("partial", functools.partial(max, t), t, "argument [0] of functools.partial of built-in max")
    t = new()
    case("partial keyword", functools.partial(max, key=t), t, "argument `key` of functools.partial")
    generator = numbers()
    case("generator", generator, next(generator), "local `suspended_local` of suspended generator numbers (")
    t = new()
    exec("def f(a, b=t, *, c=u): pass", space := {"t": t, "u": new()})
    del space["t"]
    case("default", space["f"], t, "default argument `b` of f (")
    case("keyword default", space["f"], space.pop("u"), "default argument `c` of f (")
    kind = type("Local", (), {"on_class": (t := new())})
    case("class attribute", kind, t, "class attribute .on_class of class Local")
    try:
        raising()
    except ValueError as error:
        tb = error.__traceback__.tb_next
        case(
            "exception",
            error,
            tb.tb_frame.f_locals["local_of_failed_call"],
            "local `local_of_failed_call` of raising (",
        )
        del tb
    cached = functools.lru_cache(lambda key: torch.randn(4))
    case("lru_cache", cached, cached(1), "a result kept by lru_cache of build.<lambda> (")
    layer = nn.Linear(2, 2)
    case("parameter", layer, layer.weight, "parameter 'weight' of Linear")
    model = nn.Sequential(nn.BatchNorm1d(2))
    case("buffer", model, model[0].running_mean, "buffer 'running_mean' of BatchNorm1d")
    case("submodule", model, model[0].weight, "parameter 'weight' of BatchNorm1d")
    leaf = torch.randn(4, requires_grad=True)
    leaf.sum().backward()
    case("grad", leaf, leaf.grad, ".grad of Tensor [4] float32")
    x = torch.randn(4, requires_grad=True)
    h = x.sin()
    case("saved", (h * h).sum(), h, "saved `")
    case("graph", (x + 3).sum(), x, ".variable of AccumulateGrad")
    y = Doubled.apply(x)
    case(
        "ctx attribute", (y * 1).sum(), y.grad_fn.remembered, "attribute .remembered of DoubledBackward (ctx)"
    )
    hooked = x.cos()
    kept = new()
    hooked.register_hook(closing_over(kept))
    case("tensor hook", hooked, kept, "closure cell `captured`")
    z = x.tan()
    z.grad_fn.register_prehook(closing_over(kept2 := new()))
    case("node hook", z, kept2, "closure cell `captured`")
    z.grad_fn.metadata["note"] = kept3 = new()
    case("metadata", z, kept3, "value of key 'note' of dict of 1")
    base = new()
    case("view", base[1:], base, "._base of Tensor")
    case("thread local", LOCAL, LOCAL.__dict__.setdefault("here", new()), "thread local attribute .here")
    VARIABLE.set(new())
    return held, words


@pytest.fixture(scope="module")
def named():
    """Build all holders, take one snapshot, and name the last reference of each path."""
    torch.set_num_threads(1)
    held, words = build()
    found = {}
    with Snapshot() as snapshot:
        for name, (holder, ref) in held.items():
            tree = search(snapshot, [[snapshot.position(holder)]])
            found[name] = steps_of(snapshot, tree.path(snapshot.position(ref())))
        everything = search(snapshot, snapshot.root_groups())
        context = snapshot.position(VARIABLE.get())
        found["context variable"] = steps_of(snapshot, everything.path(context))
    words["context variable"] = "ContextVar 'in_context'"
    return found, words


EDGES = {
    "list": (EdgeKind.ITEM, None),
    "dict": (EdgeKind.VALUE, "'loss'"),
    "dict key": (EdgeKind.KEY, None),
    "set": (EdgeKind.MEMBER, None),
    "deque": (EdgeKind.ITEM, None),
    "ordered dict": (EdgeKind.VALUE, "'a'"),
    "named tuple": (EdgeKind.FIELD, "x"),
    "slot": (EdgeKind.ATTRIBUTE, "inside"),
    "instance": (EdgeKind.ATTRIBUTE, "thing"),
    "instance attribute": (EdgeKind.ATTRIBUTE, "thing"),
    "bound method": (EdgeKind.ATTRIBUTE, "thing"),
    "closure": (EdgeKind.CLOSURE_CELL, "captured"),
    "partial": (EdgeKind.PARTIAL_ARGUMENT, None),
    "partial keyword": (EdgeKind.PARTIAL_ARGUMENT, "key"),
    "generator": (EdgeKind.LOCAL, "suspended_local"),
    "default": (EdgeKind.DEFAULT_ARGUMENT, "b"),
    "keyword default": (EdgeKind.DEFAULT_ARGUMENT, "c"),
    "class attribute": (EdgeKind.CLASS_ATTRIBUTE, "on_class"),
    "exception": (EdgeKind.LOCAL, "local_of_failed_call"),
    "lru_cache": (EdgeKind.CACHE_RESULT, None),
    "parameter": (EdgeKind.PARAMETER, "weight"),
    "buffer": (EdgeKind.BUFFER, "running_mean"),
    "submodule": (EdgeKind.PARAMETER, "weight"),
    "grad": (EdgeKind.GRAD, None),
    "saved": (EdgeKind.SAVED, "other"),
    "graph": (EdgeKind.VARIABLE, None),
    "ctx attribute": (EdgeKind.ATTRIBUTE, "remembered"),
    "tensor hook": (EdgeKind.CLOSURE_CELL, "captured"),
    "node hook": (EdgeKind.CLOSURE_CELL, "captured"),
    "metadata": (EdgeKind.VALUE, "'note'"),
    "view": (EdgeKind.BASE, None),
    "thread local": (EdgeKind.THREAD_LOCAL, "here"),
    "context variable": (EdgeKind.CONTEXT_VARIABLE, "in_context"),
}


@pytest.mark.parametrize("name", EDGES)
def test_a_reference_has_a_kind_and_an_identifier(named, name):
    """The last edge of the path names the variable, key, cell or C++ edge that holds the tensor."""
    found, _ = named
    assert found[name], "no path was found"
    assert (found[name][-1].edge.kind, found[name][-1].edge.name) == EDGES[name], found[name]


@pytest.mark.words
@pytest.mark.parametrize("name", EDGES)
def test_a_reference_is_called_by_its_name(named, name):
    """The words of the last step name the same."""
    found, words = named
    assert words[name] in str(found[name][-1]), found[name]


def test_hidden_references_are_marked(named):
    """Edges that only C++ holds are hidden; Python's are not."""
    found, _ = named
    assert found["grad"][-1].hidden
    assert str(found["grad"][-1]).endswith(edge_words.HIDDEN_MARK)
    assert not found["list"][-1].hidden
    assert any(step.edge.kind is EdgeKind.NODE_PREHOOKS for step in found["node hook"])


def test_kinds_keep_their_numbers():
    """Captures store them: a number stays with its kind."""
    numbers = {kind.name: kind.value for kind in EdgeKind}
    assert [numbers[name] for name in ("REFERENCE", "LOCAL", "ATTRIBUTE", "ITEM", "CLOSURE_CELL", "GRAD", "SAVED")] == [
        0, 10, 30, 50, 70, 141, 163,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", EdgeKind, ids=lambda kind: kind.name)
def test_every_kind_has_words(kind):
    """Each kind of reference has a text with an owner and a text without one."""
    owner = Vertex(VertexKind.OBJECT, "Model")
    assert edge_words.edge_phrase(Edge(kind, "name", 3, owner))
    assert edge_words.edge_phrase(Edge(kind))


def test_sys_last_value_is_explained():
    """The name under which interactive shells keep the last exception has a kind of its own."""
    sys.last_value = SimpleNamespace(tensor=new())
    try:
        with Snapshot() as snapshot:
            tree = search(snapshot, snapshot.root_groups())
            steps = steps_of(snapshot, tree.path(snapshot.position(sys.last_value.tensor)))
            assert (steps[0].edge.kind, steps[0].edge.name) == (EdgeKind.LAST_EXCEPTION, "last_value")
    finally:
        del sys.last_value


class Key(str):
    """A text with a class, a hash and words of the program's own."""

    __slots__ = ("__weakref__",)
    __hash__ = str.__hash__

    def __eq__(self, other):
        return str.__eq__(self, other)

    def __str__(self):
        raise AssertionError("memwatch ran code of the program")

    __repr__ = __str__


@pytest.mark.parametrize("key", [1, Key("a_key")], ids=["number", "subclass"])
@pytest.mark.parametrize("holder", ["instance", "global", "buffer"])
def test_a_key_that_is_no_plain_text_becomes_one(key, holder):
    """A namespace may have any key: the edge names it in a text of its own and keeps no object of the program."""
    owner = SimpleNamespace() if holder == "instance" else nn.Module()
    namespace = {
        "instance": lambda: vars(owner),
        "global": globals,
        "buffer": lambda: owner.__dict__["_buffers"],
    }[holder]

    def grows():
        namespace()[key] = (torch.ones(64), namespace().get(key))

    try:
        (leak, *_) = find_leaks(grows)
        assert all(type(edge.name) in (str, type(None)) for edge in leak.edges)
        assert ("1" if key == 1 else "a_key") in [edge.name for edge in leak.edges]
    finally:
        del namespace()[key]


def test_a_base_is_no_attribute():
    """A class refers to its base as such, though it may have an attribute with the same value."""

    class Derived(Holder):
        parent = Holder

    (edge,) = name_chain([Derived, Holder])
    assert edge.kind is EdgeKind.REFERENCE


def test_an_edge_keeps_no_key_alive():
    """The name of an edge is text, so the key that it was read from dies with the program's last reference."""
    owner, key = SimpleNamespace(), Key("a_key")
    vars(owner)[key] = new()
    edges = name_chain([owner, vars(owner), vars(owner)[key]])
    seen = weakref.ref(key)
    vars(owner).clear()
    del key
    assert [edge.name for edge in edges] == ["a_key"]
    assert seen() is None


@pytest.mark.parametrize("by_frame", [False, True], ids=["straight", "by its frame"])
def test_a_variable_of_a_suspended_generator_is_the_generators(by_frame):
    """With Python 3.10 its frame is between them. This changes no word: directly or in a cell."""

    def keeping(plain, captured):
        yield lambda: captured
        del plain

    generator = keeping([1], [2])
    inner = next(generator)
    between = [generator.gi_frame] if by_frame else []
    cell = inner.__closure__[0]
    for way, name in (
        ([generator.gi_frame.f_locals["plain"]], "plain"),
        ([cell, cell.cell_contents], "captured"),
    ):
        edge, covered = name_edge([generator, *between, *way], 0)
        assert (edge.kind, edge.name, edge.owner.kind) == (EdgeKind.LOCAL, name, VertexKind.GENERATOR)
        assert covered == len(between) + len(way)


def test_a_read_only_view_of_a_dictionary_has_no_name_of_its_own():
    """The variable that holds the view is named, and then the key."""
    kept = []

    def keep():
        kept.append(MappingProxyType({"weights": torch.ones(1000)}))

    (leak,) = find_leaks(keep)
    assert leak.edges[-1].kind is EdgeKind.VALUE
    assert leak.edges[-1].name == "'weights'"
    assert EdgeKind.REFERENCE not in {edge.kind for edge in leak.edges}


def test_a_tuple_in_a_cache_is_a_result_or_an_argument():
    """A bounded cache keeps the arguments of a call in a tuple too."""
    cached = functools.lru_cache(lambda tensor: (tensor + 1, 0))
    argument = new()
    result = cached(argument)
    (key,) = (held for held in gc.get_referents(cached) if type(held) is tuple and held[0] is argument)
    edges = [name_edge((cached, held, held[0]), 0)[0] for held in (result, key)]
    assert [edge.kind for edge in edges] == [EdgeKind.CACHE_RESULT, EdgeKind.CACHE_ARGUMENT]
