"""Custom operators: written in Python, mutating, defined inside the block, and with odd results."""

from __future__ import annotations

import itertools

import torch
from compat_harness import unnoticed
from torch import Tensor

_BUMPS = "under a mode the ops inside an operator written in Python leave the version counters alone"
_numbers = itertools.count()


@torch.library.custom_op("memwatch_compat::scale_", mutates_args=("x",))
def scale_(x: Tensor, factor: float) -> None:
    """Scale a tensor in place."""
    x.mul_(factor)


@torch.library.custom_op("memwatch_compat::halves", mutates_args=())
def halves(x: Tensor) -> list[Tensor]:
    """Return copies of the halves of a tensor."""
    return [half.clone() for half in x.chunk(2)]


@torch.library.custom_op("memwatch_compat::square", mutates_args=())
def square(x: Tensor) -> Tensor:
    """Square a tensor."""
    return x * x


square.register_autograd(
    lambda ctx, grad: 2 * grad * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("memwatch_compat::fails", mutates_args=())
def fails(x: Tensor) -> Tensor:
    """Raise."""
    raise ValueError(f"no {x.shape}")


@unnoticed(formula=_BUMPS)
def test_mutating_operator_bumps_the_version_once():
    x = torch.ones(4)
    scale_(x, 3.0)
    scale_(x, factor=0.5)
    return x, x._version


@unnoticed
def test_operator_with_autograd():
    x = torch.randn(8, requires_grad=True)
    square(square(x)).sum().backward()
    return x


@unnoticed(formula=_BUMPS)
def test_operator_that_returns_a_list():
    return halves(torch.arange(8.0))


@unnoticed(raises=True)
def test_operator_that_raises():
    fails(torch.ones(3))


@unnoticed(raises=True, formula=_BUMPS)
def test_mutating_operator_on_a_saved_tensor_raises():
    w = torch.randn(4, requires_grad=True)
    x = torch.randn(4)
    out = (w * x).sum()
    scale_(x, 2.0)
    out.backward()


@unnoticed
def test_operator_defined_inside_the_block():
    name = f"memwatch_compat::later{next(_numbers)}"

    @torch.library.custom_op(name, mutates_args=())
    def later(x: Tensor) -> Tensor:
        return x.exp() + 1

    later.register_fake(torch.empty_like)
    out = later(torch.ones(4)), torch.ops.memwatch_compat.square(torch.ones(2))
    namespace, _, short = name.partition("::")
    return out, hasattr(getattr(torch.ops, namespace), short)


@unnoticed
def test_library_with_fragments():
    with torch.library._scoped_library("memwatch_compat", "FRAGMENT") as library:
        short = f"added{next(_numbers)}"
        library.define(f"{short}(Tensor x, int n=2) -> (Tensor, int)")
        library.impl(short, lambda x, n=2: (x + n, n), "CompositeExplicitAutograd")
        op = getattr(torch.ops.memwatch_compat, short)
        return op(torch.ones(2)), op(torch.ones(2), n=5)


@unnoticed
def test_random_operators_and_generators():
    generator = torch.Generator().manual_seed(3)
    x = torch.empty(8).normal_(generator=generator)
    kept = torch.nn.functional.dropout(torch.ones(16), 0.5)
    with torch.random.fork_rng():
        inside = torch.rand(2)
    return x, kept, inside, torch.randperm(6), torch.multinomial(torch.ones(4), 3), generator.get_state()
