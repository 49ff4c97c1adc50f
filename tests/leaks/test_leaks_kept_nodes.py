"""A container of `ctx` or `grad_fn` objects keeps nodes of graphs whose tensors backward has freed."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from memwatch.kinds.leaks import LeakKind
from memwatch.leaks import find_leaks

WEIGHT = torch.ones(64, 64, requires_grad=True)


class Book:
    def __init__(self):
        self.contexts, self.nodes, self.by_call = [], [], {}
        self.window, self.last, self.keep = deque(maxlen=6), None, None


BOOK = Book()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if BOOK.keep is not None:
            BOOK.keep(ctx)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


@pytest.fixture(autouse=True)
def _fresh():
    BOOK.__init__()
    yield
    BOOK.__init__()
    WEIGHT.grad = None


def step(keep):
    BOOK.keep = keep
    result = Square.apply(WEIGHT * 3)
    result.sum().backward()


def keep_node():
    node = (WEIGHT * 3).exp().sum().grad_fn
    node(torch.ones(()))
    BOOK.nodes.append(node)


def keep_by_call(ctx):
    BOOK.by_call[len(BOOK.by_call)] = ctx


@pytest.mark.parametrize(
    ("keep", "container"),
    [(lambda ctx: BOOK.contexts.append(ctx), "contexts"), (keep_by_call, "by_call")],
    ids=["list", "dict"],
)
def test_a_container_of_contexts_is_named(keep, container):
    (leak,) = find_leaks(step, keep)
    assert (leak.kind, leak.graph_nodes) == (LeakKind.GRAPH, 2)
    assert leak.cut.kind.row.is_entry
    assert container in leak.holder


def test_a_list_of_nodes_is_named():
    """The class of such a node is one of C++."""
    (leak,) = find_leaks(keep_node)
    assert leak.cut.kind.row.is_entry
    assert "nodes" in leak.holder


def test_beside_a_graph_that_does_not_grow_the_list_of_contexts_is_named():
    BOOK.last = WEIGHT.exp().sum().exp().exp().exp()
    (leak,) = find_leaks(step, lambda ctx: BOOK.contexts.append(ctx))
    assert "contexts" in leak.holder


@pytest.mark.parametrize(
    "keep",
    [
        None,
        lambda ctx: BOOK.window.append(ctx),
        lambda ctx: setattr(BOOK, "last", ctx),
        lambda ctx: BOOK.by_call.__setitem__("last", ctx),
    ],
    ids=["none", "window", "attribute", "key"],
)
def test_contexts_that_the_next_calls_replace_are_no_leak(keep):
    assert find_leaks(step, keep) == []
