"""The advice for a leak fits the kept value: its storage, the container behind a method, a chain of objects."""

from __future__ import annotations

import torch
from torch.nn import functional

from memwatch import find_leaks
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.kinds.leaks import LeakKind
from memwatch.kinds.remedies import Remedy
from memwatch.leaks.advice import remedy_for
from memwatch.words.leaks import advice

weight = torch.nn.Parameter(torch.ones(64, 64))


def test_a_loss_over_a_larger_storage_is_no_view():
    losses = []
    (leak,) = find_leaks(
        lambda: losses.append(functional.mse_loss(torch.ones(64, 64) @ weight, torch.ones(64, 64)))
    )
    assert leak.advice == advice(Remedy.ITEM, with_graph=True, shows_part=True)


def test_a_part_of_a_larger_tensor_is_a_view():
    parts = []
    (leak,) = find_leaks(lambda: parts.append((torch.ones(64, 64) @ weight)[0]))
    assert leak.advice == advice(Remedy.VIEW_WITH_GRAPH)


def test_a_loss_that_fills_its_storage_needs_no_clone():
    losses = []
    (leak,) = find_leaks(lambda: losses.append((torch.ones(64, 64) @ weight).square().mean()))
    assert leak.advice == advice(Remedy.ITEM, with_graph=True)


class Module:
    def __init__(self):
        self.outputs = []

    def step(self):
        self.outputs.append(torch.ones(64))


def test_a_bound_method_is_only_the_way_to_a_container_that_grows():
    step = Module().step
    (leak,) = find_leaks(lambda: step())
    assert leak.advice == advice(Remedy.ITEM)


def test_a_bound_method_that_each_call_keeps_is_the_leak():
    methods = []

    def keep():
        module = Module()
        module.step()
        methods.append(module.step)

    (leak,) = find_leaks(keep)
    assert leak.advice == advice(Remedy.BOUND_METHOD)


class State:
    def __init__(self, value, before):
        self.value, self.prev = value, before


def test_a_chain_of_objects_is_named_by_its_attribute():
    holder = State(None, None)

    def advance(*, drop):
        holder.prev = State(torch.ones(64), holder.prev)
        if drop:
            holder.prev.prev = None

    (leak,) = find_leaks(lambda: advance(drop=False))
    assert leak.advice == advice(Remedy.CHAIN, attribute="prev")
    assert find_leaks(lambda: advance(drop=True)) == []


def test_the_list_of_a_comprehension_is_told_as_an_unfinished_result():
    """`test_losses_that_a_running_call_collects_grow_with_each_step` has the program and its twin."""
    call = Edge(EdgeKind.EVALUATION_STACK)
    item = Edge(EdgeKind.ITEM, position=1, owner=Vertex(VertexKind.CONTAINER, "list"))
    assert remedy_for(LeakKind.RETAINED, item, [call, item], [call, item]) is Remedy.UNFINISHED_RESULT
