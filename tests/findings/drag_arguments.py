"""Programs after lightning-thunder #606: a backward whose arguments keep tensors alive, each with its mended twin.

Every program takes 24 blocks of 64 KiB, uses all of them once, then allocates 16 blocks of its own.
"""

from __future__ import annotations

import functools

import torch

MANY, SIDE = 24, 128


def saved_for_backward():
    return [torch.ones(SIDE, SIDE) for _ in range(MANY)]


def own_peak():
    """Allocate more, after the saved tensors were used."""
    return [torch.zeros(SIDE, SIDE) for _ in range(16)]


def consume(saved):
    total = torch.zeros(SIDE, SIDE)
    for tensor in saved:
        total += tensor
    return total


def backward_with_tuple(saved, gradient):
    total = consume(saved)
    total += gradient
    return own_peak()


def backward_clearing_list(saved, gradient):
    total = consume(saved)
    saved.clear()
    total += gradient
    return own_peak()


def backward_of_many(*saved):
    consume(saved)
    return own_peak()


def backward_of_keywords(**saved):
    consume(saved.values())
    return own_peak()


class Runner:
    def __init__(self, saved=None):
        self.saved = saved

    def run_backward(self, saved):
        consume(saved)
        return own_peak()

    def run_own(self):
        consume(self.saved)
        return own_peak()

    def run_own_cleared(self):
        consume(self.saved)
        self.saved = None
        return own_peak()


class Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *saved):
        consume(saved)
        own_peak()
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return (gradient, *[None] * MANY)


class ApplyBoxed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, box):
        consume(box)
        box.clear()
        own_peak()
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def tuple_held():
    return backward_with_tuple(tuple(saved_for_backward()), torch.ones(SIDE, SIDE))


def list_cleared():
    return backward_clearing_list(saved_for_backward(), torch.ones(SIDE, SIDE))


def caller_variable_held():
    activations = saved_for_backward()
    return backward_with_tuple(tuple(activations), torch.ones(SIDE, SIDE))


def function_apply_held():
    return Apply.apply(torch.ones(2), *saved_for_backward())


def function_apply_cleared():
    return ApplyBoxed.apply(torch.ones(2), saved_for_backward())


def partial_held():
    backward = functools.partial(backward_with_tuple, tuple(saved_for_backward()))
    return backward(torch.ones(SIDE, SIDE))


def partial_cleared():
    backward = functools.partial(backward_clearing_list, saved_for_backward())
    return backward(torch.ones(SIDE, SIDE))


def star_arguments_held():
    return backward_of_many(*saved_for_backward())


def keywords_held():
    return backward_of_keywords(**{f"t{index}": tensor for index, tensor in enumerate(saved_for_backward())})


def method_held():
    return Runner().run_backward(saved_for_backward())


def attribute_held():
    return Runner(saved_for_backward()).run_own()


def attribute_cleared():
    return Runner(saved_for_backward()).run_own_cleared()


def stages(saved):
    consume(saved)
    yield 1
    yield own_peak()


def stages_cleared(saved):
    consume(saved)
    saved.clear()
    yield 1
    yield own_peak()


def generator_held():
    return list(stages(saved_for_backward()))


def generator_cleared():
    return list(stages_cleared(saved_for_backward()))


def big_batches():
    for _ in range(2):
        yield torch.ones(12 * SIDE, SIDE)


def enumerate_held():
    for _index, batch in enumerate(big_batches()):
        batch.sum()
        own_peak()


def enumerate_dropped():
    batches = big_batches()
    while (batch := next(batches, None)) is not None:
        batch.sum()
        del batch
        own_peak()


def zip_held():
    for batch, _label in zip(big_batches(), range(2)):
        batch.sum()
        own_peak()


def map_held():
    for batch in map(torch.relu, big_batches()):
        batch.sum()
        own_peak()


# (holding program, words that its finding must have, fixed twin)
CASES = {
    "tuple": (tuple_held, ("saved", "backward_with_tuple"), list_cleared),
    "caller": (
        caller_variable_held,
        ("saved", "backward_with_tuple", "activations", "caller_variable_held"),
        list_cleared,
    ),
    "autograd.Function.apply": (function_apply_held, ("saved", "forward"), function_apply_cleared),
    "functools.partial": (partial_held, ("saved", "backward_with_tuple"), partial_cleared),
    "*args": (star_arguments_held, ("saved", "backward_of_many"), list_cleared),
    "**kwargs": (keywords_held, ("saved", "backward_of_keywords"), list_cleared),
    "method": (method_held, ("saved", "run_backward"), list_cleared),
    "attribute": (attribute_held, ("self", "run_own"), attribute_cleared),
    "generator": (generator_held, ("saved", "stages"), generator_cleared),
    "enumerate": (enumerate_held, ("batch", "enumerate_held"), enumerate_dropped),
    "zip": (zip_held, ("batch", "zip_held"), enumerate_dropped),
    "map": (map_held, ("batch", "map_held"), enumerate_dropped),
}
