"""The advice for a leak fits the kept value: its storage, the container behind a method, a chain of objects."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque

import torch
from torch.nn import functional

from memwatch import find_leaks
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.kinds.leaks import LeakKind, Remedy
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


def test_how_a_loss_is_stored_is_no_matter_where_an_exception_keeps_it():
    """`mse_loss` leaves its loss in a larger storage. The program stores the exception, and no tensor."""
    errors = []

    def fail():
        loss = functional.mse_loss(torch.ones(64, 64) @ weight, torch.ones(64, 64))
        if loss.item():
            raise ValueError("too large")

    def run():
        try:
            fail()
        except ValueError as error:
            errors.append(error)

    leaks = find_leaks(run)
    assert leaks
    assert {leak.advice for leak in leaks} == {advice(Remedy.EXCEPTION)}


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
    assert leak.advice == advice(Remedy.CHAIN, name="prev")
    assert find_leaks(lambda: advance(drop=True)) == []


def test_the_list_of_a_comprehension_is_told_as_an_unfinished_result():
    """`test_losses_that_a_running_call_collects_grow_with_each_step` has the program and its twin."""
    call = Edge(EdgeKind.EVALUATION_STACK)
    item = Edge(EdgeKind.ITEM, position=1, owner=Vertex(VertexKind.CONTAINER, "list"))
    assert remedy_for(LeakKind.RETAINED, item, [call, item], [call, item]) is Remedy.UNFINISHED_RESULT


class Layer:
    """Has a function that calls replace."""

    def __init__(self):
        self.forward = torch.relu
        self.before = iter(())


def test_a_function_that_wraps_the_one_of_the_call_before_is_told_as_a_wrapper():
    layer = Layer()

    def patch():
        inner, scale = layer.forward, torch.ones(64)
        layer.forward = lambda value: inner(value) * scale

    def patch_and_put_back():
        before = layer.forward
        patch()
        layer.forward = before

    (leak,) = find_leaks(patch)
    assert leak.advice == advice(Remedy.WRAPPERS)
    assert find_leaks(patch_and_put_back) == []


def test_a_path_shows_repeated_references_once():
    layer = Layer()
    layer.forward = torch.ones(64).sum

    def patch():
        inner, scale = layer.forward, torch.ones(64)
        layer.forward = lambda: inner() * scale

    (leak,) = find_leaks(patch, runs=20)
    shown = str(leak).splitlines()
    assert len(leak.path) > 20
    assert len(shown) < 12, leak
    assert [line for line in shown if "more references like the last one" in line], leak


def test_an_iterator_around_the_one_of_the_call_before_is_no_container():
    """`Remedy.NESTED`: none of its containers grows."""
    layer = Layer()
    window = deque(maxlen=3)

    def extend():
        layer.before = itertools.chain([torch.ones(64)], layer.before)

    def drop():
        layer.before = itertools.chain([torch.ones(64)])
        window.append(torch.ones(64))

    (leak,) = find_leaks(extend)
    assert leak.advice == advice(Remedy.NESTED)
    assert find_leaks(drop) == []


def test_callbacks_of_an_open_exit_stack_end_with_the_stack():
    stack = contextlib.ExitStack()

    def register():
        stack.callback(torch.ones(64).sum)

    def register_and_close():
        register()
        stack.close()

    (leak,) = find_leaks(register)
    assert leak.advice == advice(Remedy.EXIT_STACK)
    assert "`self` of built-in sum" in leak.holder
    assert find_leaks(register_and_close) == []


class Result:
    """Has a loss with its graph."""

    def __init__(self):
        self.logits = torch.ones(64, 64) @ weight
        self.loss = self.logits.mean()


def failing():
    loss = (torch.ones(64, 64) @ weight).mean()
    raise ValueError(loss.shape)


def losses():
    loss = (torch.ones(64, 64) @ weight).mean()
    yield loss


def exceptions_of(kept):
    try:
        failing()
    except ValueError as error:
        kept.append(error)


def generators_of(kept):
    kept.append(losses())
    next(kept[-1])


def test_advice_to_detach_is_for_tensors_that_the_program_stores():
    kept = []
    for fill, remedy in (
        (lambda: kept.append(Result()), Remedy.ITEM),
        (lambda: exceptions_of(kept), Remedy.EXCEPTION),
        (lambda: generators_of(kept), Remedy.GENERATOR),
    ):
        (leak,) = find_leaks(fill)
        assert leak.keeps_graph
        assert leak.advice == advice(remedy, of_objects=True)
        kept.clear()
    (leak,) = find_leaks(lambda: kept.append({"loss": (torch.ones(64, 64) @ weight).mean()}))
    assert leak.advice == advice(Remedy.ITEM, with_graph=True)


async def server(tasks, *, drop):
    task = asyncio.ensure_future(handle(torch.ones(64, 64)))
    tasks.add(task)
    if drop:
        task.add_done_callback(tasks.discard)
    await task


async def handle(batch):
    return batch @ weight


def test_of_finished_tasks_in_a_set_the_set_is_named():
    """A graph leads to the batch that the caller made; to detach the result would leave a task of each call."""
    loop, tasks = asyncio.new_event_loop(), set()
    try:
        (leak,) = find_leaks(lambda: loop.run_until_complete(server(tasks, drop=False)))
        assert leak.advice == advice(Remedy.MEMBER)
        assert find_leaks(lambda: loop.run_until_complete(server(tasks, drop=True))) == []
    finally:
        loop.close()


def test_a_leak_says_whether_graphs_keep_most_of_its_bytes():
    """The line of a loss of 4 B in a leak of many KiB says where the rest is; without a graph there is no rest."""
    losses = []
    (with_graph,) = find_leaks(lambda: losses.append((torch.ones(64, 64) @ weight).square().mean()))
    (freed,) = find_leaks(lambda: losses.append((torch.ones(64, 64) @ weight).square().mean().detach()))
    assert with_graph.mostly_in_graph
    assert not freed.mostly_in_graph
