"""Paths, retained bytes and holders over the live graph."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memwatch.heap import Snapshot, retained_bytes, search, steps_of
from memwatch.heap.autograd import autograd_edges
from memwatch.heap.c_held import shared_memory_edges
from memwatch.heap.tensors import quiet
from memwatch.kinds.edges import EdgeKind
from memwatch.leaks import why_alive
from memwatch.leaks.why import NotATensorError

BIG: dict[str, object] = {}


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    yield
    BIG.clear()


def test_retained_bytes_count_what_only_one_reference_keeps():
    """If a tensor has two holders, neither retains it. A list retains a tensor that only it holds."""
    shared, private = torch.randn(100), torch.randn(50)
    BIG["first"], BIG["second"] = [shared, private], [shared]
    del shared, private
    with Snapshot() as snapshot:
        first, second = (snapshot.position(BIG[key]) for key in ("first", "second"))
        table = snapshot.position(BIG)
        assert retained_bytes(snapshot, device="cpu", without=first) == 200
        assert retained_bytes(snapshot, device="cpu", cut=(table, second)) == 0
        assert retained_bytes(snapshot, device="cpu", without=table) == 600


def test_a_closed_snapshot_holds_nothing():
    """After the block, objects that the program drops die at once."""
    tensor = torch.randn(4)
    with Snapshot():
        pass
    death = weakref.ref(tensor)
    del tensor
    assert death() is None


def test_frozen_objects_are_followed():
    """gc.freeze takes objects off gc's lists; paths through them are still found."""
    BIG["frozen"] = [torch.randn(4)]
    gc.freeze()
    try:
        text = str(why_alive(BIG["frozen"][0]))
    finally:
        gc.unfreeze()
    assert "`BIG`" in text


def test_a_frozen_heap_does_not_hold_the_snapshot():
    """While objects are frozen, no path goes through the snapshot's own lists."""
    tensor = torch.randn(4)
    ring = [tensor]
    ring.append(ring)
    gc.freeze()
    try:
        with Snapshot() as snapshot:
            held = [type(obj) for obj in snapshot.objects if obj is snapshot.objects or obj is snapshot.young]
    finally:
        gc.unfreeze()
    assert held == []


def test_reading_autograd_edges_changes_nothing():
    """The read neither adds a hook nor calls an unpack hook nor warns."""
    calls = []
    x = torch.randn(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: calls.append(1) or t):
        y = x.exp()
    hook_calls = []
    y.grad_fn.register_hook(lambda *_: hook_calls.append(1) and None)
    with quiet():
        before = [edge.kind for edge in autograd_edges(y.grad_fn)]
        again = [edge.kind for edge in autograd_edges(y.grad_fn)]
    assert before == again
    assert calls == []
    y.sum().backward()
    assert (len(calls), len(hook_calls)) == (1, 1)
    with quiet():
        assert [e.kind for e in autograd_edges(y.grad_fn) if e.kind is EdgeKind.SAVED] == []  # released


@pytest.mark.words
def test_why_alive_lists_each_holder_once():
    """The model of the question: a local, a list and a graph hold one tensor; each is named with its path."""
    tensor = torch.randn(8, requires_grad=True) * 1
    BIG["history"] = [tensor]
    loss = (tensor * tensor).sum()
    why = why_alive(tensor)
    text = str(why)
    assert "item [0] of list of 1" in text
    assert "global `BIG` of module test_heap_graph" in text
    assert "saved `" in text
    assert "local `tensor` of test_why_alive" in text
    assert why.reachable
    assert why.nbytes == 32
    assert loss.requires_grad


def test_why_alive_shows_a_loop_when_no_root_reaches_the_tensor():
    """An uncollectable tensor, found by its storage alone, is explained by its loop."""

    def lost():
        y = torch.randn(8, requires_grad=True).exp()
        y.register_hook(lambda grad: grad * y)
        return weakref.ref(y)

    ref = lost()
    gc.collect()
    why = why_alive(ref())
    ref().__dict__.clear()
    assert not why.reachable
    assert "`y`" in str(why)
    ref()._backward_hooks.clear()


def test_why_alive_refuses_what_is_no_tensor():
    """The error repeats the argument."""
    with pytest.raises(NotATensorError, match="list"):
        why_alive([])


MODEL = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
OPTIMIZER = None


def test_one_search_names_the_references_of_a_training_step():
    """Parameters, gradients, optimizer state, saved activations, locals and list items, all in one snapshot."""
    global OPTIMIZER  # noqa: PLW0603 - made here: torch imports its compiler then
    OPTIMIZER = torch.optim.Adam(MODEL.parameters(), foreach=False)
    MODEL(torch.randn(4, 8)).sum().backward()
    OPTIMIZER.step()
    batch = torch.randn(4, 8)
    outputs = [torch.randn(3)]
    loss = MODEL(batch).pow(2).sum()
    weight = MODEL[0].weight
    storages = {
        EdgeKind.PARAMETER: weight.untyped_storage(),
        EdgeKind.GRAD: weight.grad.untyped_storage(),
        EdgeKind.VALUE: OPTIMIZER.state[weight]["exp_avg"].untyped_storage(),
        EdgeKind.SAVED: loss.grad_fn.next_functions[0][0].next_functions[0][0].next_functions[1][0]
        ._raw_saved_result.data.untyped_storage(),
        EdgeKind.LOCAL: batch.untyped_storage(),
        EdgeKind.ITEM: outputs[0].untyped_storage(),
    }  # fmt: skip
    del weight
    asked = list(storages.values())
    kinds = list(storages)
    storages.clear()
    with Snapshot(asked) as snapshot:
        closed = snapshot.barriers() | set(snapshot.positions([id(asked)]))
        tree = search(snapshot, snapshot.root_groups(), closed=closed)
        paths = [steps_of(snapshot, tree.path(snapshot.position(storage))) for storage in asked]
        # An optimizer refers to every parameter too: past it, each is found by its name in the model.
        past_optimizer = closed | set(snapshot.positions([id(OPTIMIZER)]))
        tree = search(snapshot, snapshot.root_groups(), closed=past_optimizer)
        paths[0] = steps_of(snapshot, tree.path(snapshot.position(asked[0])))
    held = {kind: path[-2].edge for kind, path in zip(kinds, paths, strict=True)}
    assert {kind: edge.kind for kind, edge in held.items()} == {kind: kind for kind in kinds}
    assert all(path[-1].edge.kind is EdgeKind.STORAGE for path in paths)
    local = held[EdgeKind.LOCAL]
    assert (local.name, local.owner.name) == (
        "batch",
        "test_one_search_names_the_references_of_a_training_step",
    )
    assert local.file.endswith("test_heap_graph.py")
    assert (held[EdgeKind.PARAMETER].name, held[EdgeKind.VALUE].name) == ("weight", "'exp_avg'")
    assert paths[-1][0].edge.name == "outputs"


def test_a_second_snapshot_leaves_the_calls_as_it_found_them():
    """The first snapshot's read of a call's variables is not a reference of the program for the second."""

    def numbers():
        for _ in range(2):
            kept = torch.zeros(5)
            yield kept

    call = numbers()
    suspended = weakref.ref(next(call))
    value = torch.zeros(5)
    running = weakref.ref(value)
    for _ in range(2):
        why_alive(suspended())
    del value
    next(call)
    assert (suspended(), running()) == (None, None)


class _Wrapper(torch.Tensor):
    """A tensor of a program whose storage has no memory, and no address that torch would tell."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return NotImplemented


def test_storages_without_memory_share_none(recwarn):
    """The tensors over them are gone. torch raises an error for the address of the one, and warns about the other."""
    wrapper = _Wrapper(torch.ones(5))
    with FakeTensorMode():
        fake = torch.ones(5)
    storages = [wrapper.untyped_storage(), fake.untyped_storage()]
    del wrapper, fake
    capsule = torch.utils.dlpack.to_dlpack(torch.ones(3))
    assert list(shared_memory_edges(storages, [], [capsule])) == []
    assert [str(each.message) for each in recwarn.list] == []
