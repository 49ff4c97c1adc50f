"""Odd programs whose values leave the tensors, or come from generators and custom ops; gradients without modules."""

from __future__ import annotations

import numpy as np
import torch
from replay_odd import program
from torch.nn import functional


@program
def inplace_on_views():
    x = torch.randn(64, 64, requires_grad=True)

    def step():
        y = x * 2
        y[0].add_(1)
        y[:, 1].mul_(3)
        y.t()[2:4].zero_()
        z = y.view(-1)
        z[5:9].fill_(7)
        (y.sin() * z.view(64, 64)).sum().backward()
        g = x.grad
        x.grad = None
        return g

    return step


@program
def complex_numbers():
    x = torch.randn(32, 32, dtype=torch.complex64, requires_grad=True)

    def step():
        y = torch.fft.fft2(x)
        z = (y.conj() @ y).imag
        w = torch.view_as_real(y)
        (z.sum() + w.square().sum() + torch._neg_view(z).sum()).backward()
        g = x.grad
        x.grad = None
        return g

    return step


@program
def retain_twice():
    x = torch.randn(32, 32, requires_grad=True)

    def step():
        loss = ((x @ x).sin() * x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        g = x.grad
        x.grad = None
        return g

    return step


@program
def zero_size():
    x = torch.randn(0, 8)
    w = torch.randn(8, 4, requires_grad=True)

    def step():
        y = x @ w
        z = torch.cat([y, torch.randn(3, 4)])
        z.sum().backward()
        torch.empty(0).sum()
        return z, w.grad

    return step


@program
def item_scalar():
    x = torch.randn(16, 16)

    def step():
        n = x.norm().item()
        k = int((x > 0).sum())
        if x.sum() > -1e9:
            return x[: k % 16] / n
        return None

    return step


@program
def nonzero():
    x = torch.randn(64)

    def step():
        i = torch.nonzero(x > 0).squeeze(1)
        y = x[i] * 2
        m = torch.masked_select(x, x < 0)
        u, c = torch.unique((x * 3).long(), return_counts=True)
        return y.sum() + m.sum() + u.sum() + c.sum()

    return step


@program
def double_backward():
    x = torch.randn(16, 16, requires_grad=True)

    def step():
        y = (x.sin() @ x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (h,) = torch.autograd.grad(g.square().sum(), x)
        return h

    return step


@program
def own_generator():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(64)

    def step():
        return (
            torch.rand(64, generator=g)
            + torch.bernoulli(x.sigmoid(), generator=g)
            + torch.randperm(64, generator=g)
        )

    return step


@program
def seeds_inside():
    def step():
        torch.manual_seed(7)
        a = torch.randn(64)
        torch.manual_seed(7)
        b = torch.randn(64)
        return a, b

    return step


@program
def numpy_bridge():
    def step():
        a = torch.from_numpy(np.ones((8, 8), dtype="float32"))
        b = torch.tensor([[1.0, 2.0]] * 4)
        n = (a + 1).numpy()
        return torch.from_numpy(n) * 2 + b.sum()

    return step


@program
def sdpa():
    q = torch.randn(2, 2, 16, 8, requires_grad=True)

    def step():
        functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        g = q.grad
        q.grad = None
        return g

    return step


@program
def exception_inside():
    x = torch.randn(8, 8)

    def step():
        y = x + 1
        try:
            x @ torch.randn(3, 3)
        except RuntimeError:
            y = y * 2
        return y

    return step


@program
def nan_inf():
    x = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40])

    def step():
        return x * 2, x / 0, torch.eq(x, x).sum().item(), x.sum().item()

    return step


@program
def save_on_cpu():
    x = torch.randn(32, 32, requires_grad=True)

    def step():
        with torch.autograd.graph.save_on_cpu():
            y = (x * 2).sin() @ x
        y.sum().backward()
        x.grad = None

    return step


@program
def losses():
    x = torch.randn(6, 5, requires_grad=True)
    t = torch.randint(0, 5, (6,))

    def step():
        (
            functional.cross_entropy(x, t, label_smoothing=0.1)
            + functional.nll_loss(x.log_softmax(1), t)
            + functional.kl_div(x.log_softmax(1), x.detach().softmax(1), reduction="batchmean")
            + functional.smooth_l1_loss(x, x.detach() * 2)
            + functional.binary_cross_entropy_with_logits(x, torch.ones_like(x))
            + functional.ctc_loss(
                torch.randn(10, 2, 5).log_softmax(2),
                torch.randint(1, 5, (2, 3)),
                torch.tensor([10, 10]),
                torch.tensor([3, 3]),
            )
        ).backward()
        x.grad = None

    return step


@program
def interpolate_grid():
    x = torch.randn(1, 3, 8, 8, requires_grad=True)

    def step():
        y = functional.interpolate(x, scale_factor=2, mode="bilinear")
        g = functional.affine_grid(torch.eye(2, 3)[None], [1, 3, 16, 16])
        (functional.grid_sample(y, g) + functional.pad(x, (4, 4, 4, 4), mode="reflect")).sum().backward()
        x.grad = None

    return step


@program
def custom_op_mut():
    @torch.library.custom_op("memwatch_odd::addone_", mutates_args=("x",))
    def addone_(x: torch.Tensor) -> None:
        x.add_(1)

    y = torch.randn(8)

    def step():
        a = y * 2
        torch.ops.memwatch_odd.addone_(a)
        return a * 3

    return step


@program
def custom_op_tuple():
    @torch.library.custom_op("memwatch_odd::two", mutates_args=())
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x * 2

    y = torch.randn(8)

    def step():
        a, b = torch.ops.memwatch_odd.two(y)
        del a
        return b + 1

    return step


@program
def custom_op_rng():
    @torch.library.custom_op("memwatch_odd::noise", mutates_args=())
    def noise(x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)

    y = torch.randn(8)

    def step():
        return torch.ops.memwatch_odd.noise(y) + torch.rand(8)

    return step


@program
def inplace_param_update():
    w = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8)

    def step():
        (x @ w).square().sum().backward()
        with torch.no_grad():
            w.sub_(0.1 * w.grad)
            w.grad.zero_()

    return step


@program
def histogram_bincount_host():
    x = torch.rand(100)

    def step():
        h = torch.histc(x, 10)
        b = torch.bincount((x * 5).long())
        loss = h.tolist()
        return torch.tensor(loss).sum() + b.max()

    return step


@program
def long_lived_graph():
    x = torch.randn(8, 8, requires_grad=True)
    keep = []

    def step():
        keep.clear()
        y = (x @ x).sin()
        keep.append(y)
        return y.sum()

    return step


@program
def numpy_view_of_output():
    x = torch.randn(8)

    def step():
        y = x * 2
        return y.numpy()

    return step
